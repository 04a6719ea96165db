//! Advisory locks on files. They belong to the open file, so that whoever dies lets go, and they hold between
//! containers that mount the same directory.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// A model file held against eviction for as long as this lives. A read-only mount suffices.
#[derive(Debug)]
pub struct ModelLock {
    _file: File,
}

impl ModelLock {
    /// Holds the file at `path`. Fails with `NotFound` where there is none, also if it is being evicted right now.
    pub fn hold(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        flock(&file, FlockOperation::LockShared)?;
        if is_at(&file, path)? {
            Ok(Self { _file: file })
        } else {
            Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the file was removed while it was being opened",
            ))
        }
    }
}

/// Takes the only lock on a file if nobody holds any. `Ok(None)`: somebody does.
pub(crate) fn try_exclusive(file: File) -> io::Result<Option<File>> {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Takes the only lock on the file at `path`, made if need be, or says that somebody holds it.
pub(crate) fn try_exclusive_at(path: &Path) -> io::Result<Option<File>> {
    loop {
        let Some(file) = try_exclusive(open_shared(path)?)? else {
            return Ok(None);
        };
        // It may have been removed between opening and locking; a lock on that is worth nothing.
        if is_at(&file, path)? {
            return Ok(Some(file));
        }
    }
}

/// Waits for the only lock on the file at `path`, which `open` makes if need be. Blocks the thread.
pub(crate) fn exclusive_at(
    path: &Path,
    open: impl Fn(&Path) -> io::Result<File>,
) -> io::Result<File> {
    loop {
        let file = open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        if is_at(&file, path)? {
            return Ok(file);
        }
    }
}

/// Opens a file for reading and writing, made if need be as the user's mask has it.
pub(crate) fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path)
}

/// Opens a file that processes of other users may write too: containers of a namespace need not share a user.
pub(crate) fn open_shared(path: &Path) -> io::Result<File> {
    let file = open_own(path)?;
    set_mode(&file, 0o666);
    Ok(file)
}

/// Sets who may do what, which only the owner may do and which needs to be done only once.
pub(crate) fn set_mode(file: &File, mode: u32) {
    let current = file.metadata().map(|metadata| metadata.mode() & 0o777);
    if current.is_ok_and(|current| current != mode) {
        // Where this is refused, the owner has done it or this process is the only user.
        let _ = file.set_permissions(Permissions::from_mode(mode));
    }
}

/// Whether `path` still leads to this open file.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{ModelLock, exclusive_at, open_shared, try_exclusive, try_exclusive_at};

    #[test]
    fn many_may_hold_a_model_and_nobody_may_evict_it_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        assert_eq!(
            ModelLock::hold(&path).unwrap_err().kind(),
            std::io::ErrorKind::NotFound
        );
        fs::write(&path, "weights").unwrap();
        let holders = [
            ModelLock::hold(&path).unwrap(),
            ModelLock::hold(&path).unwrap(),
        ];
        let [first, second] = holders;
        drop(first);
        assert!(
            try_exclusive(open_shared(&path).unwrap())
                .unwrap()
                .is_none()
        );
        drop(second);
        assert!(
            try_exclusive(open_shared(&path).unwrap())
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn a_lock_is_on_the_file_that_is_there_not_on_one_that_was_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = exclusive_at(&path, open_shared).unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || exclusive_at(&path, open_shared).unwrap()
        });
        fs::remove_file(&path).unwrap();
        let second = try_exclusive_at(&path).unwrap();
        assert!(second.is_some(), "a new file, which nobody holds");
        drop((first, second));
        let held = waiting.join().unwrap();
        assert!(super::is_at(&held, &path).unwrap());
    }
}
