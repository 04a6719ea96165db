//! Traces of requests: read row by row, refused with the line and what to do, shaped on the way.
//!
//! Two formats are read, told apart by their first character: Mooncake's (one JSON object a line:
//! `timestamp` in milliseconds, `input_length`, `output_length`, `hash_ids`, one for each 512 tokens of the prompt) and
//! Azure's (CSV with the header `TIMESTAMP,ContextTokens,GeneratedTokens`).

mod azure;
mod lines;
mod mooncake;
mod shape;
#[cfg(test)]
mod tests;

pub use shape::{Shape, Shaped};

use std::io::BufRead;

use crate::time::Nanos;
use lines::Lines;

/// Tokens of the prompt that one of [`Arrival::prefix`]'s ids stands for, as Mooncake's traces have it.
pub const PREFIX_TOKENS: u32 = 512;

/// More tokens than this in a row are taken for a fault of the file.
pub const MOST_TOKENS: u32 = 1 << 24;

/// A later moment than ten years after the first is taken for a fault of the file.
const LONGEST: Nanos = 10 * 366 * 86_400 * crate::time::SECOND;

/// A request as a trace has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// When it comes, from the first one on.
    pub at: Nanos,
    /// Tokens of its prompt, at least one.
    pub prompt_tokens: u32,
    /// Tokens of its answer, at least one.
    pub output_tokens: u32,
    /// What each full run of [`PREFIX_TOKENS`] of the prompt is called; prompts that begin alike begin with the same ids.
    pub prefix: Box<[u64]>,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read on.
    #[error("line {line}: {source}")]
    Read {
        /// The line, from 1.
        line: u64,
        /// Why.
        source: std::io::Error,
    },
    /// There is not one request.
    #[error(
        "the trace has no request: give a Mooncake trace (one JSON object a line with timestamp, input_length, output_length, hash_ids) or an Azure one (CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens)"
    )]
    Empty,
    /// Neither format.
    #[error(
        "line {line}: neither a Mooncake trace (one JSON object a line) nor an Azure one (CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens): convert it to one of them"
    )]
    Format {
        /// The line, from 1.
        line: u64,
    },
    /// A row is not what its format says.
    #[error("line {line}: {what}")]
    Row {
        /// The line, from 1.
        line: u64,
        /// What is wrong, and what to do.
        what: String,
    },
}

/// The rows of a trace, in order. Ends at the first fault.
#[derive(Debug)]
pub struct Reader<R> {
    lines: Lines<R>,
    format: Option<Format>,
    last: Nanos,
    done: bool,
}

#[derive(Debug)]
enum Format {
    Mooncake(mooncake::Rows),
    Azure(azure::Rows),
}

impl<R: BufRead> Reader<R> {
    /// Reads from `source`, which is not read ahead by more than a line.
    pub fn new(source: R) -> Self {
        Self {
            lines: Lines::new(source),
            format: None,
            last: 0,
            done: false,
        }
    }

    fn row(&mut self) -> Result<Option<Arrival>, TraceError> {
        loop {
            let Some((line, text)) = self.lines.next()? else {
                return if self.format.is_some() && self.lines.rows() > 0 {
                    Ok(None)
                } else {
                    Err(TraceError::Empty)
                };
            };
            let arrival = match &mut self.format {
                Some(Format::Mooncake(rows)) => rows.parse(text),
                Some(Format::Azure(rows)) => rows.parse(text),
                none if text.starts_with('{') => {
                    let mut rows = mooncake::Rows::default();
                    let arrival = rows.parse(text);
                    *none = Some(Format::Mooncake(rows));
                    arrival
                }
                none => {
                    let rows = azure::Rows::from_header(text).ok_or(TraceError::Format { line })?;
                    *none = Some(Format::Azure(rows));
                    continue;
                }
            };
            let arrival = arrival.and_then(|arrival| check(arrival, self.last));
            let arrival = arrival.map_err(|what| TraceError::Row { line, what })?;
            self.lines.count_row();
            self.last = arrival.at;
            return Ok(Some(arrival));
        }
    }
}

fn check(arrival: Arrival, last: Nanos) -> Result<Arrival, String> {
    for (name, tokens) in [
        ("prompt", arrival.prompt_tokens),
        ("answer", arrival.output_tokens),
    ] {
        if !(1..=MOST_TOKENS).contains(&tokens) {
            return Err(format!(
                "a {name} of {tokens} tokens: it must have from 1 to {MOST_TOKENS}; remove the row or correct it"
            ));
        }
    }
    if arrival.at < last {
        return Err("comes before the row above it: sort the trace by its first column".to_owned());
    }
    if arrival.at > LONGEST {
        return Err(
            "comes more than ten years after the first row: correct its time or remove it"
                .to_owned(),
        );
    }
    Ok(arrival)
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Arrival, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let row = self.row().transpose();
        self.done = !matches!(row, Some(Ok(_)));
        row
    }
}
