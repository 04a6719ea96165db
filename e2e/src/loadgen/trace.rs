//! Recorded traffic: the two public formats of LLM request traces.
//!
//! - Lines of JSON (Mooncake): `timestamp` in ms, `input_length`, `output_length` in tokens, `hash_ids` of 512-token blocks.
//! - CSV with a header (Azure): `TIMESTAMP,ContextTokens,GeneratedTokens`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::civil::DateTime;
use serde::Deserialize;
use thiserror::Error;

use super::arrivals::{Arrival, Prefix};

/// Tokens in a block of a Mooncake trace.
const BLOCK_TOKENS: usize = 512;

/// How a trace is played.
#[derive(Clone, Copy, Debug)]
pub struct TraceOptions {
    /// Times faster than recorded.
    pub speedup: f64,
    /// Requests due later than this, after the speed-up, are left out.
    pub duration: Option<Duration>,
    /// Longer prompts are cut to this many tokens.
    pub max_prompt_tokens: usize,
    /// Longer answers are cut to this many tokens.
    pub max_tokens: u32,
}

/// Why a trace cannot be played.
#[derive(Debug, Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("failed to read the trace {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A line is in neither format.
    #[error(
        "line {line} of the trace is neither a JSON object with timestamp, input_length and output_length, nor CSV as TIMESTAMP,ContextTokens,GeneratedTokens: {reason}"
    )]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// Reads a trace; the first request is due at once.
pub fn read_trace(path: &Path, options: TraceOptions) -> Result<Vec<Arrival>, TraceError> {
    let text = std::fs::read_to_string(path).map_err(|source| TraceError::Read {
        path: path.into(),
        source,
    })?;
    parse(&text, options)
}

#[derive(Deserialize)]
struct JsonLine {
    timestamp: f64,
    input_length: usize,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

struct Row {
    seconds: f64,
    prompt_tokens: usize,
    output_tokens: u32,
    block_ids: Vec<u64>,
}

fn parse(text: &str, options: TraceOptions) -> Result<Vec<Arrival>, TraceError> {
    let mut rows = Vec::new();
    for (index, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with("TIMESTAMP"))
    {
        rows.push(row(line.trim()).map_err(|reason| TraceError::Line {
            line: index + 1,
            reason,
        })?);
    }
    rows.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let start = rows.first().map_or(0.0, |row| row.seconds);
    let arrivals = rows.into_iter().map(|row| arrival(row, start, options));
    let within = |arrival: &Arrival| {
        options
            .duration
            .is_none_or(|duration| arrival.due < duration)
    };
    Ok(arrivals.filter(within).collect())
}

fn row(line: &str) -> Result<Row, String> {
    if line.starts_with('{') {
        json_row(line)
    } else {
        csv_row(line)
    }
}

fn json_row(line: &str) -> Result<Row, String> {
    let parsed: JsonLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
    Ok(Row {
        seconds: parsed.timestamp / 1000.0,
        prompt_tokens: parsed.input_length,
        output_tokens: parsed.output_length,
        block_ids: parsed.hash_ids,
    })
}

fn csv_row(line: &str) -> Result<Row, String> {
    let fields: Vec<&str> = line.split(',').collect();
    let [time, prompt, output] = fields[..] else {
        return Err(format!("{} fields instead of 3", fields.len()));
    };
    let time: DateTime = time
        .parse()
        .map_err(|error: jiff::Error| error.to_string())?;
    let since = time
        .duration_since(DateTime::new(2000, 1, 1, 0, 0, 0, 0).map_err(|error| error.to_string())?);
    Ok(Row {
        seconds: since.as_secs_f64(),
        prompt_tokens: prompt
            .trim()
            .parse()
            .map_err(|_| format!("{prompt:?} is no number of tokens"))?,
        output_tokens: output
            .trim()
            .parse()
            .map_err(|_| format!("{output:?} is no number of tokens"))?,
        block_ids: Vec::new(),
    })
}

fn arrival(row: Row, start: f64, options: TraceOptions) -> Arrival {
    Arrival {
        due: Duration::try_from_secs_f64((row.seconds - start) / options.speedup)
            .unwrap_or(Duration::MAX),
        prompt_tokens: row.prompt_tokens.clamp(1, options.max_prompt_tokens.max(1)),
        max_tokens: row.output_tokens.clamp(1, options.max_tokens.max(1)),
        prefix: Prefix {
            block_ids: row.block_ids,
            block_tokens: BLOCK_TOKENS,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: TraceOptions = TraceOptions {
        speedup: 2.0,
        duration: None,
        max_prompt_tokens: 5000,
        max_tokens: 20,
    };

    #[test]
    fn reads_lines_of_json_with_their_shared_blocks() {
        let text = "{\"timestamp\": 3000, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1]}\n{\"timestamp\": 7000, \"input_length\": 10, \"output_length\": 3, \"hash_ids\": [0]}\n";
        let all = parse(text, OPTIONS).expect("a trace");
        assert_eq!(
            all[0],
            Arrival {
                due: Duration::ZERO,
                prompt_tokens: 5000,
                max_tokens: 20,
                prefix: Prefix {
                    block_ids: vec![0, 1],
                    block_tokens: 512
                }
            }
        );
        assert_eq!((all[1].due, all[1].max_tokens), (Duration::from_secs(2), 3));
    }

    #[test]
    fn reads_csv_in_order_of_time_and_cuts_it_at_the_duration() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:05.0000000,34,0\n2023-11-16 18:17:03.5000000,4808,10\n2023-11-17 18:17:03.5,1,1\n";
        let all = parse(
            text,
            TraceOptions {
                duration: Some(Duration::from_mins(1)),
                ..OPTIONS
            },
        )
        .expect("a trace");
        let due: Vec<_> = all
            .iter()
            .map(|arrival| {
                (
                    arrival.due.as_millis(),
                    arrival.prompt_tokens,
                    arrival.max_tokens,
                )
            })
            .collect();
        assert_eq!(due, [(0, 4808, 10), (750, 34, 1)]);
    }

    #[test]
    fn names_the_line_it_cannot_read() {
        for (text, line) in [
            (
                "{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{}\n",
                2,
            ),
            ("2023-11-16 18:17:05,1\n", 1),
            ("yesterday,1,1\n", 1),
            ("2023-11-16 18:17:05,1,-1\n", 1),
        ] {
            let error = parse(text, OPTIONS).expect_err("refused");
            assert!(
                matches!(error, TraceError::Line { line: at, .. } if at == line),
                "{error}"
            );
        }
    }
}
