//! A fetch from beginning to end.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Url;
use sha2::Digest;
use tokio::fs::File;
use tokio::io::AsyncReadExt;

use crate::digest::Sha256Digest;
use crate::disk;
use crate::error::FetchError;
use crate::http::{self, Failure};
use crate::partial::{self, Partial};
use crate::retry::{Jitter, RetryPolicy};
use crate::uri::ModelUri;

const COPY_BYTES: usize = 1 << 20;

/// What to fetch, where to, and how patiently.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// The source.
    pub uri: ModelUri,
    /// Path of the file to make. Its directory exists.
    pub destination: PathBuf,
    /// The hash the model must have.
    pub sha256: Option<Sha256Digest>,
    /// Largest model to accept, in bytes.
    pub max_bytes: Option<u64>,
    /// PEM file of certificate authorities to trust beside the public ones.
    pub extra_ca_file: Option<PathBuf>,
    /// Patience.
    pub retry: RetryPolicy,
    /// Spreads the pauses of many pods; take a number that differs between them.
    pub jitter_seed: u64,
}

impl FetchRequest {
    /// A request without a hash, limit or own authority, and with the usual patience.
    pub fn new(uri: ModelUri, destination: impl Into<PathBuf>) -> Self {
        let (destination, retry) = (destination.into(), RetryPolicy::default());
        Self {
            uri,
            destination,
            sha256: None,
            max_bytes: None,
            extra_ca_file: None,
            retry,
            jitter_seed: 0,
        }
    }
}

/// A model that is in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetched {
    /// Its size.
    pub bytes: u64,
    /// Its hash.
    pub sha256: Sha256Digest,
    /// Whether it was there before.
    pub was_present: bool,
}

/// What is going on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Bytes that are already here are read for their hash.
    Hashing,
    /// Bytes come in.
    Fetching,
    /// An attempt failed; the next follows after a pause.
    Waiting {
        /// The pause.
        delay: Duration,
        /// Why the attempt failed, without secrets.
        reason: String,
    },
}

/// How far a fetch is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is going on.
    pub phase: Phase,
    /// Bytes hashed while hashing, bytes in place otherwise.
    pub bytes: u64,
    /// Bytes in all, where the source tells.
    pub total_bytes: Option<u64>,
}

