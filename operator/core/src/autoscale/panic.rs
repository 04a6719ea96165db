//! The panic window: a burst gets its pods at once, whatever `behavior` says of their pace.
//!
//! Source: Knative's autoscaler, `pkg/autoscaler/scaling/autoscaler.go`. When a short window asks for a multiple of the pods that
//! answer, the largest number that it asks for counts, and is not lowered, until it has not asked for such a multiple for as long as the
//! window of the rule. Unlike there a part of a pod counts as that part: one pod that is a hair above its target asks for two, and is no burst.
//! And the result is a floor under what the rule gives: the rule keeps its own history meanwhile.

use crate::validate::PanicSettings;

use super::Millis;

/// A burst that is being answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Panic {
    burst: Option<Burst>,
    /// Whether the last look alone saw one, and the next is to tell whether it lasts.
    suspected: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Burst {
    /// When the short window last asked for the multiple.
    last: Millis,
    /// The most pods that it asked for.
    most: u32,
}

/// Thousandths of pods that carry `observed_milli` at `target_milli` each, rounded up.
pub(super) fn asked_milli(observed_milli: u64, target_milli: u64) -> u64 {
    let pods = (u128::from(observed_milli) * 1000).div_ceil(u128::from(target_milli.max(1)));
    u64::try_from(pods).unwrap_or(u64::MAX)
}

/// What a burst asks for: what the short window does; or, before that has seen enough of it, what two looks in a row do, when
/// that is half as much again as the threshold. Chance alone makes no such pair.
pub(super) fn burst_milli(
    settings: PanicSettings,
    shortly_milli: u64,
    lasting_milli: u64,
    ready: u32,
) -> u64 {
    if is_steep(settings, lasting_milli, ready) {
        shortly_milli.max(lasting_milli)
    } else {
        shortly_milli
    }
}

/// Whether so many thousandths of pods are half as much again as the threshold.
pub(super) fn is_steep(settings: PanicSettings, asked_milli: u64, ready: u32) -> bool {
    u128::from(asked_milli) * 2 >= u128::from(threshold_milli(settings, ready)) * 3
}

/// Whether so many requests at once are more than chance makes of a mean: five standard deviations of requests that come
/// independently (Poisson's, whose variance is the mean).
pub(super) fn is_beyond_chance(latest_milli: u64, mean_milli: u64) -> bool {
    let (latest, mean) = (u128::from(latest_milli), u128::from(mean_milli).max(1000));
    latest
        .checked_sub(mean)
        .is_some_and(|beyond| beyond.saturating_mul(beyond) >= 25 * mean * 1000)
}

/// Thousandths of pods from which on a burst is one.
fn threshold_milli(settings: PanicSettings, ready: u32) -> u64 {
    u64::from(settings.threshold_percent) * 10 * u64::from(ready.max(1))
}

impl Panic {
    /// Takes in how many thousandths of pods the short window asks for; returns the most pods of the burst, while there is one.
    pub fn note(
        &mut self,
        settings: PanicSettings,
        stable_millis: Millis,
        asked_milli: u64,
        ready: u32,
        now: Millis,
    ) -> Option<u32> {
        let over = asked_milli >= threshold_milli(settings, ready);
        let wanted = u32::try_from(asked_milli.div_ceil(1000)).unwrap_or(u32::MAX);
        if self
            .burst
            .is_some_and(|burst| !over && burst.last.saturating_add(stable_millis) < now)
        {
            self.burst = None;
        }
        if over && self.burst.is_none() {
            self.burst = Some(Burst {
                last: now,
                most: wanted,
            });
        }
        let burst = self.burst.as_mut()?;
        if over {
            burst.last = now;
        }
        burst.most = burst.most.max(wanted);
        Some(burst.most)
    }

    /// The burst is over, for whatever reason.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// Notes whether the look alone saw a burst. One that is answered needs no second look.
    pub fn suspect(&mut self, seen: bool) {
        self.suspected = seen && self.burst.is_none();
    }

    /// Whether a second look is to tell soon.
    pub fn is_suspected(&self) -> bool {
        self.suspected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNATIVE: PanicSettings = PanicSettings {
        window_seconds: 6,
        threshold_percent: 200,
    };

    #[test]
    fn follows_knatives_vector_for_a_burst() {
        // Stable 14, panic 90, target 7, ready 2.
        assert_eq!(asked_milli(14_000, 7000), 2000);
        let mut panic = Panic::default();
        let most = panic.note(KNATIVE, 60_000, asked_milli(90_000, 7000), 2, 0);
        assert_eq!(most, Some(13));
    }

    #[test]
    fn begins_at_the_threshold_and_ends_one_window_after_it() {
        let mut panic = Panic::default();
        assert_eq!(panic.note(KNATIVE, 60_000, 3999, 2, 0), None);
        assert_eq!(panic.note(KNATIVE, 60_000, 4000, 2, 1000), Some(4));
        assert_eq!(panic.note(KNATIVE, 60_000, 1000, 4, 61_000), Some(4));
        assert_eq!(panic.note(KNATIVE, 60_000, 1000, 4, 61_001), None);
    }

    #[test]
    fn no_ready_pod_counts_as_one_and_a_hair_above_a_pod_is_no_burst() {
        assert_eq!(Panic::default().note(KNATIVE, 60_000, 1001, 0, 0), None);
        assert_eq!(Panic::default().note(KNATIVE, 60_000, 2000, 0, 0), Some(2));
        assert_eq!(Panic::default().note(KNATIVE, 60_000, 1100, 1, 0), None);
    }

    #[test]
    fn what_chance_makes_of_a_mean_is_no_suspicion_however_large_or_small_the_mean() {
        assert!(!is_beyond_chance(5_000, 1_000));
        assert!(is_beyond_chance(6_000, 1_000));
        assert!(!is_beyond_chance(149_000, 100_000));
        assert!(is_beyond_chance(150_000, 100_000));
        assert!(!is_beyond_chance(0, 8_000));
        assert!(
            is_beyond_chance(6_000, 0),
            "nothing is known to come one at a time"
        );
    }

    proptest! {
        #[test]
        fn a_burst_never_lowers_its_wish(looks in proptest::collection::vec((0_u64..50_000, 0_u32..20, 1_u64..90_000), 1..100), threshold in 110_u32..1000) {
            let settings = PanicSettings { threshold_percent: threshold, ..KNATIVE };
            let (mut panic, mut now, mut before) = (Panic::default(), 0, None);
            for (asked, ready, pause) in looks {
                let most = panic.note(settings, 60_000, asked, ready, now);
                let over = asked >= u64::from(threshold) * 10 * u64::from(ready.max(1));
                if let (Some(before), Some(most)) = (before, most) {
                    // A burst that ended and another that began at this look are two.
                    prop_assert!(most >= before || over);
                }
                prop_assert!(most.is_none_or(|most| u64::from(most) * 1000 >= asked));
                prop_assert!(most.is_some() || !over);
                before = most;
                now += pause;
            }
        }
    }
}
