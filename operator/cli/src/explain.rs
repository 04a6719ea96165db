//! `pagoda explain`: the last hour of decisions about a service, as the operator remembers them.

mod fetch;
mod plot;
mod rows;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal, Write, stdout};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use pagoda_operator_core::explain::DecisionLog;

/// Columns of a plot that goes to no terminal.
const COLUMNS: usize = 100;
const FEWEST_COLUMNS: usize = 40;
const MOST_COLUMNS: usize = 400;

/// What to explain, and how.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Name of the InferenceService
    name: String,
    /// Its namespace; by default the kubeconfig's
    #[arg(short, long)]
    namespace: Option<String>,
    /// How far back, up to an hour, such as 90s, 10m or 1h
    #[arg(long, default_value = "1h", value_parser = seconds)]
    since: i64,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Namespace of the operator
    #[arg(long, default_value = pagoda_crds::names::SYSTEM_NAMESPACE)]
    system_namespace: String,
    /// Context of the kubeconfig
    #[arg(long)]
    context: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// What changed, one line each
    Table,
    /// Everything that is known
    Json,
    /// Everything that is known, one line for each span and metric
    Csv,
    /// Pods and the metric that asked for the most, over time
    Plot,
}

/// Fetches and shows.
pub fn run(arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start")?;
    let log = runtime.block_on(fetch::decisions(arguments))?;
    let log = since(log, arguments.since);
    if log.spans.is_empty() {
        bail!(
            "nothing was decided about {}/{} in that time",
            log.namespace,
            log.name
        );
    }
    let text = match arguments.format {
        Format::Table => rows::table(&log),
        Format::Csv => rows::csv(&log),
        Format::Plot => plot::plot(&log, columns(), colours()),
        Format::Json => serde_json::to_string_pretty(&log)? + "\n",
    };
    match stdout().write_all(text.as_bytes()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("failed to write"),
    }
}

/// The part of a log that reaches back no further.
fn since(mut log: DecisionLog, seconds: i64) -> DecisionLog {
    let first = log.now.saturating_sub(seconds);
    log.spans.retain(|span| span.until >= first);
    for span in &mut log.spans {
        span.from = span.from.max(first);
    }
    log
}

fn columns() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok());
    let seen = || {
        let (_, columns) = console::Term::stdout().size_checked()?;
        Some(usize::from(columns))
    };
    let columns: usize = told.or_else(seen).unwrap_or(COLUMNS);
    columns.clamp(FEWEST_COLUMNS, MOST_COLUMNS)
}

/// Colours are for eyes: not for files, and not for those who ask for none (no-color.org).
fn colours() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn seconds(text: &str) -> Result<i64, String> {
    let wrong = || "must be a time such as 90s, 10m or 1h, up to an hour".to_owned();
    let digits = text.trim_end_matches(['s', 'm', 'h']);
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let seconds = digits.parse::<u32>().map(|n| i64::from(n) * unit);
    seconds
        .ok()
        .filter(|seconds| (1..=3600).contains(seconds))
        .ok_or_else(wrong)
}
