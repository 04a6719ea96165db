//! What the measured percentile makes of a reckoned capacity.
//!
//! A model errs; whoever is served tells. While the pods should have been able to keep the target for as long as the window
//! and did not, they are taken to carry less, bit by bit; while they carry about what they can and are faster by far,
//! more. Bounded both ways, and forgotten slowly. A service that is short of pods says nothing of what a pod carries, and
//! neither does one of which nothing is measured.

use super::tuning::{
    CORRECT_FORGET_SECONDS, CORRECT_GAIN, CORRECT_LEAST, CORRECT_MOST, CORRECT_UP_BELOW,
    CORRECT_UP_LOAD,
};
use crate::autoscale::Millis;

/// The logarithm of a factor on the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Correction {
    log: f64,
    at: Option<Millis>,
    /// Since when the pods should have kept the target.
    sufficient_since: Option<Millis>,
}

/// How a service stands.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// What was measured over what is wanted; none when it is not known well.
    pub miss: Option<f64>,
    /// What is asked of the pods that answer, over what they carry by the corrected model.
    pub load: f64,
    /// Whether requests wait that came when there were too few pods: what they feel tells of then.
    pub backlog: bool,
    /// Length of the window.
    pub window: Millis,
}

impl Correction {
    /// The factor.
    pub fn factor(&self) -> f64 {
        self.log.exp()
    }

    /// Takes in a moment.
    pub fn note(&mut self, standing: &Standing, now: Millis) {
        let since = self.at.map_or(0, |at| now.saturating_sub(at));
        self.at = Some(now);
        self.sufficient_since = if standing.load <= 1.0 && !standing.backlog {
            self.sufficient_since.or(Some(now))
        } else {
            None
        };
        let seconds = since.min(standing.window) as f64 / 1000.0;
        let step = CORRECT_GAIN * seconds * 1000.0 / standing.window.max(1) as f64;
        let sufficient = self
            .sufficient_since
            .is_some_and(|since| now.saturating_sub(since) >= standing.window);
        match standing.miss {
            Some(miss) if sufficient && miss > 1.0 => self.log -= step * miss.ln().min(1.0),
            Some(miss)
                if sufficient && miss < CORRECT_UP_BELOW && standing.load >= CORRECT_UP_LOAD =>
            {
                self.log += step * (CORRECT_UP_BELOW / miss.max(0.01)).ln().min(1.0);
            }
            _ => self.log *= 0.5_f64.powf(seconds / CORRECT_FORGET_SECONDS),
        }
        self.log = self.log.clamp(CORRECT_LEAST.ln(), CORRECT_MOST.ln());
    }
}
