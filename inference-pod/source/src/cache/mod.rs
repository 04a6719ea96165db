//! Models shared by the containers of a node: one download each, under a cap that counts what is still to come.
//!
//! `DIR/KEY/model.gguf` is the model, and `DIR/KEY/lock` is held by whoever brings it: a lock that the kernel lets go
//! of when the holder dies. `DIR/lock` is held while room is counted and made. Whoever serves a model holds a shared
//! lock on the file itself ([`crate::ModelLock`]), and it stays.

mod folder;
mod room;
#[cfg(test)]
mod tests;
mod victims;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::digest::Sha256Digest;
use crate::error::FetchError;
use crate::fetch::{
    FetchRequest, Fetched, Phase, Progress, blocking, complete, open_partial, place,
};
use crate::lock;
use folder::{CacheFolder, Entry, ModelFolder, Told, is_key};
use room::CacheRoom;

/// How often somebody who waits looks again.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often progress is noted for those who wait.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Time that a pod is given from fetching a model to holding it, in which the model stays.
pub const PROTECTED: Duration = Duration::from_mins(10);

/// A cache and its rules.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Its directory; it exists.
    pub directory: PathBuf,
    /// Bytes of models it may hold at most, whole and in part.
    pub cap_bytes: u64,
    /// Time after a fetch in which a model is not evicted; [`PROTECTED`] unless there is a reason.
    pub protect: Duration,
}

/// Brings a model into the cache, as `DIR/KEY/model.gguf`, unless it is there; `key` is 64 hexadecimal digits. The
/// request's destination counts for nothing. While somebody else brings the same model, this waits and tells how far
/// that is.
pub async fn fetch_cached(
    request: &FetchRequest,
    cache: &Cache,
    key: &str,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<(PathBuf, Fetched), FetchError> {
    let fetched = fetch_unnamed(request, cache, key, &mut progress).await;
    fetched.map_err(|error| error.named(&request.uri))
}

async fn fetch_unnamed(
    request: &FetchRequest,
    cache: &Cache,
    key: &str,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(PathBuf, Fetched), FetchError> {
    if !is_key(key) {
        return Err(FetchError::failed("a cache key is 64 hexadecimal digits"));
    }
    let directory = CacheFolder::new(&cache.directory);
    let (own, _held) = hold(&directory, key, progress).await?;
    let request = FetchRequest {
        destination: own.model_path(),
        ..request.clone()
    };
    if let Some(fetched) = found(&own, request.sha256)? {
        return Ok((request.destination, fetched));
    }
    let room = Arc::new(CacheRoom {
        cache: directory,
        own: own.clone(),
        key: key.to_owned(),
        cap_bytes: cache.cap_bytes,
        protect: cache.protect,
        granted: Mutex::new(0),
    });
    let brought = bring(&request, &own, room, progress).await;
    own.settle();
    Ok((request.destination, brought?))
}

/// Waits for the right to bring the model, and notes that it was asked for.
async fn hold(
    cache: &CacheFolder,
    key: &str,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<(ModelFolder, File), FetchError> {
    let failed = |error: &io::Error| FetchError::local("", &cache.path().join(key), error);
    loop {
        let own = cache.model(key).map_err(|error| failed(&error))?;
        let held = own.try_hold().and_then(|held| {
            own.touch()?;
            Ok(held)
        });
        match held {
            Ok(Some(held)) => return Ok((own, held)),
            Ok(None) => {
                let told = own.told();
                progress(Progress {
                    phase: Phase::Sharing,
                    bytes: told.map_or(0, |told| told.bytes),
                    total_bytes: told.and_then(|told| told.total_bytes),
                });
                tokio::time::sleep(LOOK_EVERY).await;
            }
            // Evicted between making and locking: make it again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&error)),
        }
    }
}

/// The model, if it is there as it was downloaded and verified.
fn found(own: &ModelFolder, wanted: Option<Sha256Digest>) -> Result<Option<Fetched>, FetchError> {
    let recorded = own.entry().and_then(|entry| {
        let sha256: Sha256Digest = entry.sha256.parse().ok()?;
        Some((entry.bytes, sha256))
    });
    let trusted = recorded.filter(|(_, sha256)| wanted.is_none_or(|wanted| wanted == *sha256));
    if let Some((bytes, sha256)) = trusted {
        return Ok(Some(Fetched {
            bytes,
            sha256,
            was_present: true,
        }));
    }
    let discarded = own.discard();
    discarded.map_err(|error| FetchError::local("", &own.model_path(), &error))?;
    Ok(None)
}

async fn bring(
    request: &FetchRequest,
    own: &ModelFolder,
    room: Arc<CacheRoom>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Fetched, FetchError> {
    let mut teller = Teller {
        own: own.clone(),
        told: None,
    };
    let mut telling = |news: Progress| {
        teller.tell(&news);
        progress(news);
    };
    let opened = open_partial(request, &mut telling).await?;
    // A container of another user may have to go on with it; once it is whole, nobody changes it any more.
    lock::set_mode(opened.0.file(), 0o666);
    let whole = complete(request, opened, room, &mut telling).await?;
    lock::set_mode(whole.partial.file(), 0o644);
    let entry = Entry {
        bytes: whole.bytes,
        sha256: whole.sha256.to_string(),
        source: request.uri.to_string(),
    };
    let (folder, path) = (own.clone(), request.destination.clone());
    blocking(move || {
        let written = folder.write_entry(&entry);
        written.map_err(|error| FetchError::local("", &path, &error))
    })
    .await?;
    place(whole).await
}

/// Notes progress for those who wait.
struct Teller {
    own: ModelFolder,
    told: Option<Instant>,
}

impl Teller {
    fn tell(&mut self, progress: &Progress) {
        if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
            return;
        }
        self.told = Some(Instant::now());
        let told = Told {
            bytes: progress.bytes,
            total_bytes: progress.total_bytes,
        };
        // Those who wait see an older number; that is all.
        if let Err(error) = self.own.tell(told) {
            tracing::debug!(%error, "cannot note the progress");
        }
    }
}

/// Makes a directory that containers of any user may put models into.
pub fn prepare(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(directory, mode)
}