/// Fetches a model. Returns at once, but for hashing, when the destination is there already and
/// has the wanted hash, or any where none is wanted. Can be dropped at any point and called again.
pub async fn fetch(
    request: &FetchRequest,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<Fetched, FetchError> {
    if let Some(present) = present(request, &mut progress).await? {
        return Ok(present);
    }
    let partial = match &request.uri {
        ModelUri::Http(url) => download(request, url, &mut progress).await,
        ModelUri::File(path) => copy(request, path, &mut progress).await,
    };
    let (bytes, sha256) = named(request, partial)?.complete(request.sha256).await?;
    Ok(Fetched {
        bytes,
        sha256,
        was_present: false,
    })
}

/// The destination, if it is what is wanted.
async fn present(
    request: &FetchRequest,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Option<Fetched>, FetchError> {
    let mut file = match File::open(&request.destination).await {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(local(request, &request.destination, &error)),
    };
    let total = file.metadata().await.ok().map(|metadata| metadata.len());
    let mut hashing = |bytes| {
        progress(Progress {
            phase: Phase::Hashing,
            bytes,
            total_bytes: total,
        });
    };
    let hashed = partial::hash(&mut file, &mut hashing).await;
    let (hasher, bytes) = hashed.map_err(|error| local(request, &request.destination, &error))?;
    let sha256 = Sha256Digest(hasher.finalize().into());
    let is_wanted = request.sha256.is_none_or(|expected| expected == sha256);
    Ok(is_wanted.then_some(Fetched {
        bytes,
        sha256,
        was_present: true,
    }))
}

async fn open_partial(
    request: &FetchRequest,
    secret_uri: &str,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Partial, FetchError> {
    Partial::open(
        request.uri.to_string(),
        secret_uri,
        &request.destination,
        &mut |bytes| {
            progress(Progress {
                phase: Phase::Hashing,
                bytes,
                total_bytes: None,
            });
        },
    )
    .await
}

async fn download(
    request: &FetchRequest,
    url: &Url,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Partial, FetchError> {
    let failed = |detail| FetchError::DownloadFailed {
        source_uri: String::new(),
        detail,
    };
    let client = http::client(request).map_err(failed)?;
    let mut partial = open_partial(request, url.as_str(), progress).await?;
    let mut jitter = Jitter::new(request.jitter_seed);
    let mut failures = 0;
    for attempt in 1.. {
        let before = partial.bytes();
        let mut moved = |bytes, total_bytes| {
            progress(Progress {
                phase: Phase::Fetching,
                bytes,
                total_bytes,
            });
        };
        let (reason, wish) =
            match http::attempt(&client, url, request, &mut partial, &mut moved).await {
                Ok(()) => return Ok(partial),
                Err(Failure::Fatal(error)) => return Err(error),
                Err(Failure::Transient { message, wish }) => (message, wish),
            };
        failures = if partial.bytes() > before {
            1
        } else {
            failures + 1
        };
        if failures >= request.retry.attempts || attempt >= request.retry.total_attempts {
            return Err(failed(format!(
                "{reason} ({attempt} attempts); check that the server is reachable and whole"
            )));
        }
        let delay = request.retry.delay(failures, wish, jitter.next());
        tracing::warn!(source = %request.uri, %reason, ?delay, "download interrupted");
        progress(Progress {
            phase: Phase::Waiting { delay, reason },
            bytes: partial.bytes(),
            total_bytes: None,
        });
        tokio::time::sleep(delay).await;
    }
    Err(failed("no attempt was allowed".into()))
}

async fn copy(
    request: &FetchRequest,
    path: &Path,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Partial, FetchError> {
    let mut source = File::open(path)
        .await
        .map_err(|error| unreadable(path, &error))?;
    let metadata = source
        .metadata()
        .await
        .map_err(|error| unreadable(path, &error))?;
    if !metadata.is_file() {
        let detail = format!(
            "{} is not a file; name the model file itself",
            path.display()
        );
        return Err(FetchError::DownloadFailed {
            source_uri: String::new(),
            detail,
        });
    }
    let total = metadata.len();
    if let Some(limit_bytes) = request.max_bytes.filter(|&limit| total > limit) {
        return Err(FetchError::TooLarge {
            source_uri: String::new(),
            bytes: total,
            limit_bytes,
        });
    }
    let mut partial = open_partial(request, &request.uri.to_string(), progress).await?;
    partial.restart(None).await?;
    disk::check_room(partial.path(), total)?;
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let read = source
            .read(&mut buffer)
            .await
            .map_err(|error| unreadable(path, &error))?;
        if read == 0 {
            return Ok(partial);
        }
        partial.write(&buffer[..read]).await?;
        progress(Progress {
            phase: Phase::Fetching,
            bytes: partial.bytes(),
            total_bytes: Some(total),
        });
    }
}

fn unreadable(path: &Path, error: &io::Error) -> FetchError {
    let detail = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound => FetchError::ModelNotFound {
            source_uri: String::new(),
            detail,
        },
        _ => FetchError::DownloadFailed {
            source_uri: String::new(),
            detail,
        },
    }
}

fn local(request: &FetchRequest, path: &Path, error: &io::Error) -> FetchError {
    FetchError::local(&request.uri.to_string(), path, error)
}

/// Fills in the source where the place of the failure did not know it.
fn named<T>(request: &FetchRequest, outcome: Result<T, FetchError>) -> Result<T, FetchError> {
    outcome.map_err(|mut error| {
        match &mut error {
            FetchError::ModelNotFound { source_uri, .. }
            | FetchError::HashMismatch { source_uri, .. }
            | FetchError::TooLarge { source_uri, .. }
            | FetchError::DownloadFailed { source_uri, .. }
                if source_uri.is_empty() =>
            {
                *source_uri = request.uri.to_string();
            }
            _ => {}
        }
        error
    })
}
