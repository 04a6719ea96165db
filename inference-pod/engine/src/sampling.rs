//! From logits to a token: a function of the logits, the request's parameters, its seed and its own output.
//!
//! Order, as in vLLM: mask of a grammar, logit bias, penalties, temperature, `min_p`, `top_k`, `top_p`, draw.
//! Temperature 0 is greedy. Ties go to the smaller token id. The draw for the `i`-th token of an answer is
//! [`uniform`]`(seed, i)`, so it depends neither on batch-mates nor on preemption. A NaN logit counts as impossible.
//!
//! Log probabilities are of the model's own distribution, before all of that, as OpenAI and vLLM report them.

use std::collections::HashMap;

use crate::random::uniform;

mod logprobs;
mod params;
#[cfg(test)]
mod tests;

use logprobs::RawLogprobs;
pub use logprobs::{TokenLogprobs, logprobs_of};
pub use params::{SamplingError, SamplingParams};

/// No token could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The model's output is broken: nothing in it can be compared.
    #[error("the model gave no finite logit for any of {vocabulary} tokens")]
    NoFiniteLogit {
        /// Length of the logits.
        vocabulary: usize,
    },
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log probability and the most probable ones, where [`SamplingParams::logprobs`] asks for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// Tokens that a grammar allows, one bit a token from the least significant bit of the first word on. Tokens beyond
/// its end are forbidden.
#[derive(Clone, Copy, Debug)]
pub struct AllowedTokens<'a>(pub &'a [u32]);

impl AllowedTokens<'_> {
    /// Forbids all others: their logits become negative infinity.
    fn apply(self, logits: &mut [f32]) {
        for (index, chunk) in logits.chunks_mut(32).enumerate() {
            let word = self.0.get(index).copied().unwrap_or(0);
            if word == u32::MAX {
                continue;
            }
            for (bit, logit) in chunk.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// Chooses the tokens of one answer, one after the other.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    /// How often each token occurs in the answer; kept only where a penalty needs it.
    counts: HashMap<u32, u32>,
    drawn: u64,
}

/// A token that may still be drawn, with its probability up to a common factor.
#[derive(Clone, Copy)]
struct Candidate {
    token: u32,
    weight: f32,
}

impl Sampler {
    /// A sampler at the start of an answer.
    pub fn new(params: SamplingParams) -> Self {
        Self {
            params,
            counts: HashMap::new(),
            drawn: 0,
        }
    }

    /// Chooses the next token of the answer. `logits` has one value a token and is changed by mask, bias and penalties.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        allowed: Option<AllowedTokens<'_>>,
    ) -> Result<Sampled, SampleError> {
        let raw = self
            .params
            .logprobs
            .map(|top| RawLogprobs::new(logits, top));
        if let Some(allowed) = allowed {
            allowed.apply(logits);
        }
        self.adjust(logits);
        let best = argmax(logits).ok_or(SampleError::NoFiniteLogit {
            vocabulary: logits.len(),
        })?;
        let token = if self.params.temperature < GREEDY_BELOW {
            best
        } else {
            self.draw(logits, logits[best as usize])
        };
        self.drawn += 1;
        if self.penalises() {
            *self.counts.entry(token).or_insert(0) += 1;
        }
        Ok(Sampled {
            token,
            logprobs: raw.map(|raw| raw.of(token)),
        })
    }

    fn penalises(&self) -> bool {
        self.params.presence_penalty != 0.0 || self.params.frequency_penalty != 0.0
    }

    fn adjust(&self, logits: &mut [f32]) {
        for (token, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        for (token, count) in &self.counts {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit -=
                    self.params.presence_penalty + self.params.frequency_penalty * *count as f32;
            }
        }
    }

    fn draw(&self, logits: &[f32], best: f32) -> u32 {
        let mut candidates = self.candidates(logits, best);
        keep_top_k(&mut candidates, self.params.top_k as usize);
        keep_top_p(&mut candidates, self.params.top_p);
        pick(&candidates, uniform(self.params.seed, self.drawn))
    }

    /// Tokens that `min_p` leaves, weighted relative to the best, in order of their ids.
    fn candidates(&self, logits: &[f32], best: f32) -> Vec<Candidate> {
        // The best is 1 by definition: infinity less infinity would not be a number.
        let weight = |logit: f32| {
            if logit < best {
                ((logit - best) / self.params.temperature).exp()
            } else {
                f32::from(u8::from(logit >= best))
            }
        };
        let weighted = (0u32..).zip(logits).map(|(token, logit)| Candidate {
            token,
            weight: weight(*logit),
        });
        // A NaN logit is neither below nor at the best, so its weight is 0.
        weighted
            .filter(|candidate| candidate.weight > 0.0 && candidate.weight >= self.params.min_p)
            .collect()
    }
}

/// Temperatures below this would only overflow.
const GREEDY_BELOW: f32 = 1e-5;

/// The smallest token with the greatest logit; `None` when no logit is a number above negative infinity.
fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (token, logit) in (0u32..).zip(logits) {
        if *logit > best.map_or(f32::NEG_INFINITY, |(_, value)| value) {
            best = Some((token, *logit));
        }
    }
    best.map(|(token, _)| token)
}

/// Most probable first, smaller id first among equals.
#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that sorting asks for"
)]
fn by_weight(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.weight.total_cmp(&a.weight).then(a.token.cmp(&b.token))
}

fn keep_top_k(candidates: &mut Vec<Candidate>, top_k: usize) {
    if top_k == 0 || top_k >= candidates.len() {
        return;
    }
    candidates.select_nth_unstable_by(top_k - 1, by_weight);
    candidates.truncate(top_k);
    // The selection leaves its part in no promised order, and the draw depends on it.
    candidates.sort_unstable_by_key(|candidate| candidate.token);
}

fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f32) {
    if top_p >= 1.0 {
        return;
    }
    let total: f64 = candidates
        .iter()
        .map(|candidate| f64::from(candidate.weight))
        .sum();
    // Tokens below this share sum to less than 1 - top_p, so none is in the set: most need not be sorted.
    let negligible = (1.0 - f64::from(top_p)) * total / candidates.len() as f64;
    candidates.retain(|candidate| f64::from(candidate.weight) >= negligible);
    candidates.sort_unstable_by(by_weight);
    let mut mass = 0.0;
    let wanted = f64::from(top_p) * total;
    let kept = candidates.iter().position(|candidate| {
        mass += f64::from(candidate.weight);
        mass >= wanted
    });
    candidates.truncate(kept.map_or(candidates.len(), |last| last + 1));
}

/// The candidate at `point` (in `[0, 1)`) of the total weight. There is always one: the best token is never dropped.
fn pick(candidates: &[Candidate], point: f64) -> u32 {
    let total: f64 = candidates
        .iter()
        .map(|candidate| f64::from(candidate.weight))
        .sum();
    let mut left = point * total;
    for candidate in candidates {
        left -= f64::from(candidate.weight);
        if left < 0.0 {
            return candidate.token;
        }
    }
    // Rounding can leave a remainder after the last one.
    candidates.last().map_or(0, |candidate| candidate.token)
}
