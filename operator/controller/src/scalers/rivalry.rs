//! Somebody else who keeps writing `spec.replicas`: a GitOps tool with a number of pods in Git, or a person's loop. Pure.
//!
//! Two that write one field take turns for ever, and each turn starts or ends pods. So whoever is overwritten three times
//! within five minutes is in a rivalry, and pauses: a minute first, twice as long each time that the other writes again.

/// Milliseconds of a clock that only goes on.
pub type Millis = u64;

/// So many times overwritten ...
const TURNS: usize = 3;
/// ... within this long is no accident.
const WITHIN: Millis = 5 * 60_000;
const FIRST_PAUSE: Millis = 60_000;
const LONGEST_PAUSE: Millis = 10 * 60_000;
/// A rival that wrote nothing for this long after a pause is one no more.
const FORGIVEN: Millis = 15 * 60_000;

/// What is remembered of others who write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rivalry {
    /// When we were last overwritten, the oldest first; at most [`TURNS`].
    turns: Vec<Millis>,
    /// Pauses so far.
    pauses: u32,
    paused_until: Millis,
}

impl Rivalry {
    /// Somebody has overwritten what we wrote.
    pub fn overwritten(&mut self, now: Millis) {
        if self.is_over(now) {
            *self = Self::default();
        }
        self.turns
            .retain(|turn| now.saturating_sub(*turn) <= WITHIN);
        self.turns.push(now);
        // Once in a rivalry, each further turn counts.
        if self.pauses > 0 || self.turns.len() >= TURNS {
            let pause = FIRST_PAUSE << self.pauses.min(8);
            self.paused_until = now + pause.min(LONGEST_PAUSE);
            self.pauses = self.pauses.saturating_add(1);
            self.turns.clear();
        }
    }

    /// Whether we leave the number alone for now.
    pub fn pauses(&self, now: Millis) -> bool {
        self.pauses > 0 && now < self.paused_until
    }

    /// Whether it is worth telling: also between two pauses, so that a condition does not come and go.
    pub fn lasts(&self, now: Millis) -> bool {
        self.pauses > 0 && !self.is_over(now)
    }

    /// Whether nothing of it is worth remembering.
    pub fn is_over(&self, now: Millis) -> bool {
        let last = self
            .turns
            .last()
            .copied()
            .unwrap_or(0)
            .max(self.paused_until);
        now.saturating_sub(last) > FORGIVEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Millis = 60_000;

    #[test]
    fn one_who_writes_once_in_a_while_is_no_rival() {
        let mut rivalry = Rivalry::default();
        for minute in (0..60).step_by(3) {
            rivalry.overwritten(minute * MINUTE);
            assert!(!rivalry.pauses(minute * MINUTE), "minute {minute}");
        }
    }

    #[test]
    fn one_who_writes_again_and_again_is_given_way_for_ever_longer() {
        let mut rivalry = Rivalry::default();
        let mut now = 0;
        for _ in 0..TURNS {
            rivalry.overwritten(now);
            now += 1000;
        }
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let began = now;
            while rivalry.pauses(now) {
                now += 1000;
            }
            pauses.push((now - began).div_ceil(MINUTE));
            assert!(rivalry.lasts(now));
            // We write, and they write over it.
            now += 1000;
            rivalry.overwritten(now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        now += LONGEST_PAUSE + FORGIVEN + 1;
        assert!(!rivalry.lasts(now) && rivalry.is_over(now));
        rivalry.overwritten(now);
        assert!(!rivalry.pauses(now), "an old rivalry is forgotten");
    }

    proptest! {
        #[test]
        fn a_pause_never_lasts_longer_than_ten_minutes(waits in proptest::collection::vec(0_u64..20 * MINUTE, 1..100)) {
            let (mut rivalry, mut now) = (Rivalry::default(), 0);
            for wait in waits {
                now += wait;
                rivalry.overwritten(now);
                prop_assert!(!rivalry.pauses(now + LONGEST_PAUSE));
                prop_assert!(!rivalry.pauses(now) || rivalry.lasts(now));
                prop_assert!(rivalry.turns.len() < TURNS);
            }
        }
    }
}
