//! What can go wrong with a fetch, each with what to do about it.

use std::io;
use std::path::Path;

use crate::digest::Sha256Digest;
use crate::uri::ModelUri;

/// What helps against a full disk.
pub(crate) const MORE_ROOM: &str = "give the model's volume more room";

/// Why a model is not there. Each variant is one of the reasons a service's status shows; sources
/// are named without credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// Nothing is at the source.
    #[error("no model at {source_uri}: {detail}; check the URI")]
    ModelNotFound {
        /// Where it was looked for.
        source_uri: String,
        /// What the server or the file system said.
        detail: String,
    },
    /// The source wants credentials, or other ones.
    #[error("{source_uri} refuses access: {detail}")]
    Unauthorized {
        /// Where it is.
        source_uri: String,
        /// What the server said and what to do.
        detail: String,
    },
    /// The bytes are not the expected ones. What was fetched is removed, so a retry fetches anew.
    #[error(
        "the model at {source_uri} has SHA-256 {found}, expected {expected}; correct the hash if the model was replaced \
         on purpose, otherwise find out who changed it"
    )]
    HashMismatch {
        /// Where it came from.
        source_uri: String,
        /// The hash asked for.
        expected: Sha256Digest,
        /// The hash of what came.
        found: Sha256Digest,
    },
    /// The disk cannot hold the model.
    #[error("disk full at {path}: {detail}")]
    DiskFull {
        /// The file that was being written.
        path: String,
        /// Bytes needed and free where they are known, and what to do.
        detail: String,
    },
    /// The model is larger than allowed.
    #[error(
        "the model at {source_uri} has {bytes} bytes or more, the limit is {limit_bytes}; raise the limit or choose a smaller model"
    )]
    TooLarge {
        /// Where it is.
        source_uri: String,
        /// Its size, as far as known.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Anything else that kept the model from coming.
    #[error("cannot fetch {source_uri}: {detail}")]
    DownloadFailed {
        /// Where it is.
        source_uri: String,
        /// What failed and what to do.
        detail: String,
    },
}

impl FetchError {
    /// A failure whose source is filled in by [`Self::named`].
    pub(crate) fn failed(detail: impl Into<String>) -> Self {
        Self::DownloadFailed {
            source_uri: String::new(),
            detail: detail.into(),
        }
    }

    /// Fills in the source where the place of the failure did not know it.
    pub(crate) fn named(mut self, uri: &ModelUri) -> Self {
        match &mut self {
            Self::ModelNotFound { source_uri, .. }
            | Self::Unauthorized { source_uri, .. }
            | Self::HashMismatch { source_uri, .. }
            | Self::TooLarge { source_uri, .. }
            | Self::DownloadFailed { source_uri, .. }
                if source_uri.is_empty() =>
            {
                *source_uri = uri.to_string();
            }
            _ => {}
        }
        self
    }

    /// A failure to read or write a local file.
    pub(crate) fn local(source_uri: &str, path: &Path, error: &io::Error) -> Self {
        if is_disk_full(error) {
            return Self::DiskFull {
                path: path.display().to_string(),
                detail: format!("{error}; {MORE_ROOM}"),
            };
        }
        Self::DownloadFailed {
            source_uri: source_uri.to_owned(),
            detail: format!("{}: {error}", path.display()),
        }
    }
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
