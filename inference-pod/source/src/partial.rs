//! The file under construction: bytes on disk, their hash so far, and what they are a part of.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufWriter};

use crate::digest::Sha256Digest;
use crate::error::FetchError;

const BUFFER_BYTES: usize = 1 << 20;

/// What the server calls this version of the file; a part of another version is worthless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Validator {
    /// A strong entity tag, quotes included.
    ETag(String),
    /// A date.
    LastModified(String),
}

impl Validator {
    pub(crate) fn header_value(&self) -> &str {
        match self {
            Self::ETag(value) | Self::LastModified(value) => value,
        }
    }
}

/// Kept beside the part, so that a later process knows what it is a part of.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// Hash of the source's URI, which may hold secrets.
    source: String,
    validator: Option<Validator>,
}

/// `DESTINATION.partial`, open for appending.
pub(crate) struct Partial {
    source_uri: String,
    source_hash: String,
    destination: PathBuf,
    path: PathBuf,
    note_path: PathBuf,
    file: BufWriter<File>,
    hasher: Sha256,
    bytes: u64,
    validator: Option<Validator>,
}

impl Partial {
    /// Opens the part of an earlier attempt at the same source, or an empty one. `progress` is told
    /// of the bytes hashed meanwhile.
    pub(crate) async fn open(
        source_uri: String,
        secret_uri: &str,
        destination: &Path,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Self, FetchError> {
        let (path, note_path) = (
            beside(destination, ".partial"),
            beside(destination, ".partial.json"),
        );
        let source_hash = Sha256Digest(Sha256::digest(secret_uri).into()).to_string();
        let note = fs::read(&note_path)
            .await
            .ok()
            .and_then(|text| serde_json::from_slice::<Note>(&text).ok());
        let note = note.filter(|note| note.source == source_hash);
        let failed = |error: &io::Error| FetchError::local(&source_uri, &path, error);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(note.is_none());
        let mut file = options.open(&path).await.map_err(|error| failed(&error))?;
        let (hasher, bytes) = hash(&mut file, progress)
            .await
            .map_err(|error| failed(&error))?;
        file.seek(io::SeekFrom::Start(bytes))
            .await
            .map_err(|error| failed(&error))?;
        let mut partial = Self {
            source_uri,
            source_hash,
            destination: destination.to_owned(),
            path,
            note_path,
            file: BufWriter::with_capacity(BUFFER_BYTES, file),
            hasher,
            bytes,
            validator: note.and_then(|note| note.validator),
        };
        partial.write_note().await?;
        Ok(partial)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn validator(&self) -> Option<&Validator> {
        self.validator.as_ref()
    }

    /// Forgets every byte: what follows is the start of the version `validator` names.
    pub(crate) async fn restart(&mut self, validator: Option<Validator>) -> Result<(), FetchError> {
        self.flush().await?;
        let file = self.file.get_mut();
        let emptied = async {
            file.set_len(0).await?;
            file.seek(io::SeekFrom::Start(0)).await
        };
        emptied.await.map_err(|error| self.failed(&error))?;
        self.hasher = Sha256::new();
        self.bytes = 0;
        self.validator = validator;
        self.write_note().await
    }

    /// Appends bytes.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        self.file
            .write_all(bytes)
            .await
            .map_err(|error| self.failed(&error))?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Hands what is buffered to the system, so that it outlives a failure of the connection.
    pub(crate) async fn flush(&mut self) -> Result<(), FetchError> {
        self.file.flush().await.map_err(|error| self.failed(&error))
    }

    /// Verifies the hash, syncs, and puts the file in its place. A file of another hash is removed.
    pub(crate) async fn complete(
        mut self,
        expected: Option<Sha256Digest>,
    ) -> Result<(u64, Sha256Digest), FetchError> {
        self.flush().await?;
        let found = Sha256Digest(self.hasher.clone().finalize().into());
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            let removed = fs::remove_file(&self.path).await;
            removed.map_err(|error| self.failed(&error))?;
            remove_if_there(&self.note_path).await;
            return Err(FetchError::HashMismatch {
                source_uri: self.source_uri,
                expected,
                found,
            });
        }
        let placed = async {
            self.file.get_mut().sync_all().await?;
            fs::rename(&self.path, &self.destination).await?;
            let directory = self
                .destination
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))
                .await?
                .sync_all()
                .await
        };
        placed.await.map_err(|error| self.failed(&error))?;
        remove_if_there(&self.note_path).await;
        Ok((self.bytes, found))
    }

    async fn write_note(&mut self) -> Result<(), FetchError> {
        let note = Note {
            source: self.source_hash.clone(),
            validator: self.validator.clone(),
        };
        let text = serde_json::to_vec(&note).map_err(|error| self.failed(&error.into()))?;
        fs::write(&self.note_path, text)
            .await
            .map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> FetchError {
        FetchError::local(&self.source_uri, &self.path, error)
    }
}

/// The note is of use to a later attempt only, so one that stays behind harms nothing.
async fn remove_if_there(path: &Path) {
    if let Err(error) = fs::remove_file(path).await
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a file that is no longer needed");
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Hash and length of a file from its start.
pub(crate) async fn hash(
    file: &mut File,
    progress: &mut (dyn FnMut(u64) + Send),
) -> io::Result<(Sha256, u64)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut buffer).await?;
        if read == 0 {
            return Ok((hasher, bytes));
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
        progress(bytes);
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};
    use tokio::fs::OpenOptions;
    use tokio::io::BufWriter;

    use super::Partial;
    use crate::error::FetchError;

    #[tokio::test]
    async fn a_full_disk_is_told_apart_from_other_failures() {
        let full = OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .await
            .unwrap();
        let mut partial = Partial {
            source_uri: "file:///x".into(),
            source_hash: String::new(),
            destination: "/dev/null/model".into(),
            path: "/dev/full".into(),
            note_path: "/dev/null/note".into(),
            file: BufWriter::with_capacity(16, full),
            hasher: Sha256::new(),
            bytes: 0,
            validator: None,
        };
        partial.write(b"x").await.unwrap();
        let error = partial.flush().await.unwrap_err();
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
        let error = partial.write_note().await.unwrap_err();
        assert!(
            matches!(error, FetchError::DownloadFailed { .. }),
            "{error}"
        );
    }
}
