//! How much more may be asked by the time that a pod started now answers.
//!
//! What was asked for when the pods of today were started is compared with what is asked for now, again and again: how far
//! the rate rises within that time, as a share of it. Pods are planned for so many standard deviations of that more, as stock
//! is for the demand of its lead time (the newsvendor's problem; Arrow, Harris and Marschak, "Optimal inventory policy", 1951).
//! Where pods start within seconds that is hardly anything, and where they take minutes it is what keeps a target at all.

use super::tuning::{
    HEADROOM_COMPARISONS, HEADROOM_KEEP, HEADROOM_MOST, HEADROOM_STEPS, LEAST_LEAD_MILLIS,
    WINDOW_LAG,
};
use crate::autoscale::Millis;

/// Learns how far a rate rises within the time that a pod takes to start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Headroom {
    /// Rates at equal distances, oldest first: as many as make the lead time.
    rates: Vec<f64>,
    /// When the next is due.
    due: Millis,
    /// The distance that they were taken at.
    step: Millis,
    /// Decaying sums of the squares of rises and of the noise in them, and their number.
    squares: f64,
    count: f64,
}

impl Headroom {
    /// Takes in the rate in requests per second, averaged over `window`, when a pod takes `start` until it answers.
    pub fn note(&mut self, rate: f64, start: Millis, window: Millis, now: Millis) {
        let lead = (start + (window as f64 * WINDOW_LAG) as Millis).max(LEAST_LEAD_MILLIS);
        let step = (lead / HEADROOM_STEPS).max(1);
        // Starts that waver are the same lead; another lead begins anew, and what was learned stands until then.
        if step.abs_diff(self.step) * 4 > self.step {
            (self.step, self.due) = (step, now);
            self.rates.clear();
        }
        if now < self.due || !rate.is_finite() {
            return;
        }
        // After a pause nobody knows what was in between.
        if now - self.due > self.step * 2 {
            self.rates.clear();
        }
        self.due = now + self.step;
        self.rates.push(rate.max(0.0));
        if self.rates.len() as u64 > HEADROOM_STEPS {
            let before = self.rates.remove(0);
            self.rise(before, rate, window);
        }
    }

    fn rise(&mut self, before: f64, now: f64, window: Millis) {
        // Of requests that come independently, so much of a difference is chance.
        let counted = before.max(now) * window as f64 / 1000.0;
        if before <= 0.0 || counted < 1.0 {
            return;
        }
        let share = ((now - before) / before).clamp(0.0, HEADROOM_MOST);
        let noise = 1.0 / counted;
        self.squares = self.squares * HEADROOM_KEEP + (share * share - noise).max(-noise);
        self.count = self.count * HEADROOM_KEEP + 1.0;
    }

    /// By what a rate is multiplied so that it is not exceeded with this many standard deviations; at least 1.
    pub fn factor(&self, deviations: f64) -> f64 {
        if self.count < 1.0 {
            return 1.0;
        }
        // Only rises are counted: they are half of what makes a variance.
        let variance = (2.0 * self.squares / self.count.max(HEADROOM_COMPARISONS)).max(0.0);
        1.0 + (deviations.max(0.0) * variance.sqrt()).min(HEADROOM_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn learn(rate: impl Fn(u64) -> f64) -> Headroom {
        let mut headroom = Headroom::default();
        for second in 0..3_600 {
            headroom.note(rate(second), 60_000, 30_000, second * 1000);
        }
        headroom
    }

    #[test]
    fn a_steady_rate_needs_none() {
        assert!((learn(|_| 20.0).factor(1.645) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_rate_that_falls_needs_none() {
        let falls = |second: u64| 100.0 / (1.0 + second as f64 / 600.0);
        assert!((learn(falls).factor(1.645) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_rate_that_rises_by_half_each_few_minutes_gets_about_that_much() {
        let wave = |second: u64| {
            if (second / 180).is_multiple_of(2) {
                20.0
            } else {
                30.0
            }
        };
        let factor = learn(wave).factor(1.645);
        assert!(factor > 1.25 && factor < 1.7, "{factor}");
    }

    #[test]
    fn what_requests_that_come_independently_make_is_not_taken_for_a_rise() {
        // Sums of 300 waver by 17, which is 6 percent.
        let chance =
            |second: u64| 10.0 + [0.5, -0.6, 0.2, -0.4, 0.6, -0.3, 0.1][second as usize / 20 % 7];
        assert!(learn(chance).factor(1.645) < 1.1);
    }

    proptest! {
        #[test]
        fn whatever_comes_it_is_a_bounded_factor(
            looks in proptest::collection::vec((proptest::num::f64::ANY, any::<u32>(), 0u64..200_000), 0..100),
            window in 0u64..4_000_000, deviations in proptest::num::f64::ANY,
        ) {
            let (mut headroom, mut now) = (Headroom::default(), 0);
            for (rate, start, later) in looks {
                now += later;
                headroom.note(rate, u64::from(start), window, now);
                let factor = headroom.factor(if deviations.is_nan() { 0.0 } else { deviations });
                prop_assert!((1.0..=1.0 + HEADROOM_MOST).contains(&factor), "{factor}");
            }
        }
    }
}
