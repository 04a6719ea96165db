//! The panic window: a burst gets its pods at once, whatever `behavior` says of their pace.
//!
//! Source: Knative's autoscaler, `pkg/autoscaler/scaling/autoscaler.go`. When a short window asks for a multiple of the pods that
//! answer, the largest number that it asks for counts, and is not lowered, until it has not asked for such a multiple for as long as the
//! window of the rule. Unlike there the result is a floor under what the rule gives: the rule keeps its own history meanwhile.

use crate::validate::PanicSettings;

use super::Millis;

/// A burst that is being answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Panic(Option<Burst>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Burst {
    /// When the short window last asked for the multiple.
    last: Millis,
    /// The most pods that it asked for.
    most: u32,
}

/// Pods that carry `observed_milli` at `target_milli` each.
pub(super) fn wanted(observed_milli: u64, target_milli: u64) -> u32 {
    u32::try_from(observed_milli.div_ceil(target_milli.max(1))).unwrap_or(u32::MAX)
}

impl Panic {
    /// Takes in what the short window asks for; returns the most pods of the burst, while there is one.
    pub fn note(
        &mut self,
        settings: PanicSettings,
        stable_millis: Millis,
        wanted: u32,
        ready: u32,
        now: Millis,
    ) -> Option<u32> {
        let threshold = u64::from(settings.threshold_percent) * u64::from(ready.max(1));
        let over = u64::from(wanted) * 100 >= threshold;
        if self.0.is_some_and(|burst| !over && burst.last.saturating_add(stable_millis) < now) {
            self.0 = None;
        }
        if over && self.0.is_none() {
            self.0 = Some(Burst { last: now, most: wanted });
        }
        let burst = self.0.as_mut()?;
        if over {
            burst.last = now;
        }
        burst.most = burst.most.max(wanted);
        Some(burst.most)
    }

    /// The burst is over, for whatever reason.
    pub fn end(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNATIVE: PanicSettings = PanicSettings { window_seconds: 6, threshold_percent: 200 };

    #[test]
    fn follows_knatives_vector_for_a_burst() {
        // Stable 14, panic 90, target 7, ready 2.
        assert_eq!(wanted(14_000, 7000), 2);
        let mut panic = Panic::default();
        assert_eq!(panic.note(KNATIVE, 60_000, wanted(90_000, 7000), 2, 0), Some(13));
    }

    #[test]
    fn begins_at_the_threshold_and_ends_one_window_after_it() {
        let mut panic = Panic::default();
        assert_eq!(panic.note(KNATIVE, 60_000, 3, 2, 0), None);
        assert_eq!(panic.note(KNATIVE, 60_000, 4, 2, 1000), Some(4));
        assert_eq!(panic.note(KNATIVE, 60_000, 1, 4, 61_000), Some(4));
        assert_eq!(panic.note(KNATIVE, 60_000, 1, 4, 61_001), None);
    }

    #[test]
    fn no_ready_pod_counts_as_one() {
        assert_eq!(Panic::default().note(KNATIVE, 60_000, 1, 0, 0), None);
        assert_eq!(Panic::default().note(KNATIVE, 60_000, 2, 0, 0), Some(2));
    }

    proptest! {
        #[test]
        fn a_burst_never_lowers_its_wish(looks in proptest::collection::vec((0_u32..50, 0_u32..20, 1_u64..90_000), 1..100), threshold in 110_u32..1000) {
            let settings = PanicSettings { threshold_percent: threshold, ..KNATIVE };
            let (mut panic, mut now, mut before) = (Panic::default(), 0, None);
            for (wanted, ready, pause) in looks {
                let most = panic.note(settings, 60_000, wanted, ready, now);
                if let (Some(before), Some(most)) = (before, most) {
                    prop_assert!(most >= before || u64::from(wanted) * 100 >= u64::from(threshold) * u64::from(ready.max(1)));
                }
                prop_assert!(most.is_none_or(|most| most >= wanted));
                before = most;
                now += pause;
            }
        }
    }
}
