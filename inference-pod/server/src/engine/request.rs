//! What goes into the engine and what comes out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pagoda_engine_core::{CacheScope, Class, FinishReason, Refusal, SamplingParams, TokenLogprobs};
use pagoda_model::Pooling;
use pagoda_text::structured::Constraint;
use tokio::sync::mpsc;

/// One sequence to generate: one of the `n` choices of a request.
#[derive(Clone, Debug, Default)]
pub struct NewChoice {
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most, at least one.
    pub max_new_tokens: usize,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Strings that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer and are not part of it.
    pub stop_tokens: Arc<[u32]>,
    /// Report the log probability of every token of the prompt but the first, with as many of the most probable ones.
    pub prompt_logprobs: Option<usize>,
    /// Only the prompt is wanted: one token is computed and thrown away.
    pub prompt_only: bool,
    /// The prompt's embedding is wanted, made like this, and no answer.
    pub embedding: Option<Pooling>,
    /// Control tokens whose text is part of the answer, such as those around tool calls.
    pub shown_tokens: Arc<[u32]>,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// How urgent it is.
    pub class: Class,
    /// Whose stored keys and values it may read.
    pub scope: CacheScope,
    /// Time after its arrival at which it is worth nothing any more.
    pub timeout: Option<Duration>,
}

/// What one step or several added to an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Tokens of the prompt but the first, in the first piece of a choice that asked for them.
    pub prompt: Vec<TokenLogprobs>,
    /// Whole characters, no part of a possible stop string.
    pub text: String,
    /// The tokens that begin in the text sent so far, where log probabilities are wanted: over all pieces every token
    /// of the answer once. Tokens of a stop string are not among them.
    pub logprobs: Vec<TokenLogprobs>,
}

impl Piece {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.prompt.is_empty() && self.text.is_empty() && self.logprobs.is_empty()
    }
}

/// News of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceEvent {
    /// Its index in the submission.
    pub choice: usize,
    /// The news.
    pub event: Event,
}

/// News of a choice. A submission is first accepted or refused as a whole; then every choice has any number of
/// pieces, or one embedding, and one `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All choices are queued. Comes once, under choice 0.
    Accepted,
    /// No choice is queued. Comes once, under choice 0.
    Refused(Refusal),
    /// More of the answer; never empty.
    Piece(Piece),
    /// The prompt's embedding: a vector of length 1.
    Embedding(Vec<f32>),
    /// The answer is complete.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Tokens of the answer. The token that ended it is not counted.
        completion_tokens: usize,
        /// Tokens of the prompt whose keys and values were there already.
        cached_tokens: usize,
    },
    /// The answer ends here, incomplete.
    Failed(Failure),
}

/// Why an answer is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The forward pass failed for this sequence.
    #[error("the model failed: {0}")]
    Executor(String),
    /// The model's output could not be sampled.
    #[error("{0}")]
    Sampling(#[from] pagoda_engine_core::SampleError),
    /// What the model computed of a text is no number.
    #[error(
        "the model's states of this text are not finite: its weights are damaged, or their format cannot hold them"
    )]
    NotFinite,
    /// The request's time was over before its answer was complete.
    #[error("the time that the request allowed for its answer is over")]
    DeadlineExceeded,
    /// The answer cannot be kept to its form.
    #[error(transparent)]
    Form(#[from] pagoda_text::structured::ConstraintError),
    /// The process ends.
    #[error("the server is shutting down before this answer is complete")]
    ShuttingDown,
    /// The engine's thread is gone.
    #[error("the engine stopped unexpectedly")]
    EngineGone,
}

/// A request on its way to the engine.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) choices: Vec<NewChoice>,
    pub(super) events: mpsc::Sender<ChoiceEvent>,
    pub(super) arrived: Instant,
}

/// What the engine's thread is told.
#[derive(Debug)]
pub(super) enum Command {
    Submit(Submission),
    /// End all answers with an error and leave.
    Stop,
}
