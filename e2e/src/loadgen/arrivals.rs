//! When requests are due, and how large each is.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What a prompt begins with; two prompts that share ids share that many tokens of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// One id for each block of the prompt, in order.
    pub block_ids: Vec<u64>,
    /// Tokens in a block.
    pub block_tokens: usize,
}

/// One request to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time from the start of the load.
    pub due: Duration,
    /// About so many tokens of prompt.
    pub prompt_tokens: usize,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// What the prompt shares with others; nothing if empty.
    pub prefix: Prefix,
}

/// How requests follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Spacing {
    /// Independently of each other: a Poisson process, as of many clients.
    #[default]
    Poisson,
    /// At equal distances.
    Fixed,
}

/// Requests at `rate` a second for `duration`, the same for the same `seed`.
pub fn paced(
    rate: f64,
    duration: Duration,
    spacing: Spacing,
    seed: u64,
    prompt_tokens: usize,
    max_tokens: u32,
) -> impl Iterator<Item = Arrival> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut due_seconds = 0.0;
    let mut first = true;
    std::iter::from_fn(move || {
        let gap = match spacing {
            Spacing::Fixed if first => 0.0,
            Spacing::Fixed => 1.0 / rate,
            // The inverse of the exponential distribution; the random number is below 1, its complement above 0.
            Spacing::Poisson => -(1.0 - rng.random::<f64>()).ln() / rate,
        };
        first = false;
        due_seconds += gap;
        let due = Duration::try_from_secs_f64(due_seconds).ok()?;
        (due < duration).then(|| Arrival {
            due,
            prompt_tokens,
            max_tokens,
            prefix: Prefix::default(),
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fixed_spacing_sends_rate_times_duration_requests() {
        let all: Vec<_> = paced(10.0, Duration::from_secs(2), Spacing::Fixed, 0, 8, 4).collect();
        assert_eq!(all.len(), 20);
        assert_eq!(all[0].due, Duration::ZERO);
        assert!((all[19].due.as_secs_f64() - 1.9).abs() < 1e-9);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_the_process() {
        let all: Vec<_> =
            paced(50.0, Duration::from_secs(400), Spacing::Poisson, 7, 8, 4).collect();
        let gaps: Vec<f64> = all
            .windows(2)
            .map(|pair| pair[1].due.as_secs_f64() - pair[0].due.as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.03, "mean gap {mean}");
        assert!(
            (variance.sqrt() / mean - 1.0).abs() < 0.05,
            "an exponential's deviation equals its mean"
        );
    }

    proptest! {
        #[test]
        fn arrivals_are_in_order_within_the_duration_and_repeatable(rate in 0.1f64..200.0, seconds in 1u64..20, seed in any::<u64>(), poisson in any::<bool>()) {
            let spacing = if poisson { Spacing::Poisson } else { Spacing::Fixed };
            let make = || paced(rate, Duration::from_secs(seconds), spacing, seed, 1, 1).collect::<Vec<_>>();
            let all = make();
            prop_assert!(all.windows(2).all(|pair| pair[0].due <= pair[1].due));
            prop_assert!(all.iter().all(|arrival| arrival.due < Duration::from_secs(seconds)));
            prop_assert_eq!(all, make());
        }
    }
}
