//! What the connections of a download share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::{Notify, watch};

use super::Means;
use crate::error::FetchError;
use crate::extents::{Extents, Plan};
use crate::fetch::{Phase, Progress};
use crate::journal::Validator;
use crate::origin::{Failure, Terms, is_same_version, transient};
use crate::partial::{Partial, Unnoted};

/// Pieces are no smaller: below, the pauses between requests count.
const SMALLEST_PIECE_BYTES: u64 = 8 << 20;
/// Pieces are no larger: above, the last ones keep one connection busy while others are done.
const LARGEST_PIECE_BYTES: u64 = 32 << 20;
/// Pieces that a file is cut into unless that makes them too small or large.
const PIECES: u64 = 128;

/// What is known of the server's ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranges {
    Unknown,
    Work,
    Refused,
}

/// State under the lock.
pub(super) struct State {
    pub(super) plan: Plan,
    pub(super) validator: Option<Validator>,
    pub(super) ranges: Ranges,
    /// Whether an answer has told what is being fetched.
    is_described: bool,
    /// Whether more connections were asked for.
    pub(super) may_grow: bool,
    /// Attempts that failed without bringing much.
    pub(super) attempts: u32,
}

impl State {
    /// Whether an answer is of the version that is being fetched, as far as it says.
    fn is_same(&self, terms: &Terms) -> bool {
        let (known, told) = (self.plan.total(), terms.total);
        let has_same_length = known.is_none() || told.is_none() || known == told;
        has_same_length && is_same_version(terms.validator.as_ref(), self.validator.as_ref())
    }

    /// Takes in an answer; says whether it is the first.
    fn learn(&mut self, terms: &Terms) -> bool {
        let is_first = !self.is_described;
        if is_first {
            self.is_described = true;
            self.validator.clone_from(&terms.validator);
        }
        if let (Some(total), None) = (terms.total, self.plan.total()) {
            self.plan.set_total(total, piece_bytes(total));
        }
        if terms.is_ranged {
            self.ranges = Ranges::Work;
        }
        is_first
    }

    /// Whether more connections can help, and were not asked for yet.
    fn begins_to_grow(&mut self) -> bool {
        let begins = !self.may_grow
            && self.ranges != Ranges::Refused
            && self.plan.total().is_some()
            && self.plan.has_unclaimed();
        self.may_grow |= begins;
        begins
    }
}

/// A download under way.
pub(crate) struct Shared {
    pub(super) means: Arc<Means>,
    partial: RwLock<Partial>,
    state: Mutex<State>,
    /// Bytes received or restored.
    received: AtomicU64,
    changed: Notify,
    growth: Notify,
    stopped: watch::Sender<bool>,
}

impl Shared {
    pub(super) fn new(means: Arc<Means>, partial: Partial, done: &Extents) -> Self {
        let header = partial.header();
        let piece = header.total.map_or(SMALLEST_PIECE_BYTES, piece_bytes);
        let state = State {
            plan: Plan::new(header.total, piece, done.clone()),
            validator: header.validator.clone(),
            ranges: Ranges::Unknown,
            is_described: done.bytes() > 0,
            may_grow: false,
            attempts: 0,
        };
        Self {
            means,
            partial: RwLock::new(partial),
            state: Mutex::new(state),
            received: AtomicU64::new(done.bytes()),
            changed: Notify::new(),
            growth: Notify::new(),
            stopped: watch::channel(false).0,
        }
    }

    pub(super) fn into_partial(self) -> Partial {
        self.partial
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Each change is made whole under the lock, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file and its journal.
    pub(super) fn with_partial<T>(&self, act: impl FnOnce(&Partial) -> T) -> T {
        act(&self.partial.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn progress(&self, phase: Phase) -> Progress {
        Progress {
            phase,
            bytes: self.received.load(Ordering::Relaxed),
            total_bytes: self.state().plan.total(),
        }
    }

    pub(super) fn receive(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub(super) fn stopped(&self) -> watch::Receiver<bool> {
        self.stopped.subscribe()
    }

    /// Wakes whoever waits for the state to change.
    pub(super) fn announce(&self) {
        self.changed.notify_waiters();
    }

    /// Resolves at the next [`Self::announce`] after this call.
    pub(super) fn change(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Resolves when more connections may help.
    pub(super) async fn team_may_grow(&self) {
        self.growth.notified().await;
    }

    /// Whether bytes of two requests can be put together without mixing two versions unnoticed.
    pub(super) fn is_resumable(&self) -> bool {
        self.state().validator.is_some() || self.is_verified()
    }

    fn is_verified(&self) -> bool {
        self.means.request.sha256.is_some() || self.means.origin.expected_sha256().is_some()
    }

    /// Judges an answer to `connection`, whose claim begins at `start`, and makes the plan fit it. May block.
    pub(super) fn judge(
        &self,
        connection: usize,
        start: u64,
        terms: &Terms,
    ) -> Result<Verdict, Failure> {
        let (is_same, ranges) = {
            let state = self.state();
            (state.is_same(terms), state.ranges)
        };
        if is_same && terms.start == start {
            self.admit(terms)?;
            return Ok(Verdict::Bytes);
        }
        if !is_same || terms.is_ranged {
            return Err(Failure::Stale(
                "the file changed on the server, starting anew".into(),
            ));
        }
        match ranges {
            Ranges::Work => Err(transient("the server answers a range with the whole file")),
            _ if connection > 0 => {
                self.state().ranges = Ranges::Refused;
                Ok(Verdict::NoRanges)
            }
            _ => Err(Failure::Stale(
                "the server sends the file from its start, starting anew".into(),
            )),
        }
    }

    /// Takes in what an answer tells of the whole.
    fn admit(&self, terms: &Terms) -> Result<(), FetchError> {
        if let Some(total) = terms.total {
            self.check_size(total)?;
            let present = self.received.load(Ordering::Relaxed);
            self.means.room.reserve(total, present)?;
        }
        let is_first = self.state().learn(terms);
        if is_first {
            let mut partial = self.partial.write().unwrap_or_else(PoisonError::into_inner);
            partial.describe(terms.validator.clone(), terms.total)?;
        }
        let may_share = !terms.refuses_ranges
            && self.is_resumable()
            && self.means.request.connections > 1
            && self.means.origin.gains_by_connections();
        if may_share && self.state().begins_to_grow() {
            self.growth.notify_one();
        }
        self.announce();
        Ok(())
    }

    /// Refuses a model over the limit.
    pub(super) fn check_size(&self, bytes: u64) -> Result<(), FetchError> {
        match self.means.request.max_bytes {
            Some(limit_bytes) if bytes > limit_bytes => Err(FetchError::TooLarge {
                source_uri: String::new(),
                bytes,
                limit_bytes,
            }),
            _ => Ok(()),
        }
    }

    /// Notes what a connection has written, and moves its claim behind it. Blocks the thread.
    pub(super) fn note(&self, connection: usize, unnoted: &Unnoted) -> Result<(), FetchError> {
        if unnoted.bytes() > 0 {
            let stretch = unnoted.stretch();
            self.with_partial(|partial| partial.note(&stretch))?;
            self.state().plan.advance(connection, stretch.range().end);
            self.announce();
        }
        Ok(())
    }
}

/// What an answer is good for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Bytes that are wanted.
    Bytes,
    /// Nothing: only one connection can be used.
    NoRanges,
    /// Nothing: the download is over.
    Stopped,
}

pub(super) fn piece_bytes(total: u64) -> u64 {
    (total / PIECES).clamp(SMALLEST_PIECE_BYTES, LARGEST_PIECE_BYTES)
}
