//! What clients felt within the window of a service: a few histograms that follow each other.

use super::{histogram::Histogram, tuning::TAIL_OBSERVATIONS};
use crate::autoscale::Millis;

/// Parts of a window. One of them is always beginning, so a window is told from two thirds to all of it.
const PARTS: usize = 3;

/// Latencies of the last while, of all pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyWindow {
    parts: [Histogram; PARTS],
    at: usize,
    began: Millis,
}

impl LatencyWindow {
    /// Time passes: forgets what is older than the window.
    pub fn pass(&mut self, window: Millis, now: Millis) {
        let part = (window / PARTS as u64).max(1);
        let passed = now.saturating_sub(self.began) / part;
        if passed == 0 {
            return;
        }
        for _ in 0..passed.min(PARTS as u64) {
            self.at = (self.at + 1) % PARTS;
            self.parts[self.at].clear();
        }
        self.began = self.began.saturating_add(passed.saturating_mul(part));
    }

    /// Takes in what a pod observed from one look to the next.
    pub fn note(&mut self, earlier: &Histogram, now: &Histogram) {
        self.parts[self.at].add_growth(earlier, now);
    }

    /// The percentile in milliseconds; none without observations.
    pub fn percentile_millis(&self, percentile: u32) -> Option<u32> {
        let micros = Histogram::percentile_micros_of(&self.parts, percentile)?;
        Some(u32::try_from(micros.div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// Whether enough observations lie above the percentile for it to be more than chance.
    pub fn is_firm(&self, percentile: u32) -> bool {
        let all: u64 = self.parts.iter().map(Histogram::count).sum();
        all as f64 * f64::from(100 - percentile.min(99)) / 100.0 >= TAIL_OBSERVATIONS
    }
}
