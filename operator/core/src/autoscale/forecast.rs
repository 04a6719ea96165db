//! What the load will be when a pod that is started now has loaded.
//!
//! The load is reckoned in thousandths of a pod, the largest of all targets, so that one forecast serves every metric. Two are made: the
//! present trend goes on for a while, or the same hour of the same weekday comes again. Neither ever lowers what is asked for.
//!
//! Trend: the median of the slopes between all pairs of samples (Theil 1950, Sen 1968), which a few wild samples cannot move, continued with
//! a damping factor (Gardner and McKenzie, "Forecasting trends in time series", 1985).

use std::collections::VecDeque;

use super::Millis;

/// Samples of the trend.
const SAMPLES: usize = 8;
/// Fewer say nothing.
const FEWEST_SAMPLES: usize = 4;
/// Of the pairs of samples, so many of a hundred must rise.
const RISING_PERCENT: usize = 75;
/// What is left of a trend after each further sample's time.
const DAMPING: f64 = 0.9;
/// A trend is believed up to this multiple of the load.
const LARGEST_FACTOR: f64 = 2.0;
/// No pod that loads for longer is waited for.
const LONGEST_AHEAD_MILLIS: Millis = 15 * 60_000;
/// Samples are not closer than this.
const CLOSEST_MILLIS: Millis = 5_000;
/// Nor further apart.
const FURTHEST_MILLIS: Millis = 60_000;

const HOUR_SECONDS: i64 = 3600;
const HOURS_OF_WEEK: usize = 168;
/// Slots hold the load in steps of so many thousandths of a pod.
const STEP_MILLI: f64 = 20.0;
/// Weight of the newest week.
const NEWEST: f64 = 0.4;
/// An hour of which less was seen is not remembered.
const LEAST_SEEN_MILLIS: Millis = 15 * 60_000;

/// Samples of the load, and what weeks brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Forecast {
    samples: VecDeque<(Millis, f32)>,
    week: Option<Box<Week>>,
}

impl Forecast {
    /// Takes in the load, in thousandths of a pod. `window_millis` is what it was averaged over.
    pub fn note(&mut self, load_milli: u64, window_millis: Millis, now: Millis) {
        let apart = (window_millis / 2).clamp(CLOSEST_MILLIS, FURTHEST_MILLIS);
        if let Some((last, _)) = self.samples.back()
            && last.saturating_add(apart) > now
        {
            return;
        }
        // After a gap the old trend is none.
        if let Some((last, _)) = self.samples.back()
            && now.saturating_sub(*last) > 4 * apart
        {
            self.samples.clear();
        }
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now, load_milli as f32));
    }

    /// Notes the load for the same hour of later weeks.
    pub fn note_week(&mut self, load_milli: u64, now: Millis, unix_seconds: i64) {
        let week = self.week.get_or_insert_with(Box::default);
        week.note(load_milli as f64, now, unix_seconds);
    }

    /// Forgets what weeks brought.
    pub fn forget_weeks(&mut self) {
        self.week = None;
    }

    /// Where the present trend leads in `ahead_millis`, if it rises. What was averaged over a window lags by half of it.
    pub fn trend(&self, ahead_millis: Millis, window_millis: Millis) -> Option<u64> {
        if self.samples.len() < FEWEST_SAMPLES {
            return None;
        }
        let slope = self.rising_slope()?;
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let step = (last.0 - first.0) as f64 / (self.samples.len() - 1) as f64;
        let ahead = ahead_millis.min(LONGEST_AHEAD_MILLIS) + window_millis / 2;
        let steps = ahead as f64 / step.max(1.0);
        // The sum of DAMPING^i over so many steps, for fractions of a step too.
        let damped = DAMPING * (1.0 - DAMPING.powf(steps)) / (1.0 - DAMPING);
        let level = f64::from(last.1);
        let foreseen = (level + slope * step * damped).min(level * LARGEST_FACTOR);
        Some(foreseen.max(0.0) as u64)
    }

    /// What the hour in which that moment lies brought in earlier weeks.
    pub fn recurring(&self, ahead_millis: Millis, unix_seconds: i64) -> Option<u64> {
        let ahead = ahead_millis.min(LONGEST_AHEAD_MILLIS) / 1000;
        let week = self.week.as_ref()?;
        week.of(unix_seconds.saturating_add_unsigned(ahead))
    }

    /// Thousandths of a pod by which the load rises each millisecond; none when it does not surely rise.
    fn rising_slope(&self) -> Option<f64> {
        let mut slopes = [0.0_f64; SAMPLES * (SAMPLES - 1) / 2];
        let mut pairs = 0;
        for (i, (from, low)) in self.samples.iter().enumerate() {
            for (to, high) in self.samples.iter().skip(i + 1) {
                slopes[pairs] = f64::from(high - low) / to.saturating_sub(*from).max(1) as f64;
                pairs += 1;
            }
        }
        let slopes = &mut slopes[..pairs];
        let rising = slopes.iter().filter(|slope| **slope > 0.0).count();
        if rising * 100 < pairs * RISING_PERCENT {
            return None;
        }
        let (_, median, _) = slopes.select_nth_unstable_by(pairs / 2, f64::total_cmp);
        (*median > 0.0).then_some(*median)
    }
}

