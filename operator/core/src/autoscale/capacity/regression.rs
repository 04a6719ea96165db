//! Least squares for a step's cost, three factors at most, none negative, the past forgotten bit by bit.
//!
//! Recursive least squares in its information form: the normal equations are summed up and decay, so that nothing can
//! blow up as the covariance form does when nothing varies (Haykin, "Adaptive Filter Theory", ch. 10). With three factors the
//! best non-negative solution is found by trying which of them are zero.

use std::array::from_fn;

use super::tuning::{FORGET_BUSY_SECONDS, HUBER, RIDGE};

/// What the time of an interval went into: thousands of prompt tokens, steps, tokens decoded.
pub type Factors = [f64; 3];

/// Normal equations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Regression {
    /// Sum of the products of factors: 00, 01, 02, 11, 12, 22.
    products: [f64; 6],
    /// Sum of factor times seconds.
    moments: [f64; 3],
    /// Intervals, as far as they are remembered.
    intervals: f64,
    /// Seconds, as far as they are remembered.
    seconds: f64,
    /// Mean size of an error in seconds.
    usual_error: f64,
    /// What these say.
    costs: Factors,
}

impl Regression {
    /// Takes an interval in: so many seconds went into these.
    pub fn note(&mut self, factors: Factors, seconds: f64) {
        let makes_sense = |x: &f64| x.is_finite() && *x >= 0.0 && *x < 1e12;
        if !(factors.iter().all(makes_sense) && seconds.is_finite() && seconds > 0.0) {
            return;
        }
        let keep = 0.5_f64.powf(seconds / FORGET_BUSY_SECONDS);
        let weight = self.weight(factors, seconds);
        self.products.iter_mut().for_each(|p| *p *= keep);
        self.moments.iter_mut().for_each(|m| *m *= keep);
        self.intervals = self.intervals * keep + 1.0;
        self.seconds = self.seconds * keep + seconds;
        let mut at = 0;
        for (i, x) in factors.iter().enumerate() {
            for y in &factors[i..] {
                self.products[at] += weight * x * y;
                at += 1;
            }
            self.moments[i] += weight * x * seconds;
        }
        self.costs = self.solve();
    }

    /// How much an interval counts: one that lies far from what is known counts less (Huber's weights).
    fn weight(&mut self, factors: Factors, seconds: f64) -> f64 {
        const LEARN: f64 = 0.1;
        if self.intervals < 10.0 {
            // Too early to call anything an outlier.
            self.usual_error = self.usual_error.max(seconds);
            return 1.0;
        }
        let error = (seconds - self.predict(factors)).abs();
        let usual = self.usual_error.max(1e-6);
        self.usual_error += LEARN * (error.min(usual * HUBER * 2.0) - usual);
        (HUBER * usual / error.max(1e-12)).min(1.0)
    }

    fn predict(&self, factors: Factors) -> f64 {
        factors.iter().zip(self.costs).map(|(x, c)| x * c).sum()
    }

    /// Seconds for a thousand prompt tokens, for a step, for each sequence in a step; none negative.
    pub fn costs(&self) -> Factors {
        self.costs
    }

    fn solve(&self) -> Factors {
        // The simplest first: on a tie a step costs what it costs, however many are in it.
        const SUBSETS: [u8; 7] = [0b010, 0b001, 0b100, 0b011, 0b101, 0b110, 0b111];
        let mut best = ([0.0; 3], 0.0);
        for subset in SUBSETS {
            let Some(solution) = self.solve_for(subset) else {
                continue;
            };
            if solution.iter().any(|c| !c.is_finite() || *c < 0.0) {
                continue;
            }
            let gain = self.gain(&solution);
            if gain > best.1 * (1.0 + 1e-12) {
                best = (solution, gain);
            }
        }
        best.0
    }

    fn product(&self, i: usize, j: usize) -> f64 {
        let (i, j) = (i.min(j), i.max(j));
        let ridge = [1e-9, 1e-9, RIDGE][i];
        let index = [0, 3, 5][i] + (j - i);
        self.products[index] * if i == j { 1.0 + ridge } else { 1.0 }
    }

    /// By how much the squared error falls with these.
    fn gain(&self, c: &Factors) -> f64 {
        let mut gain = 0.0;
        for i in 0..3 {
            gain += 2.0 * c[i] * self.moments[i];
            for j in 0..3 {
                gain -= c[i] * c[j] * self.product(i, j);
            }
        }
        gain
    }

    /// The best with only the factors of a subset, by elimination over equations that are scaled to a diagonal of 1.
    fn solve_for(&self, subset: u8) -> Option<Factors> {
        let chosen = |i: usize| subset & (1 << i) != 0;
        let scale: Factors = from_fn(|i| self.product(i, i).sqrt());
        if (0..3).any(|i| chosen(i) && scale[i] <= 1e-12) {
            return None;
        }
        let mut rows: [[f64; 4]; 3] = from_fn(|i| {
            from_fn(|j| match j {
                _ if !chosen(i) => f64::from(u8::from(i == j)),
                3 => self.moments[i] / scale[i],
                _ if chosen(j) => self.product(i, j) / (scale[i] * scale[j]),
                _ => 0.0,
            })
        });
        for i in 0..3 {
            // Factors that always go together tell nothing of each.
            if rows[i][i] < 1e-9 {
                return None;
            }
            let pivot = rows[i].map(|x| x / rows[i][i]);
            for row in &mut rows {
                let factor = row[i];
                row.iter_mut()
                    .zip(pivot)
                    .for_each(|(x, p)| *x -= factor * p);
            }
            rows[i] = pivot;
        }
        Some(from_fn(|i| {
            if chosen(i) {
                rows[i][3] / scale[i]
            } else {
                0.0
            }
        }))
    }

