//! An answer as a stream of events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::IntoResponse;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use futures::Stream;
use pagoda_engine_core::{FinishReason, TokenLogprobs};
use serde_json::Value;

use super::errors::ApiError;
use super::generate::{Running, reason_of};
use super::reader::Delta;
use super::shape::Endpoint;
use crate::engine::{ChoiceEvent, Event, Piece};

/// How often a silent stream shows that it lives, so that proxies keep it and a client that left is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A stream under way. Dropping it, which the server does when the client leaves, cancels the generation.
struct Streaming {
    running: Running,
    /// For completions, characters of each choice's text so far.
    offsets: Vec<usize>,
    ready: VecDeque<SseEvent>,
    over: bool,
}

/// Streams an answer.
pub fn stream(running: Running) -> impl IntoResponse {
    let mut streaming = Streaming {
        offsets: vec![0; running.readers.len()],
        running,
        ready: VecDeque::new(),
        over: false,
    };
    streaming.open();
    Sse::new(streaming.into_events()).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

impl Streaming {
    fn into_events(self) -> impl Stream<Item = Result<SseEvent, Infallible>> {
        futures::stream::unfold(self, |mut streaming| async {
            let event = streaming.next().await?;
            Some((Ok(event), streaming))
        })
    }

    fn send(&mut self, chunk: &Value) {
        self.ready
            .push_back(SseEvent::default().data(chunk.to_string()));
    }

    /// Roles, and echoes whose log probabilities nobody wants: those come with the first piece.
    fn open(&mut self) {
        for choice in 0..self.running.readers.len() {
            let echo = &self.running.echoes[choice];
            let chunk = match self.running.shape.endpoint {
                Endpoint::Chat => self.running.shape.opening_chunk(choice),
                Endpoint::Completions if echo.text.is_empty() || echo.first.is_some() => continue,
                Endpoint::Completions => {
                    let nothing = self.logprobs(choice, None, &[], &[]);
                    let text = self.running.echoes[choice].text.clone();
                    self.offsets[choice] += text.chars().count();
                    self.running.shape.text_chunk(choice, &text, &nothing)
                }
            };
            self.send(&chunk);
        }
    }

    async fn next(&mut self) -> Option<SseEvent> {
        while self.ready.is_empty() && !self.over {
            let event = self.running.generation.next().await;
            self.take(event);
        }
        self.ready.pop_front()
    }

    fn take(&mut self, event: Option<ChoiceEvent>) {
        let Some(ChoiceEvent { choice, event }) = event else {
            self.end();
            return;
        };
        match event {
            Event::Piece(piece) => self.piece(choice, piece),
            Event::Finished {
                reason,
                completion_tokens,
                cached_tokens,
            } => {
                self.running.count(choice, completion_tokens, cached_tokens);
                self.close(choice, reason);
            }
            Event::Failed(failure) => {
                self.send(&ApiError::from(failure).to_json());
                self.over = true;
            }
            Event::Accepted | Event::Refused(_) | Event::Embedding(_) => {}
        }
    }

    fn piece(&mut self, choice: usize, mut piece: Piece) {
        let prompt = std::mem::take(&mut piece.prompt);
        let Some(reader) = self.running.readers.get_mut(choice) else {
            return;
        };
        let deltas = reader.push(piece);
        match self.running.shape.endpoint {
            Endpoint::Chat => self.deltas(choice, &deltas),
            Endpoint::Completions => self.text(choice, &prompt, deltas),
        }
    }

    /// Each part is a chunk; log probabilities go with the first of them.
    fn deltas(&mut self, choice: usize, deltas: &[Delta]) {
        for delta in deltas {
            let logprobs = self.running.readers[choice].take_logprobs();
            let chunk = self.running.shape.delta_chunk(choice, delta, &logprobs);
            self.send(&chunk);
        }
    }

    fn text(&mut self, choice: usize, prompt: &[TokenLogprobs], deltas: Vec<Delta>) {
        let tokens = self.running.readers[choice].take_logprobs();
        // The prompt's first token has no entry of its own, so it goes with the first piece in any case.
        let first = self.running.echoes[choice].first.take();
        let mut text = match first {
            Some(_) => std::mem::take(&mut self.running.echoes[choice].text),
            None => String::new(),
        };
        for delta in deltas {
            if let Delta::Content(more) = delta {
                text.push_str(&more);
            }
        }
        let logprobs = self.logprobs(choice, first, prompt, &tokens);
        let chunk = self.running.shape.text_chunk(choice, &text, &logprobs);
        self.send(&chunk);
    }

    fn logprobs(
        &mut self,
        choice: usize,
        first: Option<u32>,
        prompt: &[TokenLogprobs],
        tokens: &[TokenLogprobs],
    ) -> Value {
        let shape = &self.running.shape.logprobs;
        shape.completion(first, prompt, tokens, &mut self.offsets[choice])
    }

    fn close(&mut self, choice: usize, reason: FinishReason) {
        let Some(reader) = self.running.readers.get_mut(choice) else {
            return;
        };
        let (rest, finish) = reader.finish(reason);
        let has_more = reader.has_logprobs() || self.running.echoes[choice].first.is_some();
        match self.running.shape.endpoint {
            Endpoint::Chat => self.deltas(choice, &rest),
            // Tokens without text, or the echo of a prompt of one token: no piece took them along.
            Endpoint::Completions if has_more => self.text(choice, &[], rest),
            Endpoint::Completions => {}
        }
        let finish = reason_of(finish, self.running.is_prompt_only);
        let left = self.running.readers[choice].take_logprobs();
        let chunk = self.running.shape.closing_chunk(choice, finish, &left);
        self.send(&chunk);
    }

    fn end(&mut self) {
        self.over = true;
        if self.running.shape.include_usage {
            let chunk = self.running.shape.usage_chunk(self.running.usage);
            self.send(&chunk);
        }
        self.ready.push_back(SseEvent::default().data("[DONE]"));
    }
}