/// The mean load of each hour of the week.
#[derive(Clone, Debug, PartialEq)]
struct Week {
    /// In steps, and one more; 0 for an hour that was never seen.
    slots: [u16; HOURS_OF_WEEK],
    /// The hour that is being seen, counted from 1970.
    hour: i64,
    /// Load by time, and time, of that hour.
    sum: f64,
    seen_millis: Millis,
    last: Option<Millis>,
}

impl Default for Week {
    fn default() -> Self {
        Self {
            slots: [0; HOURS_OF_WEEK],
            hour: 0,
            sum: 0.0,
            seen_millis: 0,
            last: None,
        }
    }
}

impl Week {
    fn note(&mut self, load_milli: f64, now: Millis, unix_seconds: i64) {
        let hour = unix_seconds.div_euclid(HOUR_SECONDS);
        if hour != self.hour {
            self.close();
            (self.hour, self.sum, self.seen_millis) = (hour, 0.0, 0);
        }
        // A clock on the wall may jump; what counts is the time that really passed.
        let passed = self
            .last
            .map_or(0, |last| now.saturating_sub(last))
            .min(FURTHEST_MILLIS);
        self.sum += load_milli * passed as f64;
        self.seen_millis += passed;
        self.last = Some(now);
    }

    fn close(&mut self) {
        if self.seen_millis < LEAST_SEEN_MILLIS {
            return;
        }
        let steps = (self.sum / self.seen_millis as f64 / STEP_MILLI).min(60_000.0);
        let slot = &mut self.slots[slot(self.hour)];
        let blended = match *slot {
            0 => steps,
            old => f64::from(old - 1) * (1.0 - NEWEST) + steps * NEWEST,
        };
        *slot = blended.round() as u16 + 1;
    }

    fn of(&self, unix_seconds: i64) -> Option<u64> {
        let hour = unix_seconds.div_euclid(HOUR_SECONDS);
        let steps = self.slots[slot(hour)].checked_sub(1)?;
        Some((f64::from(steps) * STEP_MILLI) as u64)
    }
}

fn slot(hour: i64) -> usize {
    hour.rem_euclid(HOURS_OF_WEEK as i64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Millis = 30_000;

    fn after(loads: impl IntoIterator<Item = u64>) -> Forecast {
        let mut forecast = Forecast::default();
        for (i, load) in loads.into_iter().enumerate() {
            forecast.note(load, WINDOW, i as u64 * 15_000);
        }
        forecast
    }

    #[test]
    fn a_steady_or_falling_load_has_no_trend() {
        assert_eq!(after([5000; 8]).trend(60_000, WINDOW), None);
        assert_eq!(
            after((0..8).map(|i| 9000 - i * 500)).trend(60_000, WINDOW),
            None
        );
        assert_eq!(
            after([5000, 5100, 5200]).trend(60_000, WINDOW),
            None,
            "too little was seen"
        );
    }

    #[test]
    fn a_rising_load_is_continued_less_than_in_full_and_at_most_doubled() {
        // 500 more each 15 s; 45 s and half a window ahead are 4 steps.
        let foreseen = after((0..8).map(|i| 5000 + i * 500))
            .trend(45_000, WINDOW)
            .unwrap();
        assert!((8500 + 1500..8500 + 2000).contains(&foreseen), "{foreseen}");
        assert_eq!(
            after((0..8).map(|i| 10 + i * 5000)).trend(600_000, WINDOW),
            Some(2 * 35_010)
        );
    }

    #[test]
    fn one_wild_sample_makes_no_trend() {
        assert_eq!(
            after([5000, 5000, 5000, 90_000, 5000, 5000, 5000, 5000]).trend(60_000, WINDOW),
            None
        );
    }

    #[test]
    fn the_same_hour_of_the_next_week_is_expected_and_no_other() {
        let mut forecast = Forecast::default();
        let monday_9 = 4 * 86_400 + 9 * 3600;
        for second in 0..7200 {
            let load = if second < 3600 { 8000 } else { 1000 };
            forecast.note_week(load, second * 1000, monday_9 + second as i64);
        }
        let next_week = monday_9 + 7 * 86_400;
        assert_eq!(forecast.recurring(60_000, next_week - 30), Some(8000));
        assert_eq!(
            forecast.recurring(10_000, next_week - 30),
            None,
            "the hour before was not seen"
        );
        assert_eq!(forecast.recurring(0, next_week + 86_400), None);
    }

    #[test]
    fn a_wall_clock_that_jumps_about_leaves_no_false_memory() {
        let mut forecast = Forecast::default();
        for second in 0..600 {
            forecast.note_week(
                9000,
                second * 1000,
                (second as i64 % 7) * 3_600_000 - 1_000_000,
            );
        }
        for hour in 0..168 {
            assert_eq!(forecast.recurring(0, hour * 3600), None);
        }
    }

    proptest! {
        #[test]
        fn no_load_or_clock_panics_and_a_trend_is_bounded(looks in proptest::collection::vec((any::<u32>(), 0_u64..100_000, any::<i64>()), 1..60), ahead in any::<u64>()) {
            let (mut forecast, mut now, mut last) = (Forecast::default(), 0, 0);
            for (load, pause, unix) in looks {
                now += pause;
                forecast.note(load.into(), WINDOW, now);
                forecast.note_week(load.into(), now, unix);
                last = forecast.samples.back().map_or(last, |(_, load)| *load as u64);
                if let Some(foreseen) = forecast.trend(ahead, WINDOW) {
                    prop_assert!(foreseen >= last && foreseen <= last * 2 + 1);
                }
                let _ = forecast.recurring(ahead, unix);
            }
        }
    }
}
