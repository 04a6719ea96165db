//! The seam between scheduler and computation.

use crate::config::Pooling;
use crate::error::ExecutorError;

/// Consecutive tokens of one sequence to compute in a step: a piece of a prompt, or one token to decode.
#[derive(Clone, Copy, Debug)]
pub struct StepRow<'a> {
    /// Token ids, at least one.
    pub tokens: &'a [u32],
    /// Position of `tokens[0]` in its sequence.
    pub start: usize,
    /// Ids of the blocks of positions 0.. of the sequence, at least up to the last token's.
    pub block_table: &'a [u32],
    /// How many of the row's last tokens want logits: none, the last one, or more, up to all of `tokens`. A row of logits
    /// takes four bytes a token of the vocabulary.
    pub logits: usize,
}

/// What an executor is and can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorInfo {
    /// Kind of executor: `cpu`.
    pub name: &'static str,
    /// Instruction set in use, by the name that `PAGODA_CPU` takes.
    pub isa: &'static str,
    /// The model's architecture: `llama`.
    pub architecture: String,
    /// Weight format of most of the model's bytes: `Q4_1`.
    pub quantization: String,
    /// Token ids are below this; logits rows have this many values.
    pub vocab_size: usize,
    /// Positions are below this.
    pub context_tokens: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Block ids are below this.
    pub block_count: usize,
    /// Bytes of weights held in memory.
    pub weight_bytes: u64,
    /// Bytes of the key and value store when full.
    pub kv_bytes: u64,
    /// How the model makes embeddings of texts; `None` for one that was not made for that.
    pub pooling: Option<Pooling>,
}

/// Rows of logits, one a token that wanted them, in order of the step's rows and of each row's tokens.
///
/// Values are finite unless the model's activations overflowed `f32`; samplers must not assume they never are.
#[derive(Clone, Debug, Default)]
pub struct Logits {
    vocab_size: usize,
    data: Vec<f32>,
}

impl Logits {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.vocab_size).unwrap_or(0)
    }

    /// Row `row`: a value a token of the vocabulary.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.vocab_size..][..self.vocab_size]
    }

    /// Row `row`, for processors that change it in place.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.data[row * self.vocab_size..][..self.vocab_size]
    }

    /// Makes room for `rows` rows of `vocab_size` values, whose content is unspecified, and returns it. For executors.
    pub fn reset(&mut self, rows: usize, vocab_size: usize) -> &mut [f32] {
        self.vocab_size = vocab_size;
        self.data.resize(rows * vocab_size, 0.0);
        &mut self.data
    }
}

/// Computes steps. Owns the stored keys and values; the caller owns which block belongs to whom.
pub trait Executor: Send {
    /// What this executor is and can hold.
    fn info(&self) -> &ExecutorInfo;

    /// Computes all tokens of `rows`, storing their keys and values in their blocks, and fills `logits` with a row for each
    /// token that wants one. Positions below a row's `start` were computed before, or by an earlier row of this step.
    ///
    /// Results depend on each row's sequence alone: not on other rows, nor on how a prompt was cut, nor on threads.
    fn forward(&mut self, rows: &[StepRow<'_>], logits: &mut Logits) -> Result<(), ExecutorError>;

    /// As [`Self::forward`], but what fills `states` for each token that wants logits is the model's state before its head,
    /// normalised: of all tokens as many values. For embeddings: see [`crate::PooledStates`].
    fn states(&mut self, rows: &[StepRow<'_>], states: &mut Vec<f32>) -> Result<(), ExecutorError> {
        let _ = (rows, states);
        Err(ExecutorError::NoEmbeddings)
    }
}
