//! What lies in the cache's directory, and how it is counted.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::victims::{Hold, Tenant};
use crate::lock;

/// Name of the model in its folder.
pub(crate) const MODEL: &str = "model.gguf";
/// Held by whoever brings the model.
const LOCK: &str = "lock";
/// Its modification time says when the model was last asked for.
const USED: &str = "used";
/// Says that the model is whole, and which one it is.
const ENTRY: &str = "entry.json";
/// Bytes that a download under way may take.
const RESERVED: &str = "reserved";
/// How far the download is.
const PROGRESS: &str = "progress.json";
/// Everything a folder of ours holds; the lock goes last. Nothing else is ever removed.
const OURS: [&str; 12] = [
    ENTRY,
    "entry.json.new",
    MODEL,
    "model.gguf.partial",
    "model.gguf.partial.json",
    "model.gguf.partial.new",
    RESERVED,
    "reserved.new",
    PROGRESS,
    "progress.json.new",
    USED,
    LOCK,
];

/// The directory that all containers on the node share.
#[derive(Debug, Clone)]
pub(crate) struct CacheFolder(PathBuf);

/// The folder of one model.
#[derive(Debug, Clone)]
pub(crate) struct ModelFolder(PathBuf);

/// What was downloaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    /// For people; without credentials.
    pub(crate) source: String,
}

/// How far a download is, for those who wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) bytes: u64,
    pub(crate) total_bytes: Option<u64>,
}

/// An entry with the locks that keep it as it was seen.
pub(crate) struct Seen {
    pub(crate) folder: ModelFolder,
    pub(crate) tenant: Tenant,
    /// Bytes granted to a download under way that are not on disk yet.
    pub(crate) outstanding: u64,
    _locks: Vec<File>,
}

impl CacheFolder {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder of a model, which processes of other users may use too.
    pub(crate) fn model(&self, key: &str) -> io::Result<ModelFolder> {
        let path = self.0.join(key);
        match fs::create_dir(&path) {
            Ok(()) => lock::set_mode(&File::open(&path)?, 0o777),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(ModelFolder(path))
    }

    /// The right to count and to remove. Blocks the thread until others are done with that.
    pub(crate) fn accounts(&self) -> io::Result<File> {
        lock::exclusive_at(&self.0.join(LOCK), lock::open_shared)
    }

    /// All entries but that of `own`, locked where nobody holds them.
    pub(crate) fn survey(&self, own: &str, now: SystemTime) -> io::Result<Vec<Seen>> {
        let mut seen = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_other = name
                .to_str()
                .is_some_and(|name| is_key(name) && name != own);
            if is_other && entry.file_type()?.is_dir() {
                seen.push(ModelFolder(entry.path()).look(now));
            }
        }
        Ok(seen)
    }
}

