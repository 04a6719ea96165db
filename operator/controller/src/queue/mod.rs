//! What is to be reconciled, and when.
//!
//! # Guarantees
//! A service is never handed out twice at once. A change that comes while it is being reconciled leads to another reconcile
//! after it. Several requests for one service count as one, at the earliest of their times. Time is the monotonic clock: a
//! wall clock that jumps moves nothing.

mod schedule;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::sleep_until};

use crate::key::Key;
use schedule::Schedule;

/// The queue; one task takes from it, anyone adds to it.
#[derive(Debug, Default)]
pub struct Queue {
    schedule: Mutex<Schedule>,
    changed: Notify,
}

impl Queue {
    /// Asks for a reconcile after a delay, or sooner if one was asked for sooner. A short delay makes one reconcile of changes
    /// that come together.
    pub fn add(&self, key: Key, delay: Duration) {
        let now = Instant::now();
        if self.lock().add(key, now + delay) {
            self.changed.notify_one();
        }
    }

    /// Waits for the next service to reconcile. Whoever takes one must call [`Self::done`].
    pub async fn next(&self) -> Key {
        loop {
            let due = {
                let mut schedule = self.lock();
                match schedule.take(Instant::now()) {
                    Ok(key) => return key,
                    Err(due) => due,
                }
            };
            match due {
                None => self.changed.notified().await,
                Some(due) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = sleep_until(due.into()) => {}
                },
            }
        }
    }

    /// A reconcile ended, and wants another after this long even if nothing changes.
    pub fn done(&self, key: &Key, again: Option<Duration>) {
        let now = Instant::now();
        self.lock().done(key, again.map(|delay| now + delay), now);
        self.changed.notify_one();
    }

    /// How long no reconcile has ended although some were due or running.
    pub fn stuck(&self) -> Duration {
        self.lock().stuck(Instant::now())
    }

    /// Services that wait for their turn now, and ones that are being reconciled.
    pub fn depth(&self) -> (usize, usize) {
        self.lock().depth(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_is_woken_by_an_earlier_request() {
        let queue = std::sync::Arc::new(Queue::default());
        queue.add(Key::new("a", "late"), Duration::from_hours(1));
        let waiter = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next().await }
        });
        tokio::task::yield_now().await;
        queue.add(Key::new("a", "now"), Duration::ZERO);
        assert_eq!(waiter.await.expect("no panic"), Key::new("a", "now"));
    }
}
