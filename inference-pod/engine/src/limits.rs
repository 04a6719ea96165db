//! What a scheduler may use, and what it refuses because of that.

/// What the scheduler may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences computed in one step at most.
    pub max_sequences: usize,
    /// Sequences that may wait: new ones beyond it are refused. Preempted ones always find a place.
    pub max_waiting: usize,
    /// Tokens computed in one step at most; at least `max_sequences`, so that every decode fits.
    pub step_tokens: usize,
    /// Tokens in one block.
    pub block_tokens: usize,
    /// Blocks in the pool.
    pub block_count: u32,
    /// Tokens of the longest sequence the model can take.
    pub context_tokens: usize,
}
/// Limits that no scheduler can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// A limit is zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The budget is smaller than one token a sequence.
    #[error(
        "a step of {step_tokens} tokens cannot hold one token for each of {max_sequences} sequences: raise the step or lower the sequences"
    )]
    StepTooSmall {
        /// The budget.
        step_tokens: usize,
        /// The sequences.
        max_sequences: usize,
    },
}

impl Limits {
    /// Tokens of the longest sequence that can run: the context or the whole pool, whichever is less.
    pub fn longest_sequence(&self) -> usize {
        self.context_tokens
            .min(self.block_tokens * self.block_count as usize)
    }

    /// Whether a prompt of `prompt_tokens` tokens could ever run.
    pub fn check_prompt(&self, prompt_tokens: usize) -> Result<(), Refusal> {
        let longest = self.longest_sequence();
        if prompt_tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if prompt_tokens < longest {
            return Ok(());
        }
        let limit = if longest == self.context_tokens {
            LengthLimit::Context(longest)
        } else {
            LengthLimit::KvMemory(longest)
        };
        Err(Refusal::TooLong {
            prompt_tokens,
            longest_prompt: longest - 1,
            limit,
        })
    }

    pub(crate) fn check(self) -> Result<Self, LimitsError> {
        let positive = [
            ("max_sequences", self.max_sequences),
            ("block_tokens", self.block_tokens),
            ("block_count", self.block_count as usize),
            ("context_tokens", self.context_tokens),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(LimitsError::Zero(name));
        }
        let Self {
            step_tokens,
            max_sequences,
            ..
        } = self;
        if step_tokens < max_sequences {
            return Err(LimitsError::StepTooSmall {
                step_tokens,
                max_sequences,
            });
        }
        Ok(self)
    }
}

/// Why a sequence was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// It can never run, whoever else leaves: the prompt and one more token do not fit.
    #[error("the prompt has {prompt_tokens} tokens, but at most {longest_prompt} fit: {limit}")]
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the longest prompt that leaves room for one token of answer.
        longest_prompt: usize,
        /// What sets that length.
        limit: LengthLimit,
    },
    /// Too many wait already; later it may be accepted.
    #[error("{waiting} requests are waiting already")]
    QueueFull {
        /// Sequences that wait.
        waiting: usize,
    },
}

/// What limits the length of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthLimit {
    /// The model's context, in tokens.
    Context(usize),
    /// The KV memory, in tokens.
    KvMemory(usize),
}

impl std::fmt::Display for LengthLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Context(tokens) => write!(
                f,
                "the context is {tokens} tokens and the answer needs at least one"
            ),
            Self::KvMemory(tokens) => write!(
                f,
                "the KV memory holds {tokens} tokens and the answer needs at least one"
            ),
        }
    }
}
