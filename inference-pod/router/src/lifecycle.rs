//! Where this process is between start and end, and whether it still moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// What the process does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It takes them.
    Serving,
    /// It is about to end: not ready, but takes those that still come.
    Leaving,
    /// It finishes those it has.
    Draining,
}

/// Shared by everything that must know.
#[derive(Debug)]
pub struct Lifecycle {
    phase: watch::Sender<Phase>,
    started: Instant,
    last_beat_ms: AtomicU64,
}

const BEAT: Duration = Duration::from_secs(1);
/// A runtime that has not run a due task for so long does not serve anybody.
const DEAD_AFTER: Duration = Duration::from_secs(15);

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Serving),
            started: Instant::now(),
            last_beat_ms: AtomicU64::new(0),
        }
    }
}

impl Lifecycle {
    /// Goes on to a later phase; never back.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            if later {
                *now = phase;
            }
            later
        });
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until the phase is `phase` or later.
    pub async fn reached(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        // The sender lives as long as `self`: this ends only with the phase.
        let _ = phases.wait_for(|now| *now >= phase).await;
    }

    /// Notes once a second that the runtime it is spawned on makes progress.
    pub async fn beat(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(BEAT);
        loop {
            ticks.tick().await;
            self.last_beat_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// Whether the runtime has made progress lately.
    pub fn is_alive(&self) -> bool {
        self.is_alive_at(self.now_ms())
    }

    fn is_alive_at(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.last_beat_ms.load(Ordering::Relaxed))
            < DEAD_AFTER.as_millis() as u64
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_only_go_forward() {
        let lifecycle = Lifecycle::default();
        lifecycle.enter(Phase::Draining);
        lifecycle.enter(Phase::Leaving);
        assert_eq!(lifecycle.phase(), Phase::Draining);
    }

    #[test]
    fn a_runtime_that_stopped_beating_is_dead() {
        let lifecycle = Lifecycle::default();
        lifecycle.last_beat_ms.store(1000, Ordering::Relaxed);
        assert!(lifecycle.is_alive_at(15_999) && !lifecycle.is_alive_at(16_000));
    }
}
