//! A fetch from beginning to end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::digest::Sha256Digest;
use crate::download::{Means, Whole, download};
use crate::error::FetchError;
use crate::origin::Origin;
use crate::partial::{Partial, Restored, read_through};
use crate::retry::RetryPolicy;
use crate::room::{DiskRoom, Room};
use crate::uri::ModelUri;

/// Connections unless said otherwise.
pub const DEFAULT_CONNECTIONS: usize = 8;

/// What to fetch, where to, and how patiently.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// The source.
    pub uri: ModelUri,
    /// Path of the file to make. Its directory exists.
    pub destination: PathBuf,
    /// The hash the model must have.
    pub sha256: Option<Sha256Digest>,
    /// A mirror, or a service that speaks like the scheme's own. Checked by [`crate::parse_endpoint`].
    pub endpoint: Option<Url>,
    /// Region of an `s3://` source.
    pub region: Option<String>,
    /// Directory of credentials, one file a key, named as in the environment of the usual SDKs.
    pub credentials: Option<PathBuf>,
    /// Connections at most.
    pub connections: usize,
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
    /// A request without a hash, limit, credentials or own authority, and with the usual patience.
    pub fn new(uri: ModelUri, destination: impl Into<PathBuf>) -> Self {
        let (destination, retry) = (destination.into(), RetryPolicy::default());
        Self {
            uri,
            destination,
            sha256: None,
            endpoint: None,
            region: None,
            credentials: None,
            connections: DEFAULT_CONNECTIONS,
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
    /// Another process on this node brings them.
    Sharing,
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
/// has the wanted hash, or any where none is wanted. Can be dropped at any point and called again; whoever fetches to
/// the same destination meanwhile waits.
pub async fn fetch(
    request: &FetchRequest,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<Fetched, FetchError> {
    let fetched = fetch_unnamed(request, &mut progress).await;
    fetched.map_err(|error| error.named(&request.uri))
}

async fn fetch_unnamed(
    request: &FetchRequest,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Fetched, FetchError> {
    let existed = request.destination.exists();
    if let Some(present) = present(request, progress).await? {
        return Ok(present);
    }
    let opened = open_partial(request, progress).await?;
    // Whoever held the file until now may have brought it.
    if !existed && let Some(present) = present(request, progress).await? {
        opened.0.remove()?;
        return Ok(present);
    }
    let room = DiskRoom::of(opened.0.path().to_owned());
    let whole = complete(request, opened, room, progress).await?;
    place(whole).await
}

/// Brings what is missing of a part and verifies the whole. A file of another hash is removed.
pub(crate) async fn complete(
    request: &FetchRequest,
    (partial, restored): (Partial, Restored),
    room: Arc<dyn Room>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Whole, FetchError> {
    let origin = Arc::new(Origin::new(request)?);
    let means = Means {
        request: request.clone(),
        origin: origin.clone(),
        room,
    };
    let whole = download(means, partial, restored, progress).await?;
    let expected = [request.sha256, origin.expected_sha256()];
    let mut expected = expected.into_iter().flatten();
    match expected.find(|expected| *expected != whole.sha256) {
        None => Ok(whole),
        Some(expected) => {
            let found = whole.sha256;
            whole.partial.remove()?;
            Err(FetchError::HashMismatch {
                source_uri: String::new(),
                expected,
                found,
            })
        }
    }
}

/// Puts a whole file in its place, on disk.
pub(crate) async fn place(whole: Whole) -> Result<Fetched, FetchError> {
    let (bytes, sha256) = (whole.bytes, whole.sha256);
    blocking(move || whole.partial.place()).await?;
    Ok(Fetched {
        bytes,
        sha256,
        was_present: false,
    })
}

/// Runs what blocks on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FetchError> + Send + 'static,
) -> Result<T, FetchError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(FetchError::failed(format!("the fetch crashed: {error}"))))
}

/// The destination, if it is what is wanted.
async fn present(
    request: &FetchRequest,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Option<Fetched>, FetchError> {
    let (path, source) = (request.destination.clone(), request.uri.to_string());
    let (tell, told) = mpsc::unbounded_channel();
    let hashed = blocking(move || {
        hash(&path, &mut |read| _ = tell.send(read))
            .map_err(|error| FetchError::local(&source, &path, &error))
    });
    let Some((sha256, bytes)) = telling(hashed, told, progress).await? else {
        return Ok(None);
    };
    let is_wanted = request.sha256.is_none_or(|expected| expected == sha256);
    Ok(is_wanted.then_some(Fetched {
        bytes,
        sha256,
        was_present: true,
    }))
}

/// Hash and length of a file; `None` where there is none.
fn hash(
    path: &Path,
    progress: &mut dyn FnMut((u64, Option<u64>)),
) -> io::Result<Option<(Sha256Digest, u64)>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let total = file.metadata()?.len();
    let (mut hasher, mut read) = (Sha256::new(), 0);
    read_through(&file, &(0..total), &mut |bytes| {
        hasher.update(bytes);
        read += bytes.len() as u64;
        progress((read, Some(total)));
    })?;
    Ok(Some((Sha256Digest(hasher.finalize().into()), read)))
}

/// Opens the part of an earlier attempt, or an empty one.
pub(crate) async fn open_partial(
    request: &FetchRequest,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(Partial, Restored), FetchError> {
    let (source, identity) = (request.uri.to_string(), identity(request));
    let destination = request.destination.clone();
    let (tell, told) = mpsc::unbounded_channel();
    let opened = blocking(move || {
        let mut tell = |read| _ = tell.send((read, None));
        Partial::open(source, &identity, &destination, &mut tell)
    });
    telling(opened, told, progress).await
}

/// What a part is a part of: the source with all that tells it from another, credentials excepted.
fn identity(request: &FetchRequest) -> String {
    let uri = match &request.uri {
        ModelUri::Http(url) => url.to_string(),
        uri => uri.to_string(),
    };
    match &request.endpoint {
        Some(endpoint) => format!("{uri}\n{endpoint}"),
        None => uri,
    }
}

/// Passes on what is told of hashing while `work` goes on.
async fn telling<T>(
    work: impl Future<Output = Result<T, FetchError>>,
    mut told: mpsc::UnboundedReceiver<(u64, Option<u64>)>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<T, FetchError> {
    let mut tell = |(bytes, total_bytes)| {
        progress(Progress {
            phase: Phase::Hashing,
            bytes,
            total_bytes,
        });
    };
    tokio::pin!(work);
    let outcome = loop {
        tokio::select! {
            outcome = &mut work => break outcome,
            Some(news) = told.recv() => tell(news),
        }
    };
    while let Ok(news) = told.try_recv() {
        tell(news);
    }
    outcome
}
