//! `pagoda-engine hold`: keeps a cached model from being evicted while a server that does not know of the cache reads it.

use std::path::Path;
use std::process::ExitCode;

use pagoda_crds::wire::FailureReason;
use pagoda_source::ModelLock;
use serde_json::json;

use super::signals;
use crate::failure::Fatal;

/// Holds the file until told to leave.
pub fn run(path: &Path) -> Result<ExitCode, Fatal> {
    let _lock = ModelLock::hold(path).map_err(|error| {
        let reason = match error.kind() {
            std::io::ErrorKind::NotFound => FailureReason::ModelNotFound,
            _ => FailureReason::Internal,
        };
        Fatal::new(reason, format!("cannot hold {}: {error}", path.display()))
    })?;
    println!("{}", json!({"event": "holding", "path": path}));
    signals::wait()?;
    Ok(ExitCode::SUCCESS)
}
