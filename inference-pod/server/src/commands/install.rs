//! `pagoda-engine install`: copies this program, so that a container of another image can run it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use crate::failure::Fatal;

/// Copies to `path`, whole or not at all.
pub fn run(path: &Path) -> Result<ExitCode, Fatal> {
    let failed = |what: &str, error: &std::io::Error| {
        Fatal::internal(format!("cannot {what} {}: {error}", path.display()))
    };
    let program = std::env::current_exe()
        .map_err(|error| failed("find this program to copy it to", &error))?;
    // The rename makes it appear complete: another container may be waiting for it.
    let partial = path.with_extension("partial");
    fs::copy(&program, &partial).map_err(|error| failed("copy this program to", &error))?;
    fs::set_permissions(&partial, Permissions::from_mode(0o755))
        .map_err(|error| failed("make executable", &error))?;
    fs::rename(&partial, path).map_err(|error| failed("move this program to", &error))?;
    Ok(ExitCode::SUCCESS)
}
