//! A figure over the last while, as a running total: of a gauge its integral over time, of a counter its growth.
//!
//! The mean of a gauge over any span is then the difference of two totals, as the rate of a counter is. Points of the short
//! window stand close together and older ones apart, so that a series has some twenty of them, however long its window.

use std::collections::VecDeque;

use super::Millis;

/// A shorter span says nothing about a rate.
const RATE_MINIMUM_MILLIS: Millis = 3_000;
/// Points in the short window.
const FINE: Millis = 6;
/// Points in the long one.
const COARSE: Millis = 14;

/// The two spans over which figures are told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spans {
    /// Of the panic window.
    pub short_millis: Millis,
    /// Of the window of the rule; not below the short one.
    pub long_millis: Millis,
}

/// One figure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Series {
    /// `(when, total)`, oldest first. Totals wrap.
    points: VecDeque<(Millis, u64)>,
    /// What was last told; none when the last look told nothing.
    last: Option<u64>,
    /// What the look before it told, if that was a gauge.
    before_last: Option<u64>,
}

impl Series {
    /// Takes in what a gauge shows. It is taken to have shown the same since it was last read.
    pub fn note_gauge(&mut self, value: Option<u64>, now: Millis, spans: Spans) {
        self.before_last = std::mem::replace(&mut self.last, value);
        let Some(value) = value else { return };
        let total = match self.points.back() {
            Some((when, total)) => {
                let passed = now.saturating_sub(*when);
                total.wrapping_add(value.wrapping_mul(passed))
            }
            None => 0,
        };
        self.push(now, total, spans);
    }

    /// Takes in a count, and says whether it grew since the last one. A count that went back is another one (a
    /// restarted process): it starts anew.
    pub fn note_counter(&mut self, count: Option<u64>, now: Millis, spans: Spans) -> bool {
        let Some(count) = count else {
            self.last = None;
            return false;
        };
        let before = self.points.back().map(|(_, count)| *count);
        if before.is_some_and(|before| before > count) {
            self.points.clear();
        }
        self.last = Some(count);
        self.push(now, count, spans);
        before.is_some_and(|before| before != count)
    }

    /// Forgets all but the present.
    pub fn restart(&mut self) {
        self.points.clear();
    }

    /// What the last look told.
    pub fn latest(&self) -> Option<u64> {
        self.last
    }

    /// The lesser of a gauge's last two looks; none when one of them told nothing, or they stand further apart than the window.
    pub fn lasting(&self, window_millis: Millis) -> Option<u64> {
        let mut latest = self.points.iter().rev();
        let (to, from) = (latest.next()?.0, latest.next()?.0);
        let is_close = to.saturating_sub(from) <= window_millis;
        let lesser = self.last?.min(self.before_last?);
        is_close.then_some(lesser)
    }

    /// The mean of a gauge; none when the last look told nothing.
    pub fn mean(&self, window_millis: Millis) -> Option<u64> {
        let last = self.last?;
        let (span, grown) = self.grown(window_millis)?;
        Some(grown.checked_div(span).unwrap_or(last))
    }

