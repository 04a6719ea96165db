//! A histogram as a Prometheus client counts it, in integers: what a server felt of its latencies so far, or within a while.

use std::sync::Arc;

/// More buckets than this are nobody's: the text is garbage, or wants our memory.
pub const MOST_BUCKETS: usize = 64;
/// Lists of bounds that are remembered; there are two for each kind of server.
const MOST_SHARED: usize = 32;

/// Observations by upper bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bounds in microseconds, rising; one more bucket is unbounded. Servers of a kind have them in common.
    bounds_micros: Arc<[u32]>,
    /// Observations up to each bound, never falling; the last are all.
    cumulative: Box<[u64]>,
    /// Sum of the observations in microseconds.
    sum_micros: u64,
}

/// Bounds that histograms have in common, kept once.
#[derive(Debug, Default)]
pub struct SharedBounds(Vec<Arc<[u32]>>);

impl SharedBounds {
    fn of(&mut self, buckets: &[(u32, u64)]) -> Arc<[u32]> {
        let bounds = || buckets.iter().map(|(bound, _)| *bound);
        let same = |known: &&Arc<[u32]>| known.iter().copied().eq(bounds());
        if let Some(known) = self.0.iter().find(same) {
            return Arc::clone(known);
        }
        if self.0.len() >= MOST_SHARED {
            self.0.remove(0);
        }
        let new: Arc<[u32]> = bounds().collect();
        self.0.push(Arc::clone(&new));
        new
    }
}

impl Histogram {
    /// A histogram out of its buckets; none when they cannot be counts.
    pub fn new(mut buckets: Vec<(u32, u64)>, count: u64, sum_micros: u64) -> Option<Self> {
        Self::with_bounds_of(
            &mut SharedBounds::default(),
            &mut buckets,
            count,
            sum_micros,
        )
    }

    /// The same, with bounds that others have too.
    pub fn with_bounds_of(
        shared: &mut SharedBounds,
        buckets: &mut [(u32, u64)],
        count: u64,
        sum_micros: u64,
    ) -> Option<Self> {
        buckets.sort_unstable();
        let rises = buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        let below = buckets.last().is_none_or(|(_, last)| *last <= count);
        (rises && below && buckets.len() <= MOST_BUCKETS).then(|| Self {
            bounds_micros: shared.of(buckets),
            cumulative: buckets
                .iter()
                .map(|(_, upto)| *upto)
                .chain([count])
                .collect(),
            sum_micros,
        })
    }

    /// All observations.
    pub fn count(&self) -> u64 {
        self.cumulative.last().copied().unwrap_or(0)
    }

    /// Their sum in microseconds.
    pub fn sum_micros(&self) -> u64 {
        self.sum_micros
    }

    /// Adds what `now` has observed since `earlier`. A server that was started anew counts from zero, and so does one that
    /// changed its buckets.
    pub fn add_growth(&mut self, earlier: &Self, now: &Self) {
        if !now.continues(earlier) {
            self.add(now);
        } else if now.count() > earlier.count() {
            self.add_difference(earlier, now);
        }
    }

    /// Whether these are the counts of `earlier` and perhaps more.
    pub fn continues(&self, earlier: &Self) -> bool {
        let mut pairs = self.cumulative.iter().zip(&earlier.cumulative);
        self.has_bounds_of(earlier)
            && self.sum_micros >= earlier.sum_micros
            && pairs.all(|(now, before)| now >= before)
    }

