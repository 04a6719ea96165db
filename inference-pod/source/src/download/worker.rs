//! One connection: claims pieces and brings them, each resumed and tried again on its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::shared::{Ranges, Shared, Verdict, piece_bytes};
use crate::error::FetchError;
use crate::fetch::Phase;
use crate::origin::{Body, Failure, Opened, Terms, Wanted, transient};
use crate::partial::Unnoted;
use crate::retry::Jitter;

/// Bytes collected before they are written.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes after which what is written is noted: what a killed process loses by connection.
const NOTE_BYTES: u64 = 8 << 20;
/// An attempt that brings this much is not one of those that are counted.
const SUBSTANTIAL_BYTES: u64 = 1 << 20;

/// How a worker ends.
pub(super) enum End {
    /// There is nothing to do for it.
    NotNeeded,
    /// Its patience is over.
    GaveUp(FetchError),
    /// Nobody can go on.
    Fatal(FetchError),
    /// What is in place is worthless.
    Stale(String),
}

/// Works until told to stop or unable to go on.
pub(super) async fn work(
    shared: Arc<Shared>,
    connection: usize,
    events: mpsc::UnboundedSender<Phase>,
) -> End {
    let seed = shared.means.request.jitter_seed ^ ((connection as u64) << 32);
    let mut worker = Worker {
        stopped: shared.stopped(),
        shared,
        connection,
        events,
        patience: Patience {
            failures: 0,
            jitter: Jitter::new(seed),
        },
    };
    let end = worker.run().await;
    worker.shared.state().plan.release(connection);
    worker.shared.announce();
    end
}

struct Worker {
    shared: Arc<Shared>,
    connection: usize,
    events: mpsc::UnboundedSender<Phase>,
    stopped: watch::Receiver<bool>,
    patience: Patience,
}

struct Patience {
    /// Failures in a row without a byte.
    failures: u32,
    jitter: Jitter,
}

impl Worker {
    async fn run(&mut self) -> End {
        loop {
            let Some(start) = self.piece().await else {
                return End::NotNeeded;
            };
            let mut sink = Sink::new(self.shared.clone(), self.connection, start);
            let outcome = self.attempt(&mut sink).await;
            let brought = sink.at - start;
            let outcome = match (sink.finish().await, outcome) {
                (Err(error), _) => Err(Failure::Fatal(error)),
                (Ok(()), outcome) => outcome,
            };
            match outcome {
                Ok(Verdict::Bytes) => self.patience.failures = 0,
                Ok(Verdict::NoRanges | Verdict::Stopped) => return End::NotNeeded,
                Err(Failure::Fatal(error)) => return End::Fatal(error),
                Err(Failure::Stale(reason)) => return End::Stale(reason),
                Err(Failure::Transient { message, wish }) => {
                    if let Some(error) = self.lose_patience(&message, brought) {
                        return End::GaveUp(error);
                    }
                    self.pause(message, wish).await;
                }
            }
        }
    }

