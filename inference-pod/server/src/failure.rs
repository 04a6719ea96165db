//! How the process ends when it cannot go on: a sentence on standard error, the same with its reason in the container's
//! termination log, and an exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pagoda_crds::wire::{FailureReason, TerminationMessage};

/// Overrides where the termination message goes.
const LOG_VARIABLE: &str = "PAGODA_TERMINATION_LOG";

/// Where the kubelet looks for it.
const DEFAULT_LOG: &str = "/dev/termination-log";

/// A failure that ends the process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fatal {
    /// The kind, for the operator's conditions.
    pub reason: FailureReason,
    /// A sentence for a person.
    pub message: String,
}

impl Fatal {
    /// A failure of a kind.
    pub fn new(reason: FailureReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// A configuration that cannot work.
    pub fn invalid_config(message: impl Into<String>) -> Self {
        Self::new(FailureReason::InvalidConfig, message)
    }

    /// A fault of ours or of the machine.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(FailureReason::Internal, message)
    }

    /// Writes the termination message where there is a place for it.
    pub fn report(&self) {
        let Some(path) = termination_log() else {
            return;
        };
        let message = TerminationMessage::new(self.reason, &self.message).to_json();
        if let Err(error) = std::fs::write(&path, message) {
            tracing::warn!(path = %path.display(), %error, "cannot write the termination message");
        }
    }

    /// See [`exit_code`].
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(exit_code(self.reason))
    }
}

/// A container has the file; a laptop does not, and must not get one.
fn termination_log() -> Option<PathBuf> {
    let overridden = std::env::var_os(LOG_VARIABLE).map(PathBuf::from);
    overridden
        .or_else(|| Some(PathBuf::from(DEFAULT_LOG)).filter(|path: &PathBuf| Path::exists(path)))
}

/// Exit codes, in the manner of `sysexits.h`. 0 is success, 2 a wrong command line, 143 a second SIGTERM.
pub fn exit_code(reason: FailureReason) -> u8 {
    match reason {
        FailureReason::InvalidModel => 65,
        FailureReason::ModelNotFound => 66,
        FailureReason::UnsupportedModel => 69,
        FailureReason::Internal => 70,
        FailureReason::OutOfMemory => 71,
        FailureReason::DiskFull => 73,
        FailureReason::DownloadFailed => 75,
        FailureReason::HashMismatch => 76,
        FailureReason::Unauthorized => 77,
        FailureReason::InvalidConfig => 78,
    }
}
