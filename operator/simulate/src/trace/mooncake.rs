//! Mooncake's traces (kvcache-ai/Mooncake, `FAST25-release/traces`): one JSON object a line.

use serde::Deserialize;

use super::{Arrival, PREFIX_TOKENS};
use crate::time::{MILLISECOND, Nanos};

#[derive(Debug, Deserialize)]
struct Row {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Milliseconds of the first row: a trace may begin at any time.
    start: Option<f64>,
}

impl Rows {
    pub(super) fn parse(&mut self, text: &str) -> Result<Arrival, String> {
        let row: Row = serde_json::from_str(text).map_err(|error| {
            format!("not a row of a Mooncake trace ({error}): it wants {{\"timestamp\": MILLISECONDS, \"input_length\": TOKENS, \"output_length\": TOKENS, \"hash_ids\": [ID, ...]}}")
        })?;
        let blocks = row.input_length.div_ceil(PREFIX_TOKENS) as usize;
        if row.hash_ids.len() > blocks {
            return Err(format!(
                "{} hash_ids for {} tokens: there is one for each {PREFIX_TOKENS} tokens of the prompt, so at most {blocks}; correct the row or remove its hash_ids",
                row.hash_ids.len(),
                row.input_length
            ));
        }
        let start = *self.start.get_or_insert(row.timestamp);
        if row.timestamp < start {
            return Err("comes before the first row: sort the trace by timestamp".to_owned());
        }
        let mut prefix = row.hash_ids;
        // The last id may stand for fewer tokens, which no longer prompt has in common.
        prefix.truncate((row.input_length / PREFIX_TOKENS) as usize);
        Ok(Arrival {
            at: ((row.timestamp - start) * MILLISECOND as f64) as Nanos,
            prompt_tokens: row.input_length,
            output_tokens: row.output_length,
            prefix: prefix.into_boxed_slice(),
        })
    }
}
