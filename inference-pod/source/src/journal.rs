//! What is known of a file under construction, kept beside it so that a later process can go on.
//!
//! The first line says what the bytes are a part of; each further line names a stretch that is in place and its
//! checksum. Lines are only appended, and a stretch counts only if its bytes have that checksum when the file is taken
//! up again: whatever a crash tore or lost, the journal cannot claim bytes that are not there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};

/// A longer journal than this is not read: it is not ours.
const LONGEST_JOURNAL_BYTES: u64 = 256 << 20;

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

/// What the bytes are a part of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Hash of the source's URI, which may hold secrets.
    pub(crate) source: String,
    /// The version.
    pub(crate) validator: Option<Validator>,
    /// Its length.
    #[serde(default)]
    pub(crate) total: Option<u64>,
}

impl Header {
    /// Of a source of which nothing is known yet.
    pub(crate) fn of(source: &str) -> Self {
        Self {
            source: source.to_owned(),
            validator: None,
            total: None,
        }
    }
}

/// A stretch that is in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stretch {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// CRC-64/NVME of its bytes.
    pub(crate) crc64: u64,
}

impl Stretch {
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.bytes)
    }
}

/// The checksum of stretches.
pub(crate) fn checksum() -> Digest {
    Digest::new(CrcAlgorithm::Crc64Nvme)
}

/// The journal of one file, open for appending.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// What an earlier process left, as far as it can be read. A torn line ends it.
    pub(crate) fn read(path: &Path) -> Option<(Header, Vec<Stretch>)> {
        let file = File::open(path).ok()?;
        let mut lines = BufReader::new(file.take(LONGEST_JOURNAL_BYTES)).lines();
        let header = serde_json::from_str(&lines.next()?.ok()?).ok()?;
        let stretches = lines.map_while(|line| serde_json::from_str(&line.ok()?).ok());
        Some((header, stretches.collect()))
    }

    /// A journal that says this and nothing else; it replaces an earlier one at once.
    pub(crate) fn create(path: &Path, header: &Header, stretches: &[Stretch]) -> io::Result<Self> {
        let new = path.with_extension("new");
        let mut text = serde_json::to_vec(header)?;
        for stretch in stretches {
            text.push(b'\n');
            serde_json::to_writer(&mut text, stretch)?;
        }
        text.push(b'\n');
        // One that was left there may be another user's.
        let _ = fs::remove_file(&new);
        fs::write(&new, text)?;
        fs::rename(&new, path)?;
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Adds a stretch, whose bytes are written.
    pub(crate) fn append(&mut self, stretch: &Stretch) -> io::Result<()> {
        let mut line = serde_json::to_vec(stretch)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::{Header, Journal, Stretch, Validator};

    #[test]
    fn a_journal_reads_back_up_to_a_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.partial.json");
        let header = Header {
            source: "s".into(),
            validator: Some(Validator::ETag("\"v\"".into())),
            total: Some(9),
        };
        let stretch = |start| Stretch {
            start,
            bytes: 3,
            crc64: u64::MAX,
        };
        let mut journal = Journal::create(&path, &header, &[stretch(0)]).unwrap();
        journal.append(&stretch(3)).unwrap();
        assert_eq!(
            Journal::read(&path),
            Some((header.clone(), vec![stretch(0), stretch(3)]))
        );
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 5]).unwrap();
        assert_eq!(Journal::read(&path), Some((header, vec![stretch(0)])));
        std::fs::write(&path, "{\"source\":1}").unwrap();
        assert_eq!(Journal::read(&path), None);
    }

    #[test]
    fn the_note_of_an_earlier_release_claims_no_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.partial.json");
        std::fs::write(&path, r#"{"source":"s","validator":{"ETag":"\"v\""}}"#).unwrap();
        let (header, stretches) = Journal::read(&path).unwrap();
        assert_eq!((header.total, stretches.len()), (None, 0));
    }
}
