//! One answer under way: its sampler, its text so far, and the strings that end it.

use std::collections::VecDeque;
use std::sync::Arc;

use pagoda_engine_core::{
    AllowedTokens, NewSequence, PromptOutputs, Sampler, TokenLogprobs, logprobs_of,
};
use pagoda_model::Pooling;
use pagoda_text::structured::Constraint;
use pagoda_text::{StopMatcher, StreamDecoder};

use super::request::{Failure, NewChoice, Piece};
use crate::language::Language;

/// What a token added to an answer.
#[derive(Debug, PartialEq)]
pub(super) struct Progressed {
    /// What can be shown.
    pub(super) piece: Piece,
    /// The answer ends here: its form is complete, or a stop string appeared, and neither it nor what follows is in the
    /// piece.
    pub(super) stopped: bool,
}

pub(super) struct Answer {
    sampler: Sampler,
    decoder: StreamDecoder,
    stop: StopMatcher,
    constraint: Option<Constraint>,
    shown_tokens: Arc<[u32]>,
    tokens: usize,
    prompt: PromptLogprobs,
    prompt_only: bool,
    /// Bytes of text before the next token, sent or not.
    decoded_bytes: usize,
    /// Bytes of text sent.
    sent_bytes: usize,
    /// Log probabilities of tokens that are not sent, with where each begins in the text.
    unsent: VecDeque<(usize, TokenLogprobs)>,
    /// Log probabilities of the token that was drawn and is not yet part of the answer.
    drawn: Option<TokenLogprobs>,
}

/// Log probabilities of a prompt, collected while it is computed.
struct PromptLogprobs {
    top: Option<usize>,
    /// Of tokens 1, 2 and so on.
    collected: Vec<TokenLogprobs>,
    sent: bool,
}

impl Answer {
    /// Splits a choice into what the scheduler needs and what stays here.
    pub(super) fn begin(choice: NewChoice) -> (NewSequence, Self) {
        let answer = Self {
            sampler: Sampler::new(choice.sampling),
            decoder: StreamDecoder::new(),
            stop: StopMatcher::new(&choice.stop),
            constraint: choice.constraint,
            shown_tokens: choice.shown_tokens,
            tokens: 0,
            prompt: PromptLogprobs {
                top: choice.prompt_logprobs,
                collected: Vec::new(),
                sent: false,
            },
            prompt_only: choice.prompt_only,
            decoded_bytes: 0,
            sent_bytes: 0,
            unsent: VecDeque::new(),
            drawn: None,
        };
        let prompt_outputs = match (choice.embedding, choice.prompt_logprobs) {
            (Some(Pooling::Mean | Pooling::First), _) => PromptOutputs::States,
            (None, Some(_)) => PromptOutputs::Logits,
            (Some(Pooling::Last), _) | (None, None) => PromptOutputs::Last,
        };
        let sequence = NewSequence {
            prompt: choice.prompt,
            max_new_tokens: choice.max_new_tokens,
            stop_tokens: choice.stop_tokens,
            class: choice.class,
            deadline: None,
            scope: choice.scope,
            prompt_outputs,
        };
        (sequence, answer)
    }

    /// Draws the next token. Give it to [`Self::push`] unless it ends the answer.
    pub(super) fn sample(&mut self, logits: &mut [f32]) -> Result<u32, Failure> {
        let mask = match &mut self.constraint {
            Some(constraint) => Some(constraint.allowed()?),
            None => None,
        };
        let allowed = mask.as_ref().map(|mask| AllowedTokens(mask.words()));
        let sampled = self.sampler.sample(logits, allowed)?;
        if let Some(constraint) = &mut self.constraint {
            constraint.consume(sampled.token)?;
        }
        self.drawn = sampled.logprobs;
        Ok(sampled.token)
    }

    /// The logits after the prompt's token at `position` (from 0), where token `next` follows. Only positions that are
    /// next in turn count, so a prompt that is computed again changes nothing.
    pub(super) fn note_prompt(&mut self, position: usize, logits: &[f32], next: u32) {
        if let Some(top) = self.prompt.top
            && position == self.prompt.collected.len()
            && !self.prompt.sent
        {
            self.prompt.collected.push(logprobs_of(logits, next, top));
        }
    }

    /// A token became part of the answer.
    pub(super) fn push(&mut self, token: u32, language: &Language) -> Progressed {
        if self.prompt_only {
            let piece = self.piece(String::new());
            return Progressed {
                piece,
                stopped: true,
            };
        }
        self.tokens += 1;
        if let Some(logprobs) = self.drawn.take() {
            self.unsent.push_back((self.decoded_bytes, logprobs));
        }
        let text = self.decode(token, language);
        let out = self.stop.push(&text);
        let piece = self.piece(out.text);
        if out.stop.is_some() {
            // What is left belongs to the stop string.
            self.unsent.clear();
        }
        let is_complete = self
            .constraint
            .as_ref()
            .is_some_and(Constraint::is_complete);
        Progressed {
            piece,
            stopped: out.stop.is_some() || is_complete,
        }
    }

    fn decode(&mut self, token: u32, language: &Language) -> String {
        let tokenizer = language.tokenizer();
        let before = self.decoder.held_bytes();
        let text = if self.shown_tokens.contains(&token) {
            let text = tokenizer.token_text(token).unwrap_or_default();
            self.decoder.push_bytes(text.as_bytes())
        } else {
            self.decoder.push(tokenizer, token)
        };
        self.decoded_bytes += text.len() + self.decoder.held_bytes();
        self.decoded_bytes -= before;
        text
    }

    /// The piece of `text` and of the tokens that begin in what is sent with it.
    fn piece(&mut self, text: String) -> Piece {
        self.sent_bytes += text.len();
        let sent = self
            .unsent
            .partition_point(|(start, _)| *start < self.sent_bytes);
        let logprobs = self.unsent.drain(..sent).map(|(_, logprobs)| logprobs);
        let logprobs = logprobs.collect();
        let prompt = if self.prompt.sent {
            Vec::new()
        } else {
            std::mem::take(&mut self.prompt.collected)
        };
        self.prompt.sent = true;
        Piece {
            prompt,
            text,
            logprobs,
        }
    }

    /// The answer is over: what was held back. A half character at the very end may still complete a stop string.
    pub(super) fn finish(&mut self) -> Piece {
        let rest = self.decoder.finish();
        let out = self.stop.push(&rest);
        let mut text = out.text;
        text.push_str(&self.stop.finish());
        let mut piece = self.piece(text);
        if !self.stop.is_stopped() {
            piece
                .logprobs
                .extend(self.unsent.drain(..).map(|(_, logprobs)| logprobs));
        }
        piece
    }

    /// Tokens of the answer so far.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }
}
