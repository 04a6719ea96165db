//! The file under construction: `DESTINATION.partial` and its journal.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crc_fast::Digest as Checksum;
use sha2::{Digest, Sha256};

use crate::digest::Sha256Digest;
use crate::error::FetchError;
use crate::extents::Extents;
use crate::journal::{self, Header, Journal, Stretch, Validator};
use crate::lock;

/// What is read at once for a hash.
const READ_BYTES: usize = 1 << 20;

/// `DESTINATION.partial`, locked against other processes that bring the same file.
pub(crate) struct Partial {
    source_uri: String,
    header: Header,
    destination: PathBuf,
    path: PathBuf,
    file: Arc<File>,
    journal: Mutex<Journal>,
}

/// What is known of bytes that are in place already.
pub(crate) struct Restored {
    /// Where they are.
    pub(crate) done: Extents,
    /// Hash of what begins at byte 0.
    pub(crate) hasher: Sha256,
}

impl Partial {
    /// Opens the part of an earlier attempt at the same source, or an empty one; waits while another process brings
    /// the same file. `progress` is told of the bytes checked meanwhile. Blocks the thread.
    pub(crate) fn open(
        source_uri: String,
        identity: &str,
        destination: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Self, Restored), FetchError> {
        let (path, journal_path) = (
            beside(destination, ".partial"),
            beside(destination, ".partial.json"),
        );
        let opened = Self::opened(identity, &path, &journal_path, progress);
        let (header, file, journal, restored) =
            opened.map_err(|error| FetchError::local(&source_uri, &path, &error))?;
        let partial = Self {
            source_uri,
            header,
            destination: destination.to_owned(),
            path,
            file: Arc::new(file),
            journal: Mutex::new(journal),
        };
        Ok((partial, restored))
    }

