//! A sign of life of the engine's thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Written by the engine's loop at every turn, read by the liveness probe.
#[derive(Debug)]
pub struct Heartbeat {
    epoch: Instant,
    last_milliseconds: AtomicU64,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            last_milliseconds: AtomicU64::new(0),
        }
    }
}

impl Heartbeat {
    /// The loop is alive at `now`.
    pub fn beat(&self, now: Instant) {
        let milliseconds = now.saturating_duration_since(self.epoch).as_millis() as u64;
        self.last_milliseconds
            .store(milliseconds, Ordering::Relaxed);
    }

    /// How long ago the loop was last known to be alive.
    pub fn age(&self, now: Instant) -> Duration {
        let last =
            self.epoch + Duration::from_millis(self.last_milliseconds.load(Ordering::Relaxed));
        now.saturating_duration_since(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_until_the_next_beat() {
        let heartbeat = Heartbeat::default();
        let later = heartbeat.epoch + Duration::from_secs(90);
        assert_eq!(heartbeat.age(later), Duration::from_secs(90));
        heartbeat.beat(later);
        assert_eq!(
            heartbeat.age(later + Duration::from_secs(2)),
            Duration::from_secs(2)
        );
    }
}
