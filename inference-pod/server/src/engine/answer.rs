//! One answer under way: its sampler, its text so far, and the strings that end it.

use pagoda_engine_core::{NewSequence, SampleError, Sampler};
use pagoda_text::{StopMatcher, StreamDecoder};

use super::request::NewChoice;
use crate::language::Language;

/// What a token added to an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Text that can be shown: whole characters, no part of a possible stop string.
    pub(super) text: String,
    /// A stop string appeared; neither it nor what follows is in `text`.
    pub(super) stopped: bool,
}

pub(super) struct Answer {
    sampler: Sampler,
    decoder: StreamDecoder,
    stop: StopMatcher,
    tokens: usize,
}

impl Answer {
    /// Splits a choice into what the scheduler needs and what stays here.
    pub(super) fn begin(choice: NewChoice) -> (NewSequence, Self) {
        let NewChoice {
            prompt,
            max_new_tokens,
            sampling,
            stop,
            stop_tokens,
        } = choice;
        let answer = Self {
            sampler: Sampler::new(sampling),
            decoder: StreamDecoder::new(),
            stop: StopMatcher::new(&stop),
            tokens: 0,
        };
        (
            NewSequence {
                prompt,
                max_new_tokens,
                stop_tokens,
                ..NewSequence::default()
            },
            answer,
        )
    }

    /// The next token.
    pub(super) fn sample(&mut self, logits: &mut [f32]) -> Result<u32, SampleError> {
        self.sampler.sample(logits)
    }

    /// A token became part of the answer.
    pub(super) fn push(&mut self, token: u32, language: &Language) -> Piece {
        self.tokens += 1;
        let text = self.decoder.push(language.tokenizer(), token);
        let stopped = self.stop.push(&text);
        Piece {
            text: stopped.text,
            stopped: stopped.stop.is_some(),
        }
    }

    /// The answer is over: what was held back. A half character at the very end may still complete a stop string.
    pub(super) fn finish(&mut self) -> String {
        let rest = self.decoder.finish();
        let mut text = self.stop.push(&rest).text;
        text.push_str(&self.stop.finish());
        text
    }

    /// Tokens of the answer so far.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }
}