    /// What comes of `work`, unless the download is over first. Nothing that touches the file may be in it.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            done = work => Some(done),
            _ = stopped.wait_for(|stopped| *stopped) => None,
        }
    }

    /// Where the piece to fetch begins; waits while others have them all.
    async fn piece(&self) -> Option<u64> {
        loop {
            let change = self.shared.change();
            tokio::pin!(change);
            change.as_mut().enable();
            {
                let mut state = self.shared.state();
                if self.connection > 0 && state.ranges == Ranges::Refused || *self.stopped.borrow()
                {
                    return None;
                }
                let claim = state.plan.claimed_by(self.connection);
                if let Some(claim) = claim.or_else(|| state.plan.claim(self.connection)) {
                    return Some(claim.start);
                }
            }
            self.unless_stopped(change).await?;
        }
    }

    async fn attempt(&self, sink: &mut Sink) -> Result<Verdict, Failure> {
        let start = sink.at;
        if start > 0 && !self.shared.is_resumable() {
            return Err(Failure::Stale(
                "the server names no version, starting anew".into(),
            ));
        }
        let stall = self.shared.means.request.retry.stall_timeout;
        let end = self.request_end();
        let asked = tokio::time::timeout(stall, self.ask(start, end));
        let Some(opened) = self.unless_stopped(asked).await else {
            return Ok(Verdict::Stopped);
        };
        let opened = opened.map_err(|_| transient(format!("no answer within {stall:?}")))??;
        let answer = match opened {
            Opened::Bytes(answer) => answer,
            Opened::Ended { total } => return self.ended(start, total),
        };
        match self.judge(start, answer.terms).await? {
            Verdict::Bytes => self.receive(answer.body, end.is_none(), sink).await,
            verdict => Ok(verdict),
        }
    }

    /// Where a request ends. The first connection asks for all there is until it is known that it need not: others
    /// will share the work, or parts of the file are in place already, and what a stream carries beyond its claim
    /// is sent for nothing.
    fn request_end(&self) -> Option<u64> {
        let state = self.shared.state();
        let shares = self.shared.means.request.connections > 1 && state.plan.has_done();
        let is_bounded = self.connection > 0 || state.ranges == Ranges::Work || shares;
        let claim = state.plan.claimed_by(self.connection);
        claim
            .map(|claim| claim.end)
            .filter(|end| is_bounded && *end < u64::MAX)
    }

    async fn ask(&self, start: u64, end: Option<u64>) -> Result<Opened, Failure> {
        let validator = self.shared.state().validator.clone();
        let wanted = Wanted {
            start,
            end,
            validator: validator.as_ref(),
        };
        self.shared.means.origin.open(wanted).await
    }

    /// The server has nothing at `start`: fine where that is the end.
    fn ended(&self, start: u64, total: Option<u64>) -> Result<Verdict, Failure> {
        let mut state = self.shared.state();
        if start > 0 && total == Some(start) && state.plan.prefix_end() == start {
            state.plan.set_total(start, piece_bytes(start));
            drop(state);
            self.shared.announce();
            return Ok(Verdict::Bytes);
        }
        Err(Failure::Stale(
            "the server has fewer bytes than were fetched, starting anew".into(),
        ))
    }

    /// Judging may wait for room, so it happens off the runtime's threads.
    async fn judge(&self, start: u64, terms: Terms) -> Result<Verdict, Failure> {
        let (shared, connection) = (self.shared.clone(), self.connection);
        let judged = tokio::task::spawn_blocking(move || shared.judge(connection, start, &terms));
        judged
            .await
            .unwrap_or_else(|error| Err(transient(error.to_string())))
    }

    async fn receive(
        &self,
        mut body: Body,
        is_open_ended: bool,
        sink: &mut Sink,
    ) -> Result<Verdict, Failure> {
        let stall = self.shared.means.request.retry.stall_timeout;
        let mut chunk = Bytes::new();
        loop {
            let Some(end) = self.claim_end(is_open_ended, sink).await? else {
                return Ok(Verdict::Bytes);
            };
            if chunk.is_empty() {
                let next = tokio::time::timeout(stall, body.chunk());
                let Some(next) = self.unless_stopped(next).await else {
                    return Ok(Verdict::Stopped);
                };
                let next = next.map_err(|_| transient(format!("no bytes for {stall:?}")))??;
                let Some(next) = next else {
                    return self.end_of_body(sink).await;
                };
                chunk = next;
                continue;
            }
            let length = (end - sink.at).min(chunk.len() as u64) as usize;
            self.shared.check_size(sink.at + length as u64)?;
            sink.push(&chunk.split_to(length)).await?;
        }
    }

    /// Where the claim ends, after claiming what follows if the stream goes on into it. `None`: nothing of what
    /// follows is ours.
    async fn claim_end(
        &self,
        is_open_ended: bool,
        sink: &mut Sink,
    ) -> Result<Option<u64>, Failure> {
        let claimed = self.shared.state().plan.claimed_by(self.connection);
        if let Some(claim) = claimed.filter(|claim| sink.at < claim.end) {
            return Ok(Some(claim.end));
        }
        sink.note().await?;
        loop {
            let change = self.shared.change();
            tokio::pin!(change);
            change.as_mut().enable();
            {
                let mut state = self.shared.state();
                let extended = is_open_ended
                    .then(|| state.plan.extend(self.connection, sink.at))
                    .flatten();
                let is_undecided = is_open_ended
                    && state.may_grow
                    && state.ranges != Ranges::Work
                    && state.plan.total() != Some(sink.at);
                if extended.is_some() || !is_undecided {
                    return Ok(extended.map(|claim| claim.end));
                }
            }
            // The others are about to learn whether there are ranges. Where there are none, this stream is all there is,
            // and they give back what they hold.
            if self.unless_stopped(change).await.is_none() {
                return Ok(None);
            }
        }
    }

    /// The stream is over: the file is, where its length was not told.
    async fn end_of_body(&self, sink: &mut Sink) -> Result<Verdict, Failure> {
        sink.note().await?;
        let total = {
            let mut state = self.shared.state();
            let total = state.plan.total();
            if total.is_none() {
                state.plan.set_total(sink.at, piece_bytes(sink.at));
            }
            total
        };
        let Some(total) = total else {
            self.shared.announce();
            return Ok(Verdict::Bytes);
        };
        Err(transient(format!(
            "the connection ended at byte {} of {total}",
            sink.at
        )))
    }

    fn lose_patience(&mut self, message: &str, brought: u64) -> Option<FetchError> {
        let retry = &self.shared.means.request.retry;
        self.patience.failures = if brought > 0 {
            1
        } else {
            self.patience.failures + 1
        };
        let attempts = {
            let mut state = self.shared.state();
            state.attempts += u32::from(brought < SUBSTANTIAL_BYTES);
            state.attempts
        };
        if self.patience.failures < retry.attempts && attempts < retry.total_attempts {
            return None;
        }
        Some(FetchError::failed(format!(
            "{message} ({attempts} attempts); check that the server is reachable and whole"
        )))
    }

    async fn pause(&mut self, reason: String, wish: Option<Duration>) {
        let retry = &self.shared.means.request.retry;
        let delay = retry.delay(self.patience.failures, wish, self.patience.jitter.next());
        tracing::warn!(source = %self.shared.means.request.uri, %reason, ?delay, "download interrupted");
        // Whoever listened may be gone, which is no concern of ours.
        let _ = self.events.send(Phase::Waiting { delay, reason });
        let _ = tokio::time::timeout(delay, self.stopped.wait_for(|stopped| *stopped)).await;
    }
}