    fn has_bounds_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bounds_micros, &other.bounds_micros)
            || self.bounds_micros == other.bounds_micros
    }

    /// Adds what `now` has beyond `earlier`, both of the same bounds and `now` nowhere less.
    fn add_difference(&mut self, earlier: &Self, now: &Self) {
        if self.count() == 0 && !self.has_bounds_of(now) {
            self.bounds_micros = Arc::clone(&now.bounds_micros);
            self.cumulative = now.cumulative.iter().map(|_| 0).collect();
        }
        if !self.has_bounds_of(now) {
            return;
        }
        // Counts that are read while they grow may not fit each other by one.
        let mut most = 0;
        let grown = now.cumulative.iter().zip(&earlier.cumulative);
        for (sum, (now, before)) in self.cumulative.iter_mut().zip(grown) {
            most = most.max(now - before);
            *sum = sum.saturating_add(most);
        }
        let grown = now.sum_micros - earlier.sum_micros;
        self.sum_micros = self.sum_micros.saturating_add(grown);
    }

    /// Adds another one's observations; one of other buckets is left out, for there is no telling where in ours they lie.
    /// A histogram without observations takes the other's buckets over.
    pub fn add(&mut self, other: &Self) {
        if self.count() == 0 {
            self.clone_from(other);
        } else if self.has_bounds_of(other) {
            for (sum, more) in self.cumulative.iter_mut().zip(&other.cumulative) {
                *sum = sum.saturating_add(*more);
            }
            self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
        }
    }

    /// Forgets the observations and keeps the buckets.
    pub fn clear(&mut self) {
        self.cumulative.fill(0);
        self.sum_micros = 0;
    }

    /// The percentile in microseconds, linear inside a bucket, as Prometheus' `histogram_quantile` has it: beyond the last
    /// bound it is that bound. None without observations.
    pub fn percentile_micros(&self, percentile: u32) -> Option<u64> {
        Self::percentile_micros_of(std::slice::from_ref(self), percentile)
    }

    /// The same of several together: of those that have the bounds of the first that has observations.
    pub fn percentile_micros_of(parts: &[Self], percentile: u32) -> Option<u64> {
        let first = parts.iter().find(|part| part.count() > 0)?;
        let alike = || {
            let told = parts.iter().filter(|part| part.count() > 0);
            told.filter(|part| part.has_bounds_of(first))
        };
        let upto = |bucket: usize| {
            let counts = alike().map(|part| part.cumulative[bucket]);
            counts.fold(0, u64::saturating_add)
        };
        let (bounds, last) = (&first.bounds_micros, first.cumulative.len() - 1);
        if bounds.is_empty() {
            return None;
        }
        let rank = u128::from(upto(last)) * u128::from(percentile.min(100));
        let reaches = |upto: u64| u128::from(upto) * 100 >= rank && upto > 0;
        let bucket = (0..=last).find(|bucket| reaches(upto(*bucket)))?;
        let Some(upper) = bounds.get(bucket) else {
            return bounds.last().map(|last| u64::from(*last));
        };
        let (lower, below) = match bucket.checked_sub(1) {
            Some(before) => (bounds[before], upto(before)),
            None => (0, 0),
        };
        let within = u128::from(upto(bucket) - below) * 100;
        let into = rank.saturating_sub(u128::from(below) * 100);
        let width = u128::from(upper - lower);
        Some(u64::from(lower) + (width * into / within.max(1)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn histogram(counts: &[u64]) -> Histogram {
        let bounds = [10_000, 20_000, 40_000, 80_000];
        let mut upto = 0;
        let mut buckets = Vec::new();
        for (bound, count) in bounds.into_iter().zip(counts) {
            upto += count;
            buckets.push((bound, upto));
        }
        Histogram::new(buckets, upto + counts.get(4).copied().unwrap_or(0), 1).expect("counts")
    }

    #[test]
    fn a_percentile_is_linear_inside_its_bucket() {
        let even = histogram(&[0, 100, 0, 0]);
        assert_eq!(even.percentile_micros(50), Some(15_000));
        assert_eq!(even.percentile_micros(99), Some(19_900));
        let spread = histogram(&[50, 40, 9, 1]);
        assert_eq!(spread.percentile_micros(50), Some(10_000));
        assert_eq!(spread.percentile_micros(95), Some(31_111));
        assert_eq!(histogram(&[0, 0, 0, 0]).percentile_micros(95), None);
    }

    #[test]
    fn beyond_the_last_bound_a_percentile_is_that_bound() {
        assert_eq!(
            histogram(&[1, 0, 0, 0, 99]).percentile_micros(95),
            Some(80_000)
        );
    }

    #[test]
    fn a_server_that_started_anew_counts_from_zero() {
        let (before, now) = (histogram(&[5, 5, 5, 5]), histogram(&[1, 0, 0, 0]));
        let mut sum = Histogram::default();
        sum.add_growth(&before, &now);
        assert_eq!(sum, now);
        sum.add_growth(&now, &now);
        assert_eq!(sum.count(), 1, "nothing more");
    }

    #[test]
    fn what_cannot_be_counts_is_no_histogram() {
        assert!(
            Histogram::new(vec![(1, 5), (2, 4)], 5, 0).is_none(),
            "falls"
        );
        assert!(
            Histogram::new(vec![(1, 5)], 4, 0).is_none(),
            "more than all"
        );
        assert!(
            Histogram::new(vec![(1, 5), (1, 5)], 5, 0).is_none(),
            "twice"
        );
        let many = (0..1000).map(|bound| (bound, 0)).collect();
        assert!(Histogram::new(many, 0, 0).is_none(), "absurdly many");
    }

    proptest! {
        #[test]
        fn a_percentile_lies_in_the_bucket_of_the_true_one(
            mut micros in proptest::collection::vec(0u32..80_000, 1..200), percentile in 1u32..100,
        ) {
            let bounds = [10_000, 20_000, 40_000, 80_000];
            let upto = |bound: &u32| (*bound, micros.iter().filter(|m| *m <= bound).count() as u64);
            let told = Histogram::new(bounds.iter().map(upto).collect(), micros.len() as u64, 0)
                .and_then(|h| h.percentile_micros(percentile)).expect("observations");
            micros.sort_unstable();
            let rank = (micros.len() * percentile as usize).div_ceil(100).max(1);
            let truth = micros[rank - 1];
            let upper = bounds.iter().position(|b| *b >= truth).expect("in bounds");
            let lower = upper.checked_sub(1).map_or(0, |i| bounds[i]);
            prop_assert!(u64::from(lower) <= told && told <= u64::from(bounds[upper]), "{told} for {truth}");
        }

        #[test]
        fn growth_and_what_was_before_make_what_is(
            before in proptest::collection::vec(0u64..1000, 5), more in proptest::collection::vec(0u64..1000, 5),
        ) {
            let sum: Vec<u64> = before.iter().zip(&more).map(|(a, b)| a + b).collect();
            let (mut before, now) = (histogram(&before), histogram(&sum));
            let mut grown = Histogram::default();
            grown.add_growth(&before, &now);
            prop_assert_eq!(grown.count(), more.iter().sum::<u64>());
            before.add(&grown);
            prop_assert_eq!(before.cumulative, now.cumulative);
        }
    }
}