    /// Thousandths by which a counter grows per second; none when too little was seen of it.
    pub fn rate_milli(&self, window_millis: Millis) -> Option<u64> {
        self.last?;
        let (span, grown) = self.grown(window_millis.max(RATE_MINIMUM_MILLIS))?;
        if span < RATE_MINIMUM_MILLIS {
            return None;
        }
        let rate = u128::from(grown) * 1_000_000 / u128::from(span);
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// Time and growth since the beginning of the window.
    fn grown(&self, window_millis: Millis) -> Option<(Millis, u64)> {
        let (to, last) = *self.points.back()?;
        let begins = |(when, _): &&(Millis, u64)| when.saturating_add(window_millis) <= to;
        let (from, first) = *self
            .points
            .iter()
            .rev()
            .find(begins)
            .or(self.points.front())?;
        Some((to.saturating_sub(from), last.wrapping_sub(first)))
    }

    fn push(&mut self, now: Millis, total: u64, spans: Spans) {
        let long = spans.long_millis.max(RATE_MINIMUM_MILLIS);
        let close = match (self.points.len().checked_sub(2), self.points.back()) {
            (Some(i), Some((last, _))) => {
                last.saturating_sub(self.points[i].0) < spans.short_millis / FINE
            }
            _ => false,
        };
        let same_moment = self.points.back().is_some_and(|(when, _)| *when >= now);
        if close || same_moment {
            self.points.pop_back();
        }
        // There are tens of thousands of series: none grows by doubling.
        if self.points.len() == self.points.capacity() {
            self.points.reserve_exact(4);
        }
        self.points.push_back((now, total));
        while self.points.len() > 1 && self.points[1].0.saturating_add(long) <= now {
            self.points.pop_front();
        }
        self.thin(now, spans.short_millis, long / COARSE);
    }

    /// Of points that have left the short window, keeps those that stand well apart.
    fn thin(&mut self, now: Millis, short_millis: Millis, apart: Millis) {
        let mut i = 1;
        while i + 1 < self.points.len() && self.points[i].0.saturating_add(short_millis) <= now {
            if self.points[i].0.saturating_sub(self.points[i - 1].0) < apart {
                self.points.remove(i);
            } else {
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPANS: Spans = Spans {
        short_millis: 6_000,
        long_millis: 30_000,
    };

    fn gauge(values: &[u64], spans: Spans) -> Series {
        let mut series = Series::default();
        for (second, value) in values.iter().enumerate() {
            series.note_gauge(Some(*value), second as u64 * 1000, spans);
        }
        series
    }

    #[test]
    fn one_look_tells_what_it_saw() {
        assert_eq!(gauge(&[70], SPANS).mean(30_000), Some(70));
        assert_eq!(Series::default().mean(30_000), None);
    }

    #[test]
    fn a_window_that_is_shorter_than_the_pause_between_looks_tells_the_last_look() {
        let mut series = Series::default();
        for (look, value) in [5, 900, 7, 41].into_iter().enumerate() {
            let spans = Spans {
                short_millis: 1000,
                long_millis: 1000,
            };
            series.note_gauge(Some(value), look as u64 * 15_000, spans);
            assert_eq!(series.mean(1000), Some(value));
        }
    }

    #[test]
    fn a_look_that_told_nothing_tells_nothing_and_later_ones_go_on() {
        let mut series = gauge(&[10, 10, 10], SPANS);
        series.note_gauge(None, 3000, SPANS);
        assert_eq!(series.mean(30_000), None);
        series.note_gauge(Some(10), 4000, SPANS);
        assert_eq!(series.mean(30_000), Some(10));
    }

    #[test]
    fn what_lasts_is_the_lesser_of_the_last_two_looks() {
        assert_eq!(gauge(&[70], SPANS).lasting(6_000), None);
        assert_eq!(gauge(&[1, 70, 50], SPANS).lasting(6_000), Some(50));
        assert_eq!(gauge(&[70, 2], SPANS).lasting(6_000), Some(2));
        let mut series = gauge(&[70, 70], SPANS);
        series.note_gauge(None, 2000, SPANS);
        series.note_gauge(Some(70), 3000, SPANS);
        assert_eq!(series.lasting(6_000), None);
        series.note_gauge(Some(70), 30_000, SPANS);
        assert_eq!(series.lasting(6_000), None);
    }

    #[test]
    fn a_rate_needs_three_seconds_and_a_count_that_went_back_starts_anew() {
        let mut series = Series::default();
        for second in 0..10_u64 {
            series.note_counter(Some(100 + second * 7), second * 1000, SPANS);
            assert_eq!(
                series.rate_milli(30_000),
                (second >= 3).then_some(7000),
                "{second}"
            );
        }
        series.note_counter(Some(3), 10_000, SPANS);
        assert_eq!(series.rate_milli(30_000), None);
    }

    proptest! {
        #[test]
        fn the_mean_is_that_of_the_looks_within_the_window(values in proptest::collection::vec(0_u64..100_000, 40..200), long in 8_u64..120) {
            let spans = Spans { short_millis: 6_000, long_millis: long * 1000 };
            let series = gauge(&values, spans);
            prop_assert!(series.points.len() <= 26, "{} points", series.points.len());
            // Points stand apart by less than two coarse steps, and that is how far the window's beginning may be off.
            let slack = 2 * (long / COARSE).max(1) as usize + 1;
            let means: Vec<u64> = (long as usize..=(long as usize + slack).min(values.len() - 1))
                .map(|n| values[values.len() - n..].iter().sum::<u64>() / n as u64).collect();
            let mean = series.mean(long * 1000).unwrap();
            if values.len() > long as usize + slack {
                prop_assert!(means.contains(&mean), "{mean} is none of {means:?}");
            }
        }

        #[test]
        fn no_series_of_looks_panics(looks in proptest::collection::vec((any::<u64>(), proptest::option::of(any::<u64>())), 1..50), short in any::<u64>(), long in any::<u64>()) {
            let (mut gauge, mut counter) = (Series::default(), Series::default());
            for (now, value) in looks {
                let spans = Spans { short_millis: short, long_millis: long };
                gauge.note_gauge(value, now, spans);
                counter.note_counter(value, now, spans);
                let _ = (gauge.mean(short), counter.rate_milli(long));
            }
        }
    }
}