/// Collects bytes of one stream, writes and notes them.
struct Sink {
    shared: Arc<Shared>,
    connection: usize,
    /// Where the next byte goes.
    at: u64,
    buffer: Vec<u8>,
    unnoted: Unnoted,
}

impl Sink {
    fn new(shared: Arc<Shared>, connection: usize, at: u64) -> Self {
        Self {
            shared,
            connection,
            at,
            buffer: Vec::new(),
            unnoted: Unnoted::at(at),
        }
    }

    async fn push(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        self.shared.receive(bytes.len() as u64);
        self.at += bytes.len() as u64;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= WRITE_BYTES {
            self.write(self.unnoted.bytes() + self.buffer.len() as u64 >= NOTE_BYTES)
                .await?;
        }
        Ok(())
    }

    /// Writes what was collected and notes it.
    async fn note(&mut self) -> Result<(), FetchError> {
        self.write(true).await
    }

    async fn write(&mut self, notes: bool) -> Result<(), FetchError> {
        let buffer = std::mem::take(&mut self.buffer);
        let unnoted = std::mem::replace(&mut self.unnoted, Unnoted::at(self.at));
        let (shared, connection, at) = (self.shared.clone(), self.connection, self.at);
        let written = tokio::task::spawn_blocking(move || {
            put(&shared, connection, at, buffer, unnoted, notes)
        });
        let (buffer, unnoted) = written
            .await
            .unwrap_or_else(|error| Err(FetchError::failed(format!("writing crashed: {error}"))))?;
        (self.buffer, self.unnoted) = (buffer, unnoted);
        Ok(())
    }

    /// Keeps what came, whatever happened to the stream.
    async fn finish(mut self) -> Result<(), FetchError> {
        self.note().await
    }
}

/// Writes `buffer`, which ends at `at`. Blocks the thread.
fn put(
    shared: &Shared,
    connection: usize,
    at: u64,
    mut buffer: Vec<u8>,
    mut unnoted: Unnoted,
    notes: bool,
) -> Result<(Vec<u8>, Unnoted), FetchError> {
    if !buffer.is_empty() {
        if shared.state().plan.total().is_none() {
            shared.means.room.grow(at)?;
        }
        let start = at - buffer.len() as u64;
        shared.with_partial(|partial| partial.write(&buffer, start))?;
        unnoted.add(&buffer);
        buffer.clear();
    }
    if notes {
        shared.note(connection, &unnoted)?;
        unnoted = Unnoted::at(at);
    }
    Ok((buffer, unnoted))
}
