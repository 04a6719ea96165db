//! Room on the destination's file system.

use std::path::Path;

use crate::error::{FetchError, MORE_ROOM};

/// Refuses a file that does not fit before its first byte is fetched. Where the file system does
/// not tell, the write itself will.
pub(crate) fn check_room(path: &Path, needed_bytes: u64) -> Result<(), FetchError> {
    let Some(free_bytes) = path.parent().and_then(free_bytes) else {
        return Ok(());
    };
    fits(path, needed_bytes, free_bytes)
}

fn fits(path: &Path, needed_bytes: u64, free_bytes: u64) -> Result<(), FetchError> {
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    let detail =
        format!("{needed_bytes} bytes are still needed, {free_bytes} are free; {MORE_ROOM}");
    Err(FetchError::DiskFull {
        path: path.display().to_string(),
        detail,
    })
}

/// Free bytes of the file system that holds a directory, where it tells.
pub(crate) fn free_bytes(directory: &Path) -> Option<u64> {
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let stat = rustix::fs::statvfs(directory).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{check_room, fits};
    use crate::error::FetchError;

    #[test]
    fn what_does_not_fit_is_refused_with_the_arithmetic() {
        let path = Path::new("/model/model.gguf");
        assert_eq!(fits(path, 10, 10), Ok(()));
        let message = fits(path, 11, 10).unwrap_err().to_string();
        assert!(
            message.contains("11 bytes are still needed, 10 are free"),
            "{message}"
        );
        let here = std::env::temp_dir().join("x");
        assert!(matches!(
            check_room(&here, u64::MAX),
            Err(FetchError::DiskFull { .. })
        ));
        assert_eq!(check_room(&here, 0), Ok(()));
    }
}
