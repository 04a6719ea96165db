//! Whom to ask again when: one that does not answer is asked ever more rarely, so that dead addresses cost nothing.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// One that has not been asked for this long exists no more.
const OLD: Duration = Duration::from_mins(2);

#[derive(Clone, Copy, Debug)]
struct Failing {
    pause: Duration,
    next: Instant,
}

/// Addresses that did not answer the last time. Others are due at any time.
#[derive(Debug, Default)]
pub struct Targets(HashMap<String, Failing>);

impl Targets {
    /// Whether to ask now.
    pub fn is_due(&self, address: &str, now: Instant) -> bool {
        self.0
            .get(address)
            .is_none_or(|failing| failing.next <= now)
    }

    /// What came of asking.
    pub fn note(&mut self, address: &str, answered: bool, now: Instant) {
        if answered {
            self.0.remove(address);
            return;
        }
        let pause = self
            .0
            .get(address)
            .map_or(FIRST_PAUSE, |f| (f.pause * 2).min(LONGEST_PAUSE));
        let next = now + pause;
        self.0.insert(address.to_owned(), Failing { pause, next });
    }

    /// Forgets addresses that nobody asks any more.
    pub fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, failing| failing.next + OLD > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_address_is_asked_ever_more_rarely_and_a_living_one_always() {
        let start = Instant::now();
        let mut targets = Targets::default();
        let mut asked = Vec::new();
        for second in 0..120_u64 {
            let now = start + Duration::from_secs(second);
            assert!(targets.is_due("alive", now));
            targets.note("alive", true, now);
            if targets.is_due("dead", now) {
                targets.note("dead", false, now);
                asked.push(second);
            }
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 61, 91]);
    }

    #[test]
    fn one_that_answers_again_is_asked_as_before() {
        let start = Instant::now();
        let mut targets = Targets::default();
        targets.note("pod", false, start);
        targets.note("pod", false, start);
        assert!(!targets.is_due("pod", start + Duration::from_secs(1)));
        targets.note("pod", true, start);
        assert!(targets.is_due("pod", start));
        targets.note("pod", false, start);
        targets.forget_old(start + OLD + FIRST_PAUSE);
        assert!(targets.0.is_empty());
    }
}
