//! The loop that sends what is due and gathers what has ended.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::arrivals::Arrival;
use super::chat::{Chatter, Outcome};
use super::prompt::prompt;
use super::report::{Report, Snapshot, Tally};
use super::target::Target;

/// A load to run.
pub struct Plan {
    /// Where to.
    pub target: Target,
    /// The model asked for.
    pub model: String,
    /// What is due when, in order of time.
    pub arrivals: Box<dyn Iterator<Item = Arrival> + Send>,
    /// The most requests open at once; one due beyond that is counted as not sent.
    pub max_in_flight: usize,
    /// The longest time for one request.
    pub timeout: Duration,
    /// Makes the prompts; the same seed makes the same ones.
    pub seed: u64,
}

/// Time between two looks at a running load.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs the plan, showing `observe` how it goes. When `stop` is ready nothing more is sent; requests that are open then are
/// waited for, as they are at the end.
pub async fn run(
    plan: Plan,
    stop: impl Future<Output = ()>,
    mut observe: impl FnMut(&Snapshot),
) -> Result<Report> {
    let texts = Arc::new(AtomicU64::new(0));
    let chatter = Chatter::new(plan.target, plan.model, plan.timeout, Arc::clone(&texts))
        .context("failed to build the HTTP client")?;
    let mut sender = Sender {
        chatter,
        seed: plan.seed,
        max_in_flight: plan.max_in_flight,
        open: JoinSet::new(),
        tally: Tally::new(),
        serial: 0,
    };
    let mut arrivals = plan.arrivals;
    let mut stop = pin!(stop);
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let began = Instant::now();
    let mut rates = Rates {
        at: began,
        sent: 0,
        texts: 0,
    };
    let mut next = arrivals.next();
    while next.is_some() || !sender.open.is_empty() {
        let due = next.as_ref().map_or(began, |arrival| began + arrival.due);
        tokio::select! {
            () = &mut stop, if next.is_some() => next = None,
            () = sleep_until(due), if next.is_some() => {
                if let Some(arrival) = next.take() {
                    sender.send(&arrival, due.elapsed());
                    next = arrivals.next();
                }
            }
            Some(ended) = sender.open.join_next() => sender.tally.ended(ended.context("a request's task failed")?),
            _ = look.tick() => observe(&rates.complete(sender.tally.snapshot(began.elapsed()), &texts)),
        }
    }
    let report = sender.tally.report(began.elapsed());
    Ok(report)
}

struct Sender {
    chatter: Chatter,
    seed: u64,
    max_in_flight: usize,
    open: JoinSet<Outcome>,
    tally: Tally,
    serial: u64,
}

impl Sender {
    fn send(&mut self, arrival: &Arrival, late: Duration) {
        self.serial += 1;
        if self.open.len() >= self.max_in_flight {
            self.tally.not_sent += 1;
            return;
        }
        self.tally.sent(late);
        let (chatter, arrival, unique) = (
            self.chatter.clone(),
            arrival.clone(),
            self.seed.wrapping_add(self.serial),
        );
        self.open.spawn(async move {
            chatter
                .chat(
                    &prompt(arrival.prompt_tokens, &arrival.prefix, unique),
                    arrival.max_tokens,
                )
                .await
        });
    }
}

/// Differences between two looks.
struct Rates {
    at: Instant,
    sent: u64,
    texts: u64,
}

impl Rates {
    fn complete(&mut self, mut snapshot: Snapshot, texts: &AtomicU64) -> Snapshot {
        let (now, texts) = (Instant::now(), texts.load(Ordering::Relaxed));
        let seconds = (now - self.at).as_secs_f64();
        if seconds > 0.0 {
            snapshot.sent_per_s = (snapshot.sent - self.sent) as f64 / seconds;
            snapshot.tokens_per_s = (texts - self.texts) as f64 / seconds;
        }
        *self = Self {
            at: now,
            sent: snapshot.sent,
            texts,
        };
        snapshot
    }
}

#[cfg(test)]
mod tests;
