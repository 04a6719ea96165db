//! How often and after what pause to try again.

use std::time::Duration;

/// Patience with a source. Failures count anew whenever a byte has come in between.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Attempts without progress, the first included, before giving up.
    pub attempts: u32,
    /// Attempts in all, whatever came in between: a server that sends a byte at a time ends too.
    pub total_attempts: u32,
    /// Pause after the first failure; it doubles with each further one.
    pub first_delay: Duration,
    /// Longest pause, also where the server asks for more.
    pub longest_delay: Duration,
    /// How long a connection, an answer or the next bytes may take.
    pub stall_timeout: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 6,
            total_attempts: 100,
            first_delay: Duration::from_secs(1),
            longest_delay: Duration::from_secs(30),
            stall_timeout: Duration::from_mins(1),
        }
    }
}

impl RetryPolicy {
    /// The pause after `failures` failures in a row: the server's wish or a doubling one, within
    /// the limit, less up to a half by `jitter` (0 to 1) so that many pods do not return at once.
    pub(crate) fn delay(&self, failures: u32, wish: Option<Duration>, jitter: f64) -> Duration {
        let doubled = self
            .first_delay
            .saturating_mul(1 << failures.saturating_sub(1).min(20));
        let pause = wish
            .map_or(doubled, |wish| wish.max(doubled))
            .min(self.longest_delay);
        pause.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
    }
}

/// Numbers from 0 to 1, the same for the same seed (SplitMix64).
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{Jitter, RetryPolicy};

    #[test]
    fn pauses_double_up_to_the_limit_and_heed_the_server() {
        let policy = RetryPolicy::default();
        let seconds = |failures, wish: Option<u64>| {
            policy
                .delay(failures, wish.map(Duration::from_secs), 0.0)
                .as_secs()
        };
        assert_eq!(
            [1, 2, 3, 6, 99].map(|failures| seconds(failures, None)),
            [1, 2, 4, 30, 30]
        );
        assert_eq!((seconds(1, Some(7)), seconds(1, Some(9_999))), (7, 30));
    }

    proptest! {
        #[test]
        fn jitter_takes_at_most_half(failures in 1_u32..200, seed: u64) {
            let policy = RetryPolicy::default();
            let jitter = Jitter::new(seed).next();
            prop_assert!((0.0..=1.0).contains(&jitter));
            let (full, less) = (policy.delay(failures, None, 0.0), policy.delay(failures, None, jitter));
            prop_assert!(less <= full && less >= full / 2);
        }
    }
}