    /// Intervals, as far as they are remembered.
    pub fn intervals(&self) -> f64 {
        self.intervals
    }

    /// Busy seconds, as far as they are remembered.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Whether the factor was ever seen.
    pub fn has_seen(&self, factor: usize) -> bool {
        self.product(factor, factor) > 1e-12
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_made_the_times(
            truth in proptest::array::uniform3(0.0f64..1.0),
            noise in proptest::collection::vec(-0.02f64..0.02, 60),
            steps in proptest::collection::vec((0.0f64..3.0, 5.0f64..50.0, 1.0f64..30.0), 60),
        ) {
            let truth = [truth[0] * 0.5, 0.002 + truth[1] * 0.05, truth[2] * 0.002];
            let mut regression = Regression::default();
            for ((prompt, steps, batch), noise) in steps.iter().zip(&noise) {
                let factors = [*prompt, *steps, steps * batch];
                let seconds: f64 = factors.iter().zip(truth).map(|(x, c)| x * c).sum();
                regression.note(factors, seconds * (1.0 + noise));
            }
            let found = regression.costs();
            // What counts is the time that it says for such a mix.
            let mix = [1.5, 25.0, 25.0 * 15.0];
            let time = |c: &Factors| mix.iter().zip(c).map(|(x, c)| x * c).sum::<f64>();
            prop_assert!((time(&found) / time(&truth) - 1.0).abs() < 0.03, "{found:?} for {truth:?}");
            prop_assert!((found[1] - truth[1]).abs() < 0.15 * truth[1] + 0.002, "{found:?} for {truth:?}");
        }

        #[test]
        fn nothing_makes_it_negative_or_no_number(
            notes in proptest::collection::vec(
                (proptest::array::uniform3(proptest::num::f64::ANY), proptest::num::f64::ANY), 0..40),
        ) {
            let mut regression = Regression::default();
            for (factors, seconds) in notes {
                regression.note(factors, seconds);
            }
            prop_assert!(regression.costs().iter().all(|c| c.is_finite() && *c >= 0.0));
        }

        #[test]
        fn sane_values_that_vary_in_no_way_do_no_harm(factors in proptest::array::uniform3(0.0f64..1e4), seconds in 1e-3f64..1e2, n in 1usize..50) {
            let mut regression = Regression::default();
            for _ in 0..n {
                regression.note(factors, seconds);
            }
            let found = regression.costs();
            prop_assert!(found.iter().all(|c| c.is_finite() && *c >= 0.0));
            let told: f64 = found.iter().zip(factors).map(|(c, x)| c * x).sum();
            prop_assert!(factors.iter().all(|x| *x < 1e-3) || (told / seconds - 1.0).abs() < 0.01, "{told} for {seconds}");
        }
    }

    #[test]
    fn a_step_that_always_held_as_many_costs_what_it_costs() {
        let mut regression = Regression::default();
        for i in 0..30 {
            let steps = f64::from(10 + i % 5);
            regression.note([0.0, steps, steps * 8.0], steps * 0.02);
        }
        let [_, step, sequence] = regression.costs();
        assert!(
            (step - 0.02).abs() < 1e-6 && sequence < 1e-9,
            "{step} {sequence}"
        );
    }

    #[test]
    fn one_interval_of_nonsense_in_twenty_is_put_up_with() {
        let mut regression = Regression::default();
        for i in 0..400_u32 {
            let (steps, prompt) = (f64::from(20 + i % 17), f64::from(i % 7) * 0.3);
            let seconds = prompt * 0.2 + steps * 0.02;
            let nonsense = if i % 20 == 13 { 5.0 } else { 1.0 };
            regression.note(
                [prompt, steps, steps * f64::from(1 + i % 11)],
                seconds * nonsense,
            );
        }
        let [prompt, step, sequence] = regression.costs();
        let one = prompt + 30.0 * step + 180.0 * sequence;
        assert!((one / 0.8 - 1.0).abs() < 0.1, "{one}");
    }

    #[test]
    fn a_pod_that_became_slower_is_known_to_within_minutes() {
        let mut regression = Regression::default();
        for (cost, intervals) in [(0.01, 1000), (0.02, 1500_u32)] {
            for i in 0..intervals {
                let steps = f64::from(20 + i % 17);
                regression.note([0.0, steps, steps * f64::from(1 + i % 5)], steps * cost);
            }
        }
        let [_, step, sequence] = regression.costs();
        assert!((step + 3.0 * sequence) / 0.02 > 0.75, "{step} {sequence}");
    }
}
