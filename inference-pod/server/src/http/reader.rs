//! One answer as it comes: its content, its calls of tools, its log probabilities.

use pagoda_engine_core::{FinishReason, TokenLogprobs};
use pagoda_text::tools::{ToolCallParser, ToolEvent, ToolFormat};

use super::tools::{ToolChoice, ToolUse};
use crate::engine::Piece;

/// Why an answer ended, in OpenAI's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// By itself or at a stop string.
    Stop,
    /// At the most tokens.
    Length,
    /// With calls of tools.
    ToolCalls,
}

impl Finish {
    /// `finish_reason`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text for the user.
    Content(String),
    /// A call begins.
    Call {
        /// Its place among the calls.
        index: usize,
        /// Its name for the result that answers it.
        id: String,
        /// The function.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// Whose.
        index: usize,
        /// JSON text.
        text: String,
    },
}

/// How answers of one request are read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// How calls are written; `None` when there are none to expect.
    pub format: Option<ToolFormat>,
    names: Vec<String>,
    /// OpenAI: a call that the client forced by name ends an answer like any other text.
    is_named: bool,
    is_parallel: bool,
}

impl Reading {
    /// For these tools.
    pub fn new(tools: Option<&ToolUse>, format: ToolFormat) -> Self {
        Self {
            format: tools.map(|_| format),
            names: tools
                .into_iter()
                .flat_map(|tools| tools.tools.iter().map(|tool| tool.name.clone()))
                .collect(),
            is_named: tools.is_some_and(|tools| tools.choice == ToolChoice::Named),
            is_parallel: tools.is_none_or(|tools| tools.parallel),
        }
    }
}

/// Reads one choice.
#[derive(Debug)]
pub struct ChoiceReader {
    parser: Option<ToolCallParser>,
    reading: Reading,
    /// Names this choice's calls.
    id: String,
    /// Log probabilities of tokens whose text did not show yet.
    logprobs: Vec<TokenLogprobs>,
}

impl ChoiceReader {
    /// A reader at the start of choice `choice` of the request named `request`.
    pub fn new(reading: &Reading, request: &str, choice: usize) -> Self {
        let parser = reading
            .format
            .map(|format| ToolCallParser::new(format, reading.names.iter().cloned()));
        Self {
            parser,
            reading: reading.clone(),
            id: format!("{request:.20}{choice:02x}"),
            logprobs: Vec::new(),
        }
    }

    /// Takes a piece; log probabilities are for [`Self::take_logprobs`].
    pub fn push(&mut self, piece: Piece) -> Vec<Delta> {
        self.logprobs.extend(piece.logprobs);
        let Some(parser) = &mut self.parser else {
            return content(piece.text);
        };
        let events = parser.push(&piece.text);
        self.deltas(events)
    }

    /// The answer is over: what was held, and why it ended.
    pub fn finish(&mut self, reason: FinishReason) -> (Vec<Delta>, Finish) {
        let events = self.parser.as_mut().map(ToolCallParser::finish);
        let deltas = self.deltas(events.unwrap_or_default());
        let calls = self.parser.as_ref().map_or(0, ToolCallParser::calls);
        let finish = match reason {
            FinishReason::Stop if calls > 0 && !self.reading.is_named => Finish::ToolCalls,
            FinishReason::Stop => Finish::Stop,
            FinishReason::Length => Finish::Length,
        };
        (deltas, finish)
    }

    /// Whether there are log probabilities that nothing took along.
    pub fn has_logprobs(&self) -> bool {
        !self.logprobs.is_empty()
    }

    /// Log probabilities that go with the next part.
    pub fn take_logprobs(&mut self) -> Vec<TokenLogprobs> {
        std::mem::take(&mut self.logprobs)
    }

    fn deltas(&self, events: Vec<ToolEvent>) -> Vec<Delta> {
        let is_wanted = |index: usize| index == 0 || self.reading.is_parallel;
        let delta = |event| match event {
            ToolEvent::Content(text) => Some(Delta::Content(text)),
            ToolEvent::Call { index, name } => is_wanted(index).then(|| Delta::Call {
                index,
                id: self.call_id(index),
                name,
            }),
            ToolEvent::Arguments { index, text } => {
                is_wanted(index).then_some(Delta::Arguments { index, text })
            }
        };
        events.into_iter().filter_map(delta).collect()
    }

    /// Mistral's templates take names of nine letters and digits only.
    fn call_id(&self, index: usize) -> String {
        let id = format!("{}{index:02x}", self.id);
        match self.reading.format {
            Some(ToolFormat::Mistral) => id[id.len() - 9..].to_owned(),
            _ => format!("call_{id}"),
        }
    }
}

