//! `pagoda-engine wait-idle`: the preStop hook of another server, which gives its open requests time to end.

use std::process::ExitCode;
use std::time::Duration;

use axum::http::Uri;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::Instant;

use crate::cli::WaitIdleArgs;
use crate::failure::Fatal;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A server that computes may be slow to answer.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Readings in a row that count: a request may be between the socket and the scheduler at the moment of one.
const IDLE_READINGS: u32 = 2;
/// Refused connections in a row after which the server is taken for gone.
const GONE_READINGS: u32 = 3;
/// Longest metrics page.
const METRICS_BYTES: usize = 8 << 20;

/// Metrics that count open requests. A server's page has the first of its own names at least.
const RUNNING: [&str; 3] = [
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
];
const WAITING: [&str; 3] = [
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
];

/// What one look tells.
#[derive(Clone, Debug, PartialEq)]
enum Reading {
    /// Requests that are open.
    Open(f64),
    /// Nothing listens any more.
    Gone,
    /// The server cannot be understood, which says nothing about its requests.
    Unknown(String),
}

/// Why the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Idle,
    Gone,
}

/// Decides from readings one after the other.
#[derive(Debug, Default)]
struct Judge {
    idle: u32,
    gone: u32,
}

impl Judge {
    fn take(&mut self, reading: &Reading) -> Option<Over> {
        let is_idle = matches!(reading, Reading::Open(open) if *open <= 0.0);
        self.idle = if is_idle { self.idle + 1 } else { 0 };
        self.gone = if *reading == Reading::Gone {
            self.gone + 1
        } else {
            0
        };
        if self.idle >= IDLE_READINGS {
            Some(Over::Idle)
        } else {
            (self.gone >= GONE_READINGS).then_some(Over::Gone)
        }
    }
}

/// Waits, and lets the container end whatever comes of it.
pub fn run(args: &WaitIdleArgs) -> Result<ExitCode, Fatal> {
    if args.url.scheme_str() != Some("http") {
        return Err(Fatal::invalid_config(format!(
            "{} is no http:// address; the metrics are asked for inside the pod",
            args.url
        )));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Fatal::internal(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(wait(args));
    Ok(ExitCode::SUCCESS)
}

async fn wait(args: &WaitIdleArgs) {
    let limit = Duration::from_secs(args.timeout_seconds);
    let deadline = Instant::now() + limit;
    // Routers hear late that the pod is leaving, and send requests until then.
    let grace = Duration::from_secs(args.grace_seconds).min(limit);
    tokio::time::sleep(grace).await;
    let (client, mut judge) = (client(), Judge::default());
    loop {
        let reading = look(&client, &args.url).await;
        match judge.take(&reading) {
            Some(Over::Idle) => return,
            Some(Over::Gone) => return eprintln!("nothing listens at {} any more", args.url),
            None => {}
        }
        if Instant::now() + LOOK_EVERY > deadline {
            return eprintln!(
                "{} seconds are over, requests may be cut off: {reading:?}",
                args.timeout_seconds
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

type HttpClient = Client<HttpConnector, Empty<Bytes>>;

fn client() -> HttpClient {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn look(client: &HttpClient, url: &Uri) -> Reading {
    match tokio::time::timeout(LOOK_TIMEOUT, read(client, url)).await {
        Ok(reading) => reading,
        Err(_) => Reading::Unknown("the metrics do not come".into()),
    }
}

async fn read(client: &HttpClient, url: &Uri) -> Reading {
    let response = match client.get(url.clone()).await {
        Ok(response) => response,
        Err(error) if is_refused(&error) => return Reading::Gone,
        Err(error) => return Reading::Unknown(error.to_string()),
    };
    if !response.status().is_success() {
        return Reading::Unknown(format!("the metrics answer {}", response.status()));
    }
    match Limited::new(response.into_body(), METRICS_BYTES)
        .collect()
        .await
    {
        Ok(body) => match open_requests(&String::from_utf8_lossy(&body.to_bytes())) {
            Some(open) => Reading::Open(open),
            None => Reading::Unknown("the metrics have none of the names that are known".into()),
        },
        Err(error) => Reading::Unknown(error.to_string()),
    }
}

fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(current) = cause {
        let io = current.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = current.source();
    }
    false
}

/// Requests running and waiting by a page of metrics, over all labels; `None` where it has no such metric.
fn open_requests(page: &str) -> Option<f64> {
    let (mut open, mut is_known) = (0.0, false);
    for line in page.lines() {
        let name_ends = line.find(['{', ' ']).unwrap_or(line.len());
        let (name, rest) = line.split_at(name_ends);
        let is_running = RUNNING.contains(&name);
        if !is_running && !WAITING.contains(&name) {
            continue;
        }
        let after_labels = rest.rsplit_once('}').map_or(rest, |(_, rest)| rest);
        let value: f64 = after_labels.split_whitespace().next()?.parse().ok()?;
        if !value.is_finite() {
            return None;
        }
        open += value;
        is_known |= is_running;
    }
    is_known.then_some(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_in_the_words_of_each_server() {
        let vllm = "# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine=\"0\"} 2.0\n\
            vllm:num_requests_running{engine=\"1\"} 1.0\nvllm:num_requests_waiting{engine=\"0\"} 4.0 1700000000\n";
        assert_eq!(open_requests(vllm), Some(7.0));
        let sglang = "sglang:num_running_reqs{model_name=\"a b}\"} 0.0\nsglang:num_queue_reqs 0\n";
        assert_eq!(open_requests(sglang), Some(0.0));
        let llama = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n";
        assert_eq!(open_requests(llama), Some(3.0));
    }

    #[test]
    fn what_is_not_understood_is_not_idle() {
        for page in [
            "",
            "<html>",
            "other_metric 0",
            "vllm:num_requests_waiting 0",
            "vllm:num_requests_running NaN",
            "vllm:num_requests_running",
            "vllm:num_requests_running_total 0",
        ] {
            assert_eq!(open_requests(page), None, "{page}");
        }
    }

    #[test]
    fn only_certainty_ends_the_wait() {
        let over = |readings: &[Reading]| {
            let mut judge = Judge::default();
            let judged: Vec<_> = readings.iter().map(|reading| judge.take(reading)).collect();
            judged.last().copied().flatten()
        };
        let (idle, busy) = (Reading::Open(0.0), Reading::Open(1.0));
        let unknown = Reading::Unknown(String::new());
        assert_eq!(over(&[idle.clone(), idle.clone()]), Some(Over::Idle));
        assert_eq!(over(&[idle.clone(), busy, idle.clone()]), None);
        assert_eq!(over(&[idle.clone(), unknown.clone(), idle]), None);
        assert_eq!(over(&vec![unknown; 50]), None);
        assert_eq!(over(&[Reading::Gone, Reading::Gone]), None);
        assert_eq!(over(&vec![Reading::Gone; 3]), Some(Over::Gone));
    }
}
