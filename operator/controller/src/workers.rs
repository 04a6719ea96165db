//! Takes services from the queue and reconciles several at once.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use tracing::Instrument;

use crate::{
    context::Context,
    http_server::Health,
    key::Key,
    metrics::Outcome,
    reconcile::{Done, ReconcileError, reconcile},
    telemetry,
};

/// Every request in it is bounded; together they must not hold a place for ever.
const LIMIT: Duration = Duration::from_mins(3);
/// A missed event is made good after this long, give or take a quarter, so that thousands do not come at once.
const RESYNC: Duration = Duration::from_mins(10);
const SHORTEST_RETRY: Duration = Duration::from_millis(250);
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Reconciles until the process is asked to stop, and then lets what runs come to its end.
pub async fn run(context: Arc<Context>, health: Arc<Health>) {
    // Before all watches are read, an absent child may only be unread.
    if context.stores.wait_until_read().await.is_err() {
        return;
    }
    health.synced();
    let mut stop = context.stop.subscribe();
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = running.join_next() => {}
            key = context.queue.next(), if running.len() < context.settings.concurrency.into() => {
                running.spawn(turn(context.clone(), key));
            }
        }
    }
    while running.join_next().await.is_some() {}
}

async fn turn(context: Arc<Context>, key: Key) {
    let started = Instant::now();
    let span = telemetry::reconcile(&key);
    let caught = AssertUnwindSafe(timeout(LIMIT, reconcile(&context, &key)))
        .catch_unwind()
        .instrument(span.clone())
        .await;
    let done = match caught {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => Err(ReconcileError::Slow),
        // The hook has printed where; the other services go on.
        Err(_) => Err(ReconcileError::Panicked),
    };
    let result = done.as_ref().map_or("error", |done| done.result);
    span.record("result", result);
    let metrics = &context.metrics;
    metrics.reconciles.get_or_create(&Outcome { result }).inc();
    metrics
        .reconcile_seconds
        .observe(started.elapsed().as_secs_f64());
    let again = match done {
        Ok(done) => settle(&context, &key, &done),
        Err(error) => Some(retry(&context, &key, &error)),
    };
    context.queue.done(&key, again);
}

fn settle(context: &Context, key: &Key, done: &Done) -> Option<Duration> {
    context.remember(key, |memory| {
        memory.failures = 0;
        memory.failing_since = None;
        memory.failure_told = false;
    });
    let resync = done.exists.then(|| spread(key, RESYNC));
    done.again.into_iter().chain(resync).min()
}

/// Trying again waits twice as long each time, and for as long as the API server asks.
fn retry(context: &Context, key: &Key, error: &ReconcileError) -> Duration {
    let failures = context.remember(key, |memory| {
        memory.failing_since.get_or_insert_with(Instant::now);
        memory.failures = memory.failures.saturating_add(1);
        memory.failures
    });
    let delay = SHORTEST_RETRY
        .saturating_mul(1 << failures.min(10))
        .min(LONGEST_RETRY)
        .max(error.retry_after().unwrap_or_default());
    tracing::warn!(service = %key, %error, failures, "reconcile failed; it is tried again");
    spread(key, delay)
}

/// The same for a key each time, and different between keys.
fn spread(key: &Key, delay: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let quarter = delay / 4;
    delay.saturating_sub(quarter / 2) + quarter.mul_f64((hasher.finish() % 1024) as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_do_not_come_back_all_at_once() {
        let delays: Vec<Duration> = (0..200)
            .map(|n| spread(&Key::new("team", &format!("service-{n}")), RESYNC))
            .collect();
        assert!(delays.iter().all(|d| (525..=675).contains(&d.as_secs())));
        let early = delays.iter().filter(|d| **d < RESYNC).count();
        assert!((60..140).contains(&early), "{early} of 200 come early");
    }
}
