//! Azure's traces (Azure/AzurePublicDataset, `AzureLLMInferenceTrace_*.csv`): `TIMESTAMP,ContextTokens,GeneratedTokens`.

use jiff::civil::DateTime;

use super::Arrival;
use crate::time::Nanos;

const HEADER: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

#[derive(Debug)]
pub(super) struct Rows {
    start: Option<DateTime>,
}

impl Rows {
    /// None when the header is not this format's.
    pub(super) fn from_header(text: &str) -> Option<Self> {
        text.split(',')
            .map(str::trim)
            .eq(HEADER)
            .then_some(Self { start: None })
    }

    pub(super) fn parse(&mut self, text: &str) -> Result<Arrival, String> {
        let mut columns = text.split(',').map(str::trim);
        let (Some(time), Some(prompt), Some(output), None) = (
            columns.next(),
            columns.next(),
            columns.next(),
            columns.next(),
        ) else {
            return Err("three columns are wanted, TIMESTAMP,ContextTokens,GeneratedTokens: correct the row or remove it".to_owned());
        };
        let at: DateTime = time.parse().map_err(|_| {
            format!(
                "{:?} is no time: write it as 2023-11-16 18:15:46.680590",
                cut(time)
            )
        })?;
        let start = *self.start.get_or_insert(at);
        let since = i128::from(at.duration_since(start).as_secs()) * 1_000_000_000
            + i128::from(at.duration_since(start).subsec_nanos());
        Ok(Arrival {
            at: Nanos::try_from(since).map_err(|_| {
                "comes before the first row: sort the trace by TIMESTAMP".to_owned()
            })?,
            prompt_tokens: tokens("ContextTokens", prompt)?,
            output_tokens: tokens("GeneratedTokens", output)?,
            prefix: Box::default(),
        })
    }
}

fn tokens(name: &str, text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("{name} is {:?}: write a whole number of tokens", cut(text)))
}

/// So much of a text as a message should repeat.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(40);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
