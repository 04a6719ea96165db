//! Whom to ask again when: one that does not answer is asked ever more rarely, so that dead addresses cost nothing.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// One that has not been asked for this long exists no more.
const OLD: Duration = Duration::from_mins(2);

#[derive(Clone, Copy, Debug)]
struct Failing {
    pause: Duration,
    next: Instant,
}

/// Addresses that did not answer the last time. Others are due at any time.
#[derive(Debug)]
pub struct Targets {
    longest_pause: Duration,
    failing: HashMap<String, Failing>,
}

impl Targets {
    /// All are due. Pauses grow from a second to the longest.
    pub fn new(longest_pause: Duration) -> Self {
        Self {
            longest_pause,
            failing: HashMap::new(),
        }
    }

    /// When to ask again one that did not answer.
    pub fn due(&self, address: &str) -> Option<Instant> {
        self.failing.get(address).map(|failing| failing.next)
    }

    /// Whether to ask now.
    pub fn is_due(&self, address: &str, now: Instant) -> bool {
        self.due(address).is_none_or(|next| next <= now)
    }

    /// What came of asking.
    pub fn note(&mut self, address: &str, answered: bool, now: Instant) {
        if answered {
            self.failing.remove(address);
            return;
        }
        let pause = self
            .failing
            .get(address)
            .map_or(FIRST_PAUSE, |f| (f.pause * 2).min(self.longest_pause));
        let next = now + pause;
        self.failing
            .insert(address.to_owned(), Failing { pause, next });
    }

    /// Forgets addresses that nobody asks any more.
    pub fn forget_old(&mut self, now: Instant) {
        self.failing.retain(|_, failing| failing.next + OLD > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_address_is_asked_ever_more_rarely_and_a_living_one_always() {
        let start = Instant::now();
        let mut targets = Targets::new(Duration::from_secs(30));
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
        let mut targets = Targets::new(Duration::from_secs(30));
        targets.note("pod", false, start);
        targets.note("pod", false, start);
        assert!(!targets.is_due("pod", start + Duration::from_secs(1)));
        targets.note("pod", true, start);
        assert!(targets.is_due("pod", start));
        targets.note("pod", false, start);
        targets.forget_old(start + OLD + FIRST_PAUSE);
        assert!(targets.failing.is_empty());
    }
}