/// Whether a name is one that we give to folders.
pub(crate) fn is_key(name: &str) -> bool {
    name.len() == 64
        && name
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl ModelFolder {
    pub(crate) fn model_path(&self) -> PathBuf {
        self.0.join(MODEL)
    }

    /// The right to bring the model. `Ok(None)`: somebody else does.
    pub(crate) fn try_hold(&self) -> io::Result<Option<File>> {
        lock::try_exclusive_at(&self.0.join(LOCK))
    }

    /// Notes that the model was asked for.
    pub(crate) fn touch(&self) -> io::Result<()> {
        let mut file = lock::open_shared(&self.0.join(USED))?;
        file.set_len(0)?;
        // Writing moves the time also where the file belongs to another user.
        file.write_all(b"used\n")
    }

    /// The model, if it is whole as it was downloaded.
    pub(crate) fn entry(&self) -> Option<Entry> {
        let entry: Entry = serde_json::from_slice(&fs::read(self.0.join(ENTRY)).ok()?).ok()?;
        let length = fs::metadata(self.model_path()).ok()?.len();
        (length == entry.bytes).then_some(entry)
    }

    /// Notes what is about to be put in its place.
    pub(crate) fn write_entry(&self, entry: &Entry) -> io::Result<()> {
        self.write_whole(ENTRY, &serde_json::to_vec(entry)?)
    }

    /// Removes a model that cannot be trusted.
    pub(crate) fn discard(&self) -> io::Result<()> {
        remove(&self.0.join(ENTRY))?;
        remove(&self.model_path())
    }

    pub(crate) fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.write_whole(RESERVED, bytes.to_string().as_bytes())
    }

    /// Nothing is under way any more.
    pub(crate) fn settle(&self) {
        for name in [RESERVED, PROGRESS] {
            if let Err(error) = remove(&self.0.join(name)) {
                tracing::warn!(folder = %self.0.display(), %error, "cannot remove {name}");
            }
        }
    }

    pub(crate) fn tell(&self, told: Told) -> io::Result<()> {
        self.write_whole(PROGRESS, &serde_json::to_vec(&told)?)
    }

    pub(crate) fn told(&self) -> Option<Told> {
        serde_json::from_slice(&fs::read(self.0.join(PROGRESS)).ok()?).ok()
    }

    /// Replaces a small file at once. Only the holder of a folder writes into it.
    fn write_whole(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = self.0.join(format!("{name}.new"));
        remove(&new)?;
        let mut file = lock::open_shared(&new)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&new, self.0.join(name))
    }

    /// Removes the model and all that belongs to it.
    pub(crate) fn evict(&self) -> io::Result<()> {
        for name in OURS {
            remove(&self.0.join(name))?;
        }
        match fs::remove_dir(&self.0) {
            // What others put there is theirs.
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
            _ => Ok(()),
        }
    }

    fn look(self, now: SystemTime) -> Seen {
        let mut locks = Vec::new();
        let hold = self.hold(&mut locks).unwrap_or_else(|error| {
            tracing::warn!(folder = %self.0.display(), %error, "cannot look into a cached model, keeping it");
            Hold::Serving
        });
        let on_disk = self.bytes_on_disk();
        let reserved = match hold {
            Hold::Downloading => self.reserved(),
            _ => 0,
        };
        let tenant = Tenant {
            bytes: on_disk.max(reserved),
            idle: self.idle(now),
            is_whole: self.entry().is_some(),
            hold,
        };
        Seen {
            folder: self,
            tenant,
            outstanding: reserved.saturating_sub(on_disk),
            _locks: locks,
        }
    }

    fn hold(&self, locks: &mut Vec<File>) -> io::Result<Hold> {
        let Some(own) = self.try_hold()? else {
            return Ok(Hold::Downloading);
        };
        locks.push(own);
        let model = match File::open(self.model_path()) {
            Ok(model) => model,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Hold::Free),
            Err(error) => return Err(error),
        };
        Ok(match lock::try_exclusive(model)? {
            Some(model) => {
                locks.push(model);
                Hold::Free
            }
            None => Hold::Serving,
        })
    }

    fn reserved(&self) -> u64 {
        let text = fs::read_to_string(self.0.join(RESERVED)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Bytes of the model and of its part. The part has holes while several connections fill it.
    pub(crate) fn bytes_on_disk(&self) -> u64 {
        let part = fs::metadata(self.0.join("model.gguf.partial"));
        let part = part.map_or(0, |part| part.len().min(part.blocks() * 512));
        let model = fs::metadata(self.model_path()).map_or(0, |model| model.len());
        part.saturating_add(model)
    }

    fn idle(&self, now: SystemTime) -> Duration {
        let marker = fs::metadata(self.0.join(USED)).or_else(|_| fs::metadata(&self.0));
        let used = marker.and_then(|marker| marker.modified());
        // A time in the future is of a clock that went back: as good as now.
        used.ok()
            .and_then(|used| now.duration_since(used).ok())
            .unwrap_or_default()
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