fn content(text: String) -> Vec<Delta> {
    if text.is_empty() {
        Vec::new()
    } else {
        vec![Delta::Content(text)]
    }
}

/// A call, complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FinishedCall {
    /// Its name for the result that answers it.
    pub id: String,
    /// The function.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// A complete choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FinishedChoice {
    /// Text for the user.
    pub text: String,
    /// Calls, in order.
    pub calls: Vec<FinishedCall>,
    /// Of the echoed prompt but its first token.
    pub prompt: Vec<TokenLogprobs>,
    /// Of the answer.
    pub logprobs: Vec<TokenLogprobs>,
    /// Why it ended.
    pub finish: Option<Finish>,
    /// Tokens of the answer.
    pub tokens: usize,
}

impl FinishedChoice {
    /// Adds a part.
    pub fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.text.push_str(&text),
            Delta::Call { id, name, .. } => self.calls.push(FinishedCall {
                id,
                name,
                arguments: String::new(),
            }),
            Delta::Arguments { text, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
        }
    }

    /// The mean log probability of its tokens, by which the best of several is chosen; an empty answer is the worst.
    pub fn score(&self) -> f64 {
        if self.logprobs.is_empty() {
            return f64::NEG_INFINITY;
        }
        let sum: f64 = self
            .logprobs
            .iter()
            .map(|token| f64::from(token.logprob))
            .sum();
        sum / self.logprobs.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(parallel: bool, is_named: bool) -> Reading {
        Reading {
            format: Some(ToolFormat::Hermes),
            names: vec!["f".into()],
            is_named,
            is_parallel: parallel,
        }
    }

    fn piece(text: &str) -> Piece {
        Piece {
            text: text.into(),
            ..Piece::default()
        }
    }

    const CALLS: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";

    fn whole(reading: &Reading) -> FinishedChoice {
        let mut reader = ChoiceReader::new(reading, "0123456789abcdef0123456789abcdef", 1);
        let mut choice = FinishedChoice::default();
        reader
            .push(piece(CALLS))
            .into_iter()
            .for_each(|delta| choice.add(delta));
        let (rest, finish) = reader.finish(FinishReason::Stop);
        for delta in rest {
            choice.add(delta);
        }
        choice.finish = Some(finish);
        choice
    }

    #[test]
    fn calls_have_names_of_their_own_and_end_an_answer() {
        let choice = whole(&reading(true, false));
        let names: Vec<(&str, &str)> = choice
            .calls
            .iter()
            .map(|call| (call.id.as_str(), call.arguments.as_str()))
            .collect();
        assert_eq!(
            names,
            [
                ("call_0123456789abcdef01230100", "{\"a\": 1}"),
                ("call_0123456789abcdef01230101", "{}")
            ]
        );
        assert_eq!(choice.finish, Some(Finish::ToolCalls));
    }

    #[test]
    fn without_parallel_calls_there_is_one() {
        assert_eq!(whole(&reading(false, false)).calls.len(), 1);
    }

    #[test]
    fn a_call_forced_by_name_ends_like_any_text() {
        assert_eq!(whole(&reading(true, true)).finish, Some(Finish::Stop));
    }

    #[test]
    fn mistrals_calls_have_names_of_nine_letters() {
        let reading = Reading {
            format: Some(ToolFormat::Mistral),
            ..reading(true, false)
        };
        let reader = ChoiceReader::new(&reading, "0123456789abcdef0123456789abcdef", 1);
        assert_eq!(reader.call_id(2), "f01230102");
    }

    #[test]
    fn without_tools_text_is_text() {
        let mut reader = ChoiceReader::new(&Reading::new(None, ToolFormat::Hermes), "id", 0);
        assert_eq!(reader.push(piece(CALLS)), [Delta::Content(CALLS.into())]);
        assert_eq!(
            reader.finish(FinishReason::Length),
            (vec![], Finish::Length)
        );
    }

    #[test]
    fn the_most_probable_tokens_make_the_best_answer() {
        let choice = |logprobs: &[f32]| FinishedChoice {
            logprobs: logprobs
                .iter()
                .map(|&logprob| TokenLogprobs {
                    token: 0,
                    logprob,
                    top: vec![],
                })
                .collect(),
            ..FinishedChoice::default()
        };
        assert!(choice(&[-1.0, -1.0, -1.0]).score() > choice(&[-1.5]).score());
        assert!(choice(&[-9.0]).score() > choice(&[]).score());
    }
}
