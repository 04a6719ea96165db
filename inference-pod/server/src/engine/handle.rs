//! How the rest of the process talks to the engine's thread.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Instant;

use pagoda_engine_core::{FinishReason, Refusal};
use tokio::sync::mpsc;

use super::heartbeat::Heartbeat;
use super::request::{ChoiceEvent, Command, Event, Failure, NewChoice, Submission};

/// A way to submit work. Clones talk to the same engine.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: SyncSender<Command>,
    heartbeat: Arc<Heartbeat>,
}

/// Why a submission came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The scheduler refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// More arrives than the engine can even look at.
    #[error("too many requests arrive at once")]
    Overloaded,
    /// The engine's thread is gone.
    #[error("the engine stopped")]
    Gone,
}

/// Why a text has no embedding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// It was not taken.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// It was, and came to nothing.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// A text's embedding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embedded {
    /// Of length 1.
    pub vector: Vec<f32>,
    /// Tokens of the text whose keys and values were there already.
    pub cached_tokens: usize,
}

/// An accepted submission. Dropping it cancels whatever is not finished within one step.
#[derive(Debug)]
pub struct Generation {
    events: mpsc::Receiver<ChoiceEvent>,
    unfinished: usize,
}

impl EngineHandle {
    pub(super) fn new(commands: SyncSender<Command>, heartbeat: Arc<Heartbeat>) -> Self {
        Self {
            commands,
            heartbeat,
        }
    }

    /// Submits choices that run side by side, and waits until all of them are queued or refused.
    pub async fn submit(&self, choices: Vec<NewChoice>) -> Result<Generation, SubmitError> {
        let unfinished = choices.len();
        // Room for every token of every choice: the engine never waits for a client, and memory stays bounded by
        // what the client was allowed to ask for. Memory is taken as events arrive, not here.
        let room = choices
            .iter()
            .map(|choice| choice.max_new_tokens.saturating_add(2))
            .sum::<usize>()
            + 1;
        let (sender, mut events) = mpsc::channel(room.min(tokio::sync::Semaphore::MAX_PERMITS));
        let submission = Submission {
            choices,
            events: sender,
            arrived: Instant::now(),
        };
        self.commands
            .try_send(Command::Submit(submission))
            .map_err(|error| match error {
                TrySendError::Full(_) => SubmitError::Overloaded,
                TrySendError::Disconnected(_) => SubmitError::Gone,
            })?;
        match events.recv().await {
            Some(ChoiceEvent {
                event: Event::Refused(refusal),
                ..
            }) => Err(refusal.into()),
            Some(_) => Ok(Generation { events, unfinished }),
            None => Err(SubmitError::Gone),
        }
    }

    /// The embedding of a text of at least one token, and how many of its tokens were computed before. Dropping the future
    /// cancels it.
    pub async fn embed(&self, choice: NewChoice) -> Result<Embedded, EmbedError> {
        let mut generation = self.submit(vec![choice]).await?;
        let mut embedded = Embedded::default();
        while let Some(ChoiceEvent { event, .. }) = generation.next().await {
            match event {
                Event::Embedding(vector) => embedded.vector = vector,
                Event::Finished { cached_tokens, .. } => embedded.cached_tokens = cached_tokens,
                Event::Failed(failure) => return Err(failure.into()),
                Event::Accepted | Event::Refused(_) | Event::Piece(_) => {}
            }
        }
        Ok(embedded)
    }

    /// Asks the engine to end every answer with an error and to leave. Returns whether it was told.
    pub fn stop(&self) -> bool {
        self.commands.try_send(Command::Stop).is_ok()
    }

    /// The sign of life of the engine's thread.
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }
}

impl Generation {
    /// The answers of a request for no tokens at all: each is complete at once.
    pub fn of_nothing(choices: usize) -> Self {
        let (sender, events) = mpsc::channel(choices.max(1));
        for choice in 0..choices {
            let event = Event::Finished {
                reason: FinishReason::Length,
                completion_tokens: 0,
                cached_tokens: 0,
            };
            // The channel has room for all of them.
            let _ = sender.try_send(ChoiceEvent { choice, event });
        }
        Self {
            events,
            unfinished: choices,
        }
    }

    /// The next news; `None` after every choice has finished or failed.
    pub async fn next(&mut self) -> Option<ChoiceEvent> {
        if self.unfinished == 0 {
            return None;
        }
        let Some(event) = self.events.recv().await else {
            // The engine went away without a word: say so once.
            self.unfinished = 0;
            return Some(ChoiceEvent {
                choice: 0,
                event: Event::Failed(Failure::EngineGone),
            });
        };
        if matches!(event.event, Event::Finished { .. } | Event::Failed(_)) {
            self.unfinished -= 1;
        }
        Some(event)
    }
}