    fn opened(
        identity: &str,
        path: &Path,
        journal_path: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<(Header, File, Journal, Restored)> {
        let file = lock::exclusive_at(path, lock::open_own)?;
        let source = Sha256Digest(Sha256::digest(identity).into()).to_string();
        let earlier = Journal::read(journal_path).filter(|(header, _)| header.source == source);
        let (mut header, stretches) = earlier.unwrap_or_else(|| (Header::of(&source), Vec::new()));
        let (restored, kept) = verify(&file, stretches, progress)?;
        if kept.is_empty() {
            header = Header::of(&source);
            file.set_len(0)?;
        }
        let journal = Journal::create(journal_path, &header, &kept)?;
        Ok((header, file, journal, restored))
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Notes what is being fetched, and that nothing of it is in place.
    pub(crate) fn describe(
        &mut self,
        validator: Option<Validator>,
        total: Option<u64>,
    ) -> Result<(), FetchError> {
        self.header.validator = validator;
        self.header.total = total;
        let path = self.journal().path().to_owned();
        let created = Journal::create(&path, &self.header, &[]);
        *self.journal() = created.map_err(|error| self.failed(&error))?;
        Ok(())
    }

    /// Forgets every byte.
    pub(crate) fn restart(&mut self) -> Result<(), FetchError> {
        // The journal first: at no moment may it claim bytes that are gone.
        self.describe(None, None)?;
        self.file.set_len(0).map_err(|error| self.failed(&error))
    }

    /// Writes bytes to their place. Blocks the thread.
    pub(crate) fn write(&self, bytes: &[u8], at: u64) -> Result<(), FetchError> {
        self.file
            .write_all_at(bytes, at)
            .map_err(|error| self.failed(&error))
    }

    /// Notes that a stretch is written.
    pub(crate) fn note(&self, stretch: &Stretch) -> Result<(), FetchError> {
        let appended = self.journal().append(stretch);
        appended.map_err(|error| self.failed(&error))
    }

    /// Removes the file and its journal.
    pub(crate) fn remove(self) -> Result<(), FetchError> {
        fs::remove_file(&self.path).map_err(|error| self.failed(&error))?;
        remove_if_there(self.journal().path());
        Ok(())
    }

    /// Brings a file that is whole and verified to disk and into its place.
    pub(crate) fn place(self) -> Result<(), FetchError> {
        let placed = self.file.sync_all().and_then(|()| {
            fs::rename(&self.path, &self.destination)?;
            sync_parent(&self.destination)
        });
        placed.map_err(|error| self.failed(&error))?;
        remove_if_there(self.journal().path());
        Ok(())
    }

    pub(crate) fn failed(&self, error: &io::Error) -> FetchError {
        FetchError::local(&self.source_uri, &self.path, error)
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        // An append that panicked left a torn line at worst, which readers expect.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a rename in the directory of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// The stretches whose bytes are there, in order, and the hash of those that begin at byte 0. Each byte is read once.
fn verify(
    file: &File,
    mut stretches: Vec<Stretch>,
    progress: &mut dyn FnMut(u64),
) -> io::Result<(Restored, Vec<Stretch>)> {
    stretches.sort_by_key(|stretch| stretch.start);
    let (mut done, mut hasher, mut kept) = (Extents::default(), Sha256::new(), Vec::new());
    for stretch in stretches {
        let range = stretch.range();
        // Overlaps are never written; whoever wrote one is not to be trusted with the rest.
        if done.first_gap(range.start, range.end) != Some(range.clone()) {
            continue;
        }
        let is_prefix = range.start == done.prefix_end();
        let mut hashed = is_prefix.then(|| hasher.clone());
        let mut sum = journal::checksum();
        let is_there = read_through(file, &range, &mut |bytes| {
            sum.update(bytes);
            if let Some(hashed) = &mut hashed {
                hashed.update(bytes);
            }
        })?;
        if !is_there || sum.finalize() != stretch.crc64 {
            continue;
        }
        hasher = hashed.unwrap_or(hasher);
        done.insert(range);
        kept.push(stretch);
        progress(done.bytes());
    }
    Ok((Restored { done, hasher }, kept))
}

/// Reads a range piece by piece; false if the file ends before it does.
pub(crate) fn read_through(
    file: &File,
    range: &std::ops::Range<u64>,
    take: &mut dyn FnMut(&[u8]),
) -> io::Result<bool> {
    let length = (range.end - range.start).min(READ_BYTES as u64) as usize;
    let mut buffer = vec![0; length];
    let mut at = range.start;
    while at < range.end {
        let wanted = (range.end - at).min(READ_BYTES as u64) as usize;
        let read = file.read_at(&mut buffer[..wanted], at)?;
        if read == 0 {
            return Ok(false);
        }
        take(&buffer[..read]);
        at += read as u64;
    }
    Ok(true)
}

/// Bytes that are written and not yet noted.
pub(crate) struct Unnoted {
    start: u64,
    bytes: u64,
    sum: Checksum,
}

impl Unnoted {
    pub(crate) fn at(start: u64) -> Self {
        Self {
            start,
            bytes: 0,
            sum: journal::checksum(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub(crate) fn stretch(&self) -> Stretch {
        Stretch {
            start: self.start,
            bytes: self.bytes,
            crc64: self.sum.clone().finalize(),
        }
    }
}

/// What is left over is of use to nobody, so if it stays it harms nothing.
fn remove_if_there(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a file that is no longer needed");
    }
}

/// `path` with more at the end of its name.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;
    use sha2::{Digest, Sha256};

    use super::{Partial, Unnoted};
    use crate::error::FetchError;
    use crate::journal::{Header, Journal};

    fn open(destination: &std::path::Path) -> (Partial, super::Restored) {
        Partial::open("s".into(), "id", destination, &mut |_| ()).unwrap()
    }

    fn put(partial: &Partial, bytes: &[u8], at: u64) {
        let mut unnoted = Unnoted::at(at);
        unnoted.add(bytes);
        partial.write(bytes, at).unwrap();
        partial.note(&unnoted.stretch()).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Whatever becomes of the file after the journal was written, only bytes that are the right ones count.
        #[test]
        fn a_journal_never_vouches_for_bytes_that_were_lost(
            written in prop::collection::btree_set(0_u64..16, 0..16),
            damaged in prop::option::of(0_u64..16),
            cut_to in prop::option::of(0_u64..200),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let destination = folder.path().join("m");
            let piece = |index: u64| [index as u8 + 1; 10];
            let (partial, _) = open(&destination);
            for &index in &written {
                put(&partial, &piece(index), index * 10);
            }
            let file = partial.file().clone();
            if let Some(index) = damaged {
                file.write_all_at(&[0xff], index * 10 + 5).unwrap();
            }
            if let Some(length) = cut_to {
                file.set_len(length).unwrap();
            }
            let length = file.metadata().unwrap().len();
            drop((partial, file));
            let (_, restored) = open(&destination);
            let sound = |index: &u64| {
                written.contains(index) && damaged != Some(*index) && length >= index * 10 + 10
            };
            let expected: Vec<u64> = (0..16).filter(sound).collect();
            prop_assert_eq!(restored.done.bytes(), expected.len() as u64 * 10);
            let prefix: Vec<u8> = (0..16).take_while(sound).flat_map(piece).collect();
            prop_assert_eq!(restored.done.prefix_end(), prefix.len() as u64);
            prop_assert_eq!(restored.hasher.finalize(), Sha256::digest(&prefix));
        }
    }

    #[test]
    fn a_second_process_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("m");
        let (first, _) = open(&destination);
        put(&first, b"0123456789", 0);
        let second = std::thread::spawn({
            let destination = destination.clone();
            move || open(&destination).1.done.bytes()
        });
        first.place().unwrap();
        // The part is in its place now: the second begins a new one.
        assert_eq!(second.join().unwrap(), 0);
        assert_eq!(fs::read(&destination).unwrap(), b"0123456789");
    }

    #[test]
    fn a_full_disk_is_told_apart_from_other_failures() {
        let folder = tempfile::tempdir().unwrap();
        let header = Header::of("");
        let journal = Journal::create(&folder.path().join("j.json"), &header, &[]).unwrap();
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let partial = Partial {
            source_uri: "file:///x".into(),
            header,
            destination: "/dev/null/model".into(),
            path: "/dev/full".into(),
            file: Arc::new(full),
            journal: Mutex::new(journal),
        };
        let error = partial.write(b"x", 0).unwrap_err();
        assert!(
            matches!(&error, FetchError::DiskFull { path, .. } if path == "/dev/full"),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains("give the model's volume more room"),
            "{error}"
        );
        let error = partial.place().unwrap_err();
        assert!(
            matches!(error, FetchError::DownloadFailed { .. }),
            "{error}"
        );
    }
}
