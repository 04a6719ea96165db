//! A download over one connection or several, from where it broke off to a verified file.

mod follow;
mod shared;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use crate::digest::Sha256Digest;
use crate::error::FetchError;
use crate::extents::Extents;
use crate::fetch::{FetchRequest, Phase, Progress};
use crate::origin::Origin;
use crate::partial::{Partial, Restored};
use crate::retry::Jitter;
use crate::room::Room;

use follow::follow;
use shared::Shared;
use worker::{End, work};

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// More connections to one server than this are rude and no faster.
pub(crate) const MOST_CONNECTIONS: usize = 64;

/// What a download is made with.
pub(crate) struct Means {
    pub(crate) request: FetchRequest,
    pub(crate) origin: Arc<Origin>,
    pub(crate) room: Arc<dyn Room>,
}

/// A file that is whole but not yet in its place.
pub(crate) struct Whole {
    pub(crate) partial: Partial,
    pub(crate) bytes: u64,
    pub(crate) sha256: Sha256Digest,
}

/// Downloads what is missing of `partial`.
pub(crate) async fn download(
    means: Means,
    partial: Partial,
    restored: Restored,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Whole, FetchError> {
    let retry = means.request.retry.clone();
    let mut jitter = Jitter::new(means.request.jitter_seed);
    let means = Arc::new(means);
    let (mut partial, mut restored) = (partial, restored);
    for restart in 1.. {
        let shared = Arc::new(Shared::new(means.clone(), partial, &restored.done));
        let outcome = run(&shared, restored.hasher.clone(), progress).await;
        partial = reclaimed(shared)?;
        let reason = match outcome? {
            Outcome::Whole { bytes, sha256 } => {
                return Ok(Whole {
                    partial,
                    bytes,
                    sha256,
                });
            }
            Outcome::Stale(reason) => reason,
        };
        partial.restart()?;
        tracing::warn!(source = %means.request.uri, %reason, "download begins anew");
        restored = Restored {
            done: Extents::default(),
            hasher: Sha256::new(),
        };
        if restart >= retry.attempts {
            return Err(FetchError::failed(format!(
                "{reason} (begun anew {restart} times); check that the server is whole"
            )));
        }
        let delay = retry.delay(restart, None, jitter.next());
        progress(Progress {
            phase: Phase::Waiting { delay, reason },
            bytes: 0,
            total_bytes: None,
        });
        tokio::time::sleep(delay).await;
    }
    Err(FetchError::failed("no attempt was allowed"))
}

enum Outcome {
    Whole { bytes: u64, sha256: Sha256Digest },
    Stale(String),
}

/// One pass: until the file is whole, or what is in place turns out to be worthless, or nobody can go on.
async fn run(
    shared: &Arc<Shared>,
    hasher: Sha256,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Outcome, FetchError> {
    let (events, mut heard) = mpsc::unbounded_channel();
    let mut team = Team {
        shared: shared.clone(),
        events,
        workers: JoinSet::new(),
        hired: 0,
        last_error: None,
    };
    team.hire();
    // In a set, so that it ends with this future.
    let mut hashing = JoinSet::new();
    hashing.spawn(follow(shared.clone(), hasher));
    let mut ticks = tokio::time::interval(TELL_EVERY);
    let outcome = loop {
        tokio::select! {
            Some(hashed) = hashing.join_next() => {
                break hashed.unwrap_or_else(|error| Err(crashed(&error))).map(whole);
            }
            Some(phase) = heard.recv() => progress(shared.progress(phase)),
            Some(ended) = team.workers.join_next() => {
                if let Some(outcome) = team.ended(ended) {
                    break outcome;
                }
            }
            () = shared.team_may_grow() => team.grow(),
            _ = ticks.tick() => progress(shared.progress(Phase::Fetching)),
        }
    };
    // Bytes on their way to disk must not arrive after a later pass has begun.
    shared.stop();
    while team.workers.join_next().await.is_some() {}
    while hashing.join_next().await.is_some() {}
    while let Ok(phase) = heard.try_recv() {
        progress(shared.progress(phase));
    }
    if let Ok(Outcome::Whole { .. }) = &outcome {
        progress(shared.progress(Phase::Fetching));
    }
    outcome
}

fn whole((hasher, bytes): (Sha256, u64)) -> Outcome {
    let sha256 = Sha256Digest(hasher.finalize().into());
    Outcome::Whole { bytes, sha256 }
}

/// The connections of a pass.
struct Team {
    shared: Arc<Shared>,
    events: mpsc::UnboundedSender<Phase>,
    workers: JoinSet<End>,
    hired: usize,
    last_error: Option<FetchError>,
}

impl Team {
    fn hire(&mut self) {
        let worker = work(self.shared.clone(), self.hired, self.events.clone());
        self.hired += 1;
        self.workers.spawn(worker);
    }

    /// Adds the connections that can help.
    fn grow(&mut self) {
        let most = self
            .shared
            .means
            .request
            .connections
            .clamp(1, MOST_CONNECTIONS);
        while self.hired < most {
            self.hire();
        }
    }

    /// What the end of a worker means for the pass; `None` while others go on.
    fn ended(&mut self, ended: Result<End, JoinError>) -> Option<Result<Outcome, FetchError>> {
        match ended {
            Err(error) => Some(Err(crashed(&error))),
            Ok(End::Fatal(error)) => Some(Err(error)),
            Ok(End::Stale(reason)) => Some(Ok(Outcome::Stale(reason))),
            // Fewer connections may be what the server wants.
            Ok(End::GaveUp(error)) => {
                self.last_error = Some(error);
                self.left()
            }
            Ok(End::NotNeeded) => self.left(),
        }
    }

    /// The end of the pass when nobody is left to go on.
    fn left(&mut self) -> Option<Result<Outcome, FetchError>> {
        let error = self.last_error.clone().filter(|_| self.workers.is_empty());
        error.map(Err)
    }
}

fn crashed(error: &JoinError) -> FetchError {
    FetchError::failed(format!("the download crashed: {error}"))
}

/// The file, once everybody else has let go of it.
fn reclaimed(shared: Arc<Shared>) -> Result<Partial, FetchError> {
    Arc::into_inner(shared)
        .map(Shared::into_partial)
        .ok_or_else(|| FetchError::failed("the download did not come to rest"))
}
