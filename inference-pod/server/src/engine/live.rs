//! A sequence's client side, in the engine's thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pagoda_model::PooledStates;
use tokio::sync::mpsc;

use super::answer::Answer;
use super::request::{ChoiceEvent, Event, Piece};
use crate::metrics::{Metrics, SequenceTimes};

/// Who waits for a sequence, and since when.
pub(super) struct Live {
    pub(super) answer: Answer,
    /// What was computed of a prompt that is to be embedded, and not answered.
    pub(super) embedding: Option<PooledStates>,
    pub(super) events: mpsc::Sender<ChoiceEvent>,
    pub(super) choice: usize,
    pub(super) prompt_tokens: usize,
    /// Tokens of the prompt that need not be computed.
    pub(super) cached_tokens: usize,
    pub(super) stop_tokens: Arc<[u32]>,
    pub(super) arrived: Instant,
    pub(super) queued: Option<Duration>,
    pub(super) first_token: Option<Instant>,
    pub(super) last_token: Option<Instant>,
}

impl Live {
    pub(super) fn send(&self, event: Event) {
        send(&self.events, self.choice, event);
    }

    pub(super) fn send_piece(&self, piece: Piece) {
        if !piece.is_empty() {
            self.send(Event::Piece(piece));
        }
    }

    pub(super) fn note_token(&mut self, metrics: &Metrics) {
        let now = Instant::now();
        match self.last_token {
            None => {
                self.first_token = Some(now);
                let since_arrival = now.saturating_duration_since(self.arrived);
                metrics.first_token(self.prompt_tokens, since_arrival);
            }
            Some(last) => metrics.next_token(now.saturating_duration_since(last)),
        }
        self.last_token = Some(now);
    }

    pub(super) fn times(&self) -> Option<SequenceTimes> {
        let (queue, first, last) = (self.queued?, self.first_token?, self.last_token?);
        let prefill = first.saturating_duration_since(self.arrived + queue);
        Some(SequenceTimes {
            queue,
            prefill,
            decode: last.saturating_duration_since(first),
        })
    }
}

/// A channel has room for all events of its choices, so only a client that left makes this fail; the next step sees that.
pub(super) fn send(events: &mpsc::Sender<ChoiceEvent>, choice: usize, event: Event) {
    if let Err(mpsc::error::TrySendError::Full(_)) = events.try_send(ChoiceEvent { choice, event })
    {
        tracing::error!("an answer had more events than its channel was sized for; one is lost");
    }
}
