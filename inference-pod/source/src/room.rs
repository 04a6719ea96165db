//! Who says whether there is room.

use std::path::PathBuf;
use std::sync::Arc;

use crate::disk;
use crate::error::FetchError;

/// Grants room for a model. Implementations may block.
pub(crate) trait Room: Send + Sync {
    /// Grants `total_bytes` in all, of which `present_bytes` are in place.
    fn reserve(&self, total_bytes: u64, present_bytes: u64) -> Result<(), FetchError>;
    /// Grants at least this much in all, for a source that does not tell its length.
    fn grow(&self, at_least_bytes: u64) -> Result<(), FetchError>;
}

/// What the disk has.
pub(crate) struct DiskRoom {
    path: PathBuf,
}

impl DiskRoom {
    /// The file system of `path`.
    pub(crate) fn of(path: PathBuf) -> Arc<dyn Room> {
        Arc::new(Self { path })
    }
}

impl Room for DiskRoom {
    fn reserve(&self, total_bytes: u64, present_bytes: u64) -> Result<(), FetchError> {
        disk::check_room(&self.path, total_bytes.saturating_sub(present_bytes))
    }

    fn grow(&self, _: u64) -> Result<(), FetchError> {
        // The write itself will tell.
        Ok(())
    }
}
