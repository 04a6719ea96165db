//! What can be wrong with an answer.

use std::time::Duration;

use super::http::{Answer, Fate};

/// Not even UTF-8, and longer than a line.
const GARBAGE: &[u8] = b"\xff\xfe<html>502 Bad Gateway</html>\nvllm:num_requests_running{ 7";

/// What is wrong with whoever is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// The connection ends without an answer.
    Gone,
    /// The connection is never answered.
    Silent,
    /// The answer comes so late.
    Slow(Duration),
    /// A status other than 200.
    Status(u16),
    /// Bytes that are no metrics.
    Garbage,
    /// What counts requests says `NaN`.
    NotANumber,
    /// What counts requests is below zero.
    Negative,
}

/// How what counts requests is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// As it is.
    Plain,
    /// As these words, whatever it is.
    As(&'static str),
}

impl Fault {
    /// The answer whose text, where there is one, `render` makes.
    pub(super) fn answer(self, render: impl FnOnce(Counted) -> Vec<u8>) -> Answer {
        match self {
            Self::None => Answer::metrics(render(Counted::Plain)),
            Self::Gone => Answer::none(Fate::Close),
            Self::Silent => Answer::none(Fate::Silence),
            Self::Slow(delay) => Answer::metrics(render(Counted::Plain)).after(delay),
            Self::Status(status) => Answer::of_status(status),
            Self::Garbage => Answer::metrics(GARBAGE.to_vec()),
            Self::NotANumber => Answer::metrics(render(Counted::As("NaN"))),
            Self::Negative => Answer::metrics(render(Counted::As("-5"))),
        }
    }
}
