//! `pagoda-engine cache-prepare`: a node's cache directory, writable for the containers of any user.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use super::signals;
use crate::failure::Fatal;

/// What others need to put a model there.
const WRITABLE: u32 = 0o003;

/// Makes the directory; with `waits`, only looks whether that was done, and stays until told to leave.
pub fn run(directory: &Path, waits: bool) -> Result<ExitCode, Fatal> {
    if waits {
        check(directory)?;
        signals::wait()?;
        return Ok(ExitCode::SUCCESS);
    }
    pagoda_source::prepare(directory).map_err(|error| {
        Fatal::internal(format!(
            "cannot make {} writable for all: {error}; run this as the directory's owner",
            directory.display()
        ))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn check(directory: &Path) -> Result<(), Fatal> {
    let mode = std::fs::metadata(directory).map(|metadata| metadata.permissions().mode());
    match mode {
        Ok(mode) if mode & WRITABLE == WRITABLE => Ok(()),
        Ok(mode) => Err(Fatal::internal(format!(
            "{} has mode {:o}, pods cannot keep models there; run cache-prepare as its owner",
            directory.display(),
            mode & 0o7777
        ))),
        Err(error) => Err(Fatal::internal(format!(
            "cannot look at {}: {error}",
            directory.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_is_made_writable_and_one_that_is_not_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("deep/cache");
        super::run(&directory, false).unwrap();
        let mode = fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o777);
        super::check(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let error = super::check(&directory).unwrap_err();
        assert!(error.message.contains("755"), "{error}");
        assert!(super::check(&directory.join("absent")).is_err());
    }
}
