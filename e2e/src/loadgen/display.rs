//! What a person sees: one live line while load runs, a table when it has ended.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::replicas::Replicas;
use super::report::{Report, Snapshot};

/// Without a terminal there is no live line, but a plain one this often.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// The live line, on standard error.
pub struct Display {
    live: Option<ProgressBar>,
    last_plain: Duration,
    /// Fewest and most ready pods seen.
    pub seen: Option<(i64, i64)>,
}

impl Display {
    /// Live on a terminal, plain elsewhere.
    pub fn new() -> Self {
        let live = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            // A template without placeholders that could be wrong.
            bar.set_style(
                ProgressStyle::with_template("{spinner} {msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            bar
        });
        Self {
            live,
            last_plain: Duration::ZERO,
            seen: None,
        }
    }

    /// Shows how it goes.
    pub fn show(&mut self, snapshot: &Snapshot, replicas: Option<Replicas>) {
        if let Some(Replicas { ready, .. }) = replicas {
            let (fewest, most) = self.seen.unwrap_or((ready, ready));
            self.seen = Some((fewest.min(ready), most.max(ready)));
        }
        let text = line(snapshot, replicas);
        if let Some(live) = &self.live {
            live.set_message(text);
            live.tick();
        } else if snapshot.elapsed >= self.last_plain + PLAIN_EVERY {
            self.last_plain = snapshot.elapsed;
            eprintln!("{text}");
        }
    }

    /// Takes the live line away.
    pub fn end(&self) {
        if let Some(live) = &self.live {
            live.finish_and_clear();
        }
    }
}

fn line(snapshot: &Snapshot, replicas: Option<Replicas>) -> String {
    let pods = replicas.map_or_else(String::new, |pods| {
        format!("pods {}/{} ready | ", pods.ready, pods.replicas)
    });
    format!(
        "{:4.0} s | {pods}{:.1} req/s | {} open | {} whole, {} failed | {:.0} tok/s | TTFT p50 {} p95 {}",
        snapshot.elapsed.as_secs_f64(),
        snapshot.sent_per_s,
        snapshot.in_flight,
        snapshot.whole,
        snapshot.failed,
        snapshot.tokens_per_s,
        milliseconds(snapshot.ttft_p50_ms),
        milliseconds(snapshot.ttft_p95_ms),
    )
}

fn milliseconds(time: Option<f64>) -> String {
    match time {
        None => "-".into(),
        Some(time) if time >= 10_000.0 => format!("{:.1} s", time / 1000.0),
        Some(time) => format!("{time:.0} ms"),
    }
}

/// The table for people.
pub fn table(report: &Report, pods: Option<(i64, i64)>) -> String {
    let percentiles = |p50, p95, p99| {
        format!(
            "p50 {}   p95 {}   p99 {}",
            milliseconds(p50),
            milliseconds(p95),
            milliseconds(p99)
        )
    };
    let mut rows = vec![
        (
            "requests",
            format!(
                "{} sent, {} whole, {} failed, {} not sent",
                report.sent, report.whole, report.failed, report.not_sent
            ),
        ),
        (
            "throughput",
            format!(
                "{:.2} answers/s, {:.1} tokens/s",
                report.whole_per_s, report.output_tokens_per_s
            ),
        ),
        (
            "time to first token",
            percentiles(report.ttft_p50_ms, report.ttft_p95_ms, report.ttft_p99_ms),
        ),
        (
            "between tokens",
            percentiles(report.itl_p50_ms, report.itl_p95_ms, report.itl_p99_ms),
        ),
        (
            "whole answer",
            format!(
                "p50 {}   p95 {}",
                milliseconds(report.total_p50_ms),
                milliseconds(report.total_p95_ms)
            ),
        ),
        (
            "sent late",
            format!("p99 {}", milliseconds(report.late_p99_ms)),
        ),
    ];
    if let Some((fewest, most)) = pods {
        rows.push(("ready pods", format!("{fewest} to {most}")));
    }
    rows.extend(failure_rows(report));
    let lines: Vec<String> = rows
        .into_iter()
        .map(|(name, value)| format!("{name:<20} {value}"))
        .collect();
    lines.join("\n")
}

fn failure_rows(report: &Report) -> Vec<(&'static str, String)> {
    let failures = &report.failures;
    let mut rows = Vec::new();
    rows.extend(
        failures
            .connect
            .iter()
            .map(|(cause, count)| ("  no response", format!("{count}: {cause}"))),
    );
    rows.extend(
        failures
            .status
            .iter()
            .map(|(status, count)| ("  status", format!("{count}: {status}"))),
    );
    rows.extend(
        failures
            .error_event
            .iter()
            .map(|(code, count)| ("  error in stream", format!("{count}: {code}"))),
    );
    if failures.cut > 0 {
        rows.push((
            "  cut stream",
            format!("{}: ended without [DONE]", failures.cut),
        ));
    }
    if failures.timeout > 0 {
        rows.push(("  timeout", failures.timeout.to_string()));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_pods_only_when_they_are_watched() {
        let snapshot = Snapshot {
            sent_per_s: 2.0,
            ttft_p50_ms: Some(123.4),
            ..Snapshot::default()
        };
        let watched = line(
            &snapshot,
            Some(Replicas {
                replicas: 3,
                ready: 1,
            }),
        );
        assert!(
            watched.contains("pods 1/3 ready") && watched.contains("TTFT p50 123 ms p95 -"),
            "{watched}"
        );
        assert!(!line(&snapshot, None).contains("pods"));
    }

    #[test]
    fn the_table_names_each_kind_of_failure_that_happened() {
        let mut report = Report {
            failed: 3,
            ..Report::default()
        };
        report.failures.cut = 2;
        report.failures.status.insert(503, 1);
        let table = table(&report, Some((0, 3)));
        assert!(
            table.contains("2: ended without [DONE]")
                && table.contains("1: 503")
                && table.contains("0 to 3"),
            "{table}"
        );
        assert!(!table.contains("timeout"));
    }
}
