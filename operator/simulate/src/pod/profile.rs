//! What a modelled pod can do.

use crate::time::Nanos;

/// Speed and limits of a pod.
///
/// A step takes `step_nanos + sequence_nanos x b` when `b` sequences decode in it, and one second for each
/// `prefill_tokens_per_second` tokens of prompts; with `sequence_nanos` 0 that is the simulated executor's rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PodProfile {
    /// Tokens of prompts that it takes in per second when it does nothing else.
    pub prefill_tokens_per_second: f64,
    /// Time of a decode step, whatever its batch.
    pub step_nanos: Nanos,
    /// What each sequence of the batch adds to it.
    pub sequence_nanos: Nanos,
    /// Tokens of one step at most, decodes and prompts together.
    pub step_tokens: u32,
    /// Sequences that run together at most.
    pub max_sequences: u32,
    /// Requests that wait at most; further ones are told to go elsewhere.
    pub max_waiting: u32,
    /// Tokens of a KV block.
    pub block_tokens: u32,
    /// KV blocks.
    pub kv_blocks: u32,
    /// Tokens of the longest prompt and answer.
    pub context_tokens: u32,
    /// Whether blocks of prompts are kept and found again by later ones that begin alike.
    pub prefix_cache: bool,
}

/// A limit that no pod can work with.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// Something that must be positive is not.
    #[error("{0} of a pod must be above 0: set it")]
    Zero(&'static str),
    /// A step has no room for its decodes.
    #[error(
        "a step of {step_tokens} tokens cannot hold a token of each of {max_sequences} sequences: raise engine.stepTokens or lower engine.maxSequences"
    )]
    StepTooSmall {
        /// The step.
        step_tokens: u32,
        /// The sequences.
        max_sequences: u32,
    },
    /// Prefixes do not fall on the edges of blocks.
    #[error("a KV block of {0} tokens does not divide the 512 tokens of a trace's prefix: use 16")]
    Block(u32),
}

impl PodProfile {
    /// Refuses what cannot run.
    pub fn check(&self) -> Result<(), ProfileError> {
        let positive = [
            (
                "prefill speed",
                self.prefill_tokens_per_second > 0.0 && self.prefill_tokens_per_second.is_finite(),
            ),
            ("the number of sequences", self.max_sequences > 0),
            ("the waiting room", self.max_waiting > 0),
            ("the KV cache", self.kv_blocks > 0),
            ("the context", self.context_tokens > 0),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, holds)| !holds) {
            return Err(ProfileError::Zero(name));
        }
        if self.step_tokens < self.max_sequences {
            return Err(ProfileError::StepTooSmall {
                step_tokens: self.step_tokens,
                max_sequences: self.max_sequences,
            });
        }
        if self.block_tokens == 0 || !crate::trace::PREFIX_TOKENS.is_multiple_of(self.block_tokens)
        {
            return Err(ProfileError::Block(self.block_tokens));
        }
        Ok(())
    }

    /// Tokens that the KV cache holds.
    pub fn kv_tokens(&self) -> u64 {
        u64::from(self.kv_blocks) * u64::from(self.block_tokens)
    }

    /// Tokens of the longest sequence that can run: the context or the whole KV cache, whichever is less.
    pub fn longest_sequence(&self) -> u64 {
        u64::from(self.context_tokens).min(self.kv_tokens())
    }

    /// The same pod on hardware that is `factor` times as fast.
    #[must_use]
    pub fn faster(&self, factor: f64) -> Self {
        Self {
            prefill_tokens_per_second: self.prefill_tokens_per_second * factor,
            step_nanos: (self.step_nanos as f64 / factor) as Nanos,
            sequence_nanos: (self.sequence_nanos as f64 / factor) as Nanos,
            ..*self
        }
    }

    /// Time of a step in which `decodes` sequences decode and `prompt_tokens` tokens of prompts are taken in.
    pub fn step(&self, decodes: u64, prompt_tokens: u64) -> Nanos {
        /// Steps of no time would never end.
        const LEAST: Nanos = 1_000;
        let decode = if decodes == 0 {
            0
        } else {
            self.step_nanos + self.sequence_nanos * decodes
        };
        let prefill = prompt_tokens as f64 / self.prefill_tokens_per_second;
        (decode + crate::time::from_seconds(prefill)).max(LEAST)
    }
}
