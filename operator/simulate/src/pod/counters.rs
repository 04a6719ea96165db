//! What a pod counts of itself, as its `/metrics` would tell.

use crate::time::Nanos;

/// Upper bounds in seconds of Pagoda's histogram of times to first token.
pub const FIRST_TOKEN_BOUNDS: [f64; 18] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0,
    80.0, 160.0,
];

/// Upper bounds in seconds of Pagoda's histogram of times between tokens.
pub const INTER_TOKEN_BOUNDS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
];

/// Counts by upper bound; one more for what is beyond the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets<const N: usize> {
    /// Not cumulative.
    pub counts: [u64; N],
    /// Beyond the last bound.
    pub beyond: u64,
    /// Sum of what was counted.
    pub sum_nanos: u64,
}

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Self {
            counts: [0; N],
            beyond: 0,
            sum_nanos: 0,
        }
    }
}

impl<const N: usize> Buckets<N> {
    /// Counts `nanos`, `times` times.
    pub fn add(&mut self, bounds: &[f64; N], nanos: Nanos, times: u64) {
        let seconds = crate::time::seconds(nanos);
        self.sum_nanos += nanos * times;
        match bounds.iter().position(|bound| seconds <= *bound) {
            Some(index) => self.counts[index] += times,
            None => self.beyond += times,
        }
    }
}

/// Everything that ever happened in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests finished.
    pub finished: u64,
    /// Tokens of prompts of requests whose first token came, found in the cache of prefixes or not.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were looked up in the cache of prefixes.
    pub cache_queries: u64,
    /// Of those, tokens that were found.
    pub cache_hits: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Time in steps.
    pub busy_nanos: u64,
    /// Tokens of prompts that were computed.
    pub prefill_tokens: u64,
    /// Steps in which any sequence decoded.
    pub decode_steps: u64,
    /// Tokens decoded in them.
    pub decode_tokens: u64,
    /// Sequences that lost their blocks and were computed again.
    pub preemptions: u64,
    /// Requests by the time from their coming to this pod to their first token.
    pub first_token: Buckets<18>,
    /// Tokens by the time since the one before.
    pub inter_token: Buckets<15>,
}
