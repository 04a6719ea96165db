//! The parameters of one answer and their ranges.

use std::collections::BTreeMap;

/// How to choose tokens. [`SamplingParams::default`] is OpenAI's: temperature 1, nothing cut.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy. In `[0, 2]`.
    pub temperature: f32,
    /// Keeps the `top_k` most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of most probable tokens with at least this mass. In `(0, 1]`.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as probable as the most probable one. In `[0, 1]`.
    pub min_p: f32,
    /// Subtracted once from tokens that the answer contains. In `[-2, 2]`.
    pub presence_penalty: f32,
    /// Subtracted from tokens for every time the answer contains them. In `[-2, 2]`.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens, each in `[-100, 100]`.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Names the stream of random numbers.
    pub seed: u64,
    /// Report the log probability of every token, with as many of the most probable ones; `None` reports none.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// A parameter outside its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{name} must be {expected}, got {value}")]
pub struct SamplingError {
    /// The parameter, by its name in the API.
    pub name: &'static str,
    /// Its range, in words.
    pub expected: &'static str,
    /// What was given.
    pub value: f32,
}

impl SamplingParams {
    /// Checks every range.
    pub fn check(&self) -> Result<(), SamplingError> {
        let ranges = [
            (
                "temperature",
                self.temperature,
                (0.0..=2.0).contains(&self.temperature),
                "between 0 and 2",
            ),
            (
                "top_p",
                self.top_p,
                self.top_p > 0.0 && self.top_p <= 1.0,
                "above 0 and at most 1",
            ),
            (
                "min_p",
                self.min_p,
                (0.0..=1.0).contains(&self.min_p),
                "between 0 and 1",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                self.presence_penalty.abs() <= 2.0,
                "between -2 and 2",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                self.frequency_penalty.abs() <= 2.0,
                "between -2 and 2",
            ),
        ];
        let biases = self.logit_bias.values().map(|value| {
            (
                "logit_bias",
                *value,
                value.abs() <= 100.0,
                "between -100 and 100",
            )
        });
        match ranges
            .into_iter()
            .chain(biases)
            .find(|(_, _, holds, _)| !holds)
        {
            Some((name, value, _, expected)) => Err(SamplingError {
                name,
                expected,
                value,
            }),
            None => Ok(()),
        }
    }
}
