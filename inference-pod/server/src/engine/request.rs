//! What goes into the engine and what comes out.

use std::sync::Arc;
use std::time::Instant;

use pagoda_engine_core::{FinishReason, Refusal, SamplingParams};
use tokio::sync::mpsc;

/// One sequence to generate: one of the `n` choices of a request.
#[derive(Clone, Debug)]
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
/// `Text` and one `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All choices are queued. Comes once, under choice 0.
    Accepted,
    /// No choice is queued. Comes once, under choice 0.
    Refused(Refusal),
    /// More of the answer; never empty, always whole characters.
    Text(String),
    /// The answer is complete.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Tokens of the answer. The token that ended it is not counted.
        completion_tokens: usize,
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
