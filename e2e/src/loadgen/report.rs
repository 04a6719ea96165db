//! Counts and percentiles of a load, while it runs and when it has ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::chat::{Ending, Outcome};

/// Failed requests, by how they failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failures {
    /// No response, by cause.
    pub connect: BTreeMap<String, u64>,
    /// A status other than 200.
    pub status: BTreeMap<u16, u64>,
    /// Streams that ended without `[DONE]` or a reason.
    pub cut: u64,
    /// Streams that ended with an error event, by code.
    pub error_event: BTreeMap<String, u64>,
    /// Those that took too long.
    pub timeout: u64,
}

impl Failures {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.connect.values().sum::<u64>()
            + self.status.values().sum::<u64>()
            + self.cut
            + self.error_event.values().sum::<u64>()
            + self.timeout
    }

    fn count(&mut self, ending: Ending) {
        match ending {
            Ending::Whole => {}
            Ending::Connect(cause) => *self.connect.entry(cause).or_default() += 1,
            Ending::Status(status) => *self.status.entry(status).or_default() += 1,
            Ending::Cut => self.cut += 1,
            Ending::ErrorEvent(code) => *self.error_event.entry(code).or_default() += 1,
            Ending::Timeout => self.timeout += 1,
        }
    }
}

/// What a load did. Times are in milliseconds; a percentile of nothing is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// From the first request to the last end.
    pub seconds: f64,
    /// Requests sent.
    pub sent: u64,
    /// Requests due but not sent, because as many as allowed were open.
    pub not_sent: u64,
    /// Answered whole.
    pub whole: u64,
    /// Failed.
    pub failed: u64,
    /// How.
    pub failures: Failures,
    /// Whole answers a second.
    pub whole_per_s: f64,
    /// Tokens of prompts, as the server counted them.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Tokens of answers a second.
    pub output_tokens_per_s: f64,
    /// Time to first token, median.
    pub ttft_p50_ms: Option<f64>,
    /// 95th percentile.
    pub ttft_p95_ms: Option<f64>,
    /// 99th percentile.
    pub ttft_p99_ms: Option<f64>,
    /// Time between tokens, median.
    pub itl_p50_ms: Option<f64>,
    /// 95th percentile.
    pub itl_p95_ms: Option<f64>,
    /// 99th percentile.
    pub itl_p99_ms: Option<f64>,
    /// Time of whole answers, median.
    pub total_p50_ms: Option<f64>,
    /// 95th percentile.
    pub total_p95_ms: Option<f64>,
    /// How late requests were sent, 99th percentile: if it is large, the load was not the one asked for.
    pub late_p99_ms: Option<f64>,
}

/// A load while it runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Since the start.
    pub elapsed: Duration,
    /// Requests sent.
    pub sent: u64,
    /// Open now.
    pub in_flight: u64,
    /// Answered whole.
    pub whole: u64,
    /// Failed.
    pub failed: u64,
    /// Tokens a second, lately.
    pub tokens_per_s: f64,
    /// Requests sent a second, lately.
    pub sent_per_s: f64,
    /// Time to first token lately, median, ms.
    pub ttft_p50_ms: Option<f64>,
    /// 95th percentile.
    pub ttft_p95_ms: Option<f64>,
}

/// Requests that "lately" looks at.
const RECENT: usize = 200;

/// Times to a thousandth, kept in microseconds up to an hour.
#[derive(Debug)]
struct Times(Histogram<u64>);

impl Times {
    fn new() -> Self {
        // The bounds are valid ones; the constructor fails on others only.
        Self(Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("valid bounds"))
    }

    fn record(&mut self, time: Duration) {
        self.0
            .saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    fn percentile_ms(&self, percent: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_percentile(percent) as f64 / 1000.0)
    }
}

/// Gathers outcomes.
#[derive(Debug)]
pub struct Tally {
    pub sent: u64,
    pub not_sent: u64,
    whole: u64,
    failures: Failures,
    prompt_tokens: u64,
    output_tokens: u64,
    first_token: Times,
    between_tokens: Times,
    total: Times,
    late: Times,
    recent: VecDeque<Duration>,
}

impl Tally {
    pub fn new() -> Self {
        let (first_token, between_tokens, total, late) =
            (Times::new(), Times::new(), Times::new(), Times::new());
        Self {
            sent: 0,
            not_sent: 0,
            whole: 0,
            failures: Failures::default(),
            prompt_tokens: 0,
            output_tokens: 0,
            first_token,
            between_tokens,
            total,
            late,
            recent: VecDeque::with_capacity(RECENT),
        }
    }

    pub fn sent(&mut self, late: Duration) {
        self.sent += 1;
        self.late.record(late);
    }

    pub fn ended(&mut self, outcome: Outcome) {
        if outcome.ending == Ending::Whole {
            self.whole += 1;
            self.total.record(outcome.took);
        }
        self.failures.count(outcome.ending);
        self.prompt_tokens += outcome.prompt_tokens;
        self.output_tokens += outcome.output_tokens;
        outcome
            .between_tokens
            .into_iter()
            .for_each(|time| self.between_tokens.record(time));
        if let Some(time) = outcome.first_token {
            self.first_token.record(time);
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(time);
        }
    }

    pub fn ended_count(&self) -> u64 {
        self.whole + self.failures.total()
    }

    pub fn snapshot(&self, elapsed: Duration) -> Snapshot {
        let mut recent = Times::new();
        self.recent.iter().for_each(|time| recent.record(*time));
        Snapshot {
            elapsed,
            sent: self.sent,
            in_flight: self.sent - self.ended_count(),
            whole: self.whole,
            failed: self.failures.total(),
            tokens_per_s: 0.0,
            sent_per_s: 0.0,
            ttft_p50_ms: recent.percentile_ms(50.0),
            ttft_p95_ms: recent.percentile_ms(95.0),
        }
    }

    pub fn report(self, elapsed: Duration) -> Report {
        let seconds = elapsed.as_secs_f64();
        let per_second = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        Report {
            seconds,
            sent: self.sent,
            not_sent: self.not_sent,
            whole: self.whole,
            failed: self.failures.total(),
            failures: self.failures,
            whole_per_s: per_second(self.whole),
            prompt_tokens: self.prompt_tokens,
            output_tokens: self.output_tokens,
            output_tokens_per_s: per_second(self.output_tokens),
            ttft_p50_ms: self.first_token.percentile_ms(50.0),
            ttft_p95_ms: self.first_token.percentile_ms(95.0),
            ttft_p99_ms: self.first_token.percentile_ms(99.0),
            itl_p50_ms: self.between_tokens.percentile_ms(50.0),
            itl_p95_ms: self.between_tokens.percentile_ms(95.0),
            itl_p99_ms: self.between_tokens.percentile_ms(99.0),
            total_p50_ms: self.total.percentile_ms(50.0),
            total_p95_ms: self.total.percentile_ms(95.0),
            late_p99_ms: self.late.percentile_ms(99.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(ending: Ending, first_ms: u64) -> Outcome {
        Outcome {
            ending,
            first_token: Some(Duration::from_millis(first_ms)),
            between_tokens: vec![Duration::from_millis(10); 3],
            output_tokens: 4,
            prompt_tokens: 2,
            took: Duration::from_millis(first_ms + 30),
        }
    }

    #[test]
    fn every_request_is_whole_or_failed_in_one_way() {
        let endings = [
            Ending::Whole,
            Ending::Cut,
            Ending::Status(503),
            Ending::Status(503),
            Ending::ErrorEvent("pod_failed".into()),
            Ending::Connect("refused".into()),
            Ending::Timeout,
        ];
        let mut tally = Tally::new();
        for ending in endings {
            tally.sent(Duration::ZERO);
            tally.ended(outcome(ending, 100));
        }
        tally.sent(Duration::from_millis(4));
        assert_eq!(tally.snapshot(Duration::from_secs(1)).in_flight, 1);
        let report = tally.report(Duration::from_secs(2));
        assert_eq!((report.sent, report.whole, report.failed), (8, 1, 6));
        assert_eq!(
            (
                report.failures.status[&503],
                report.failures.cut,
                report.failures.timeout
            ),
            (2, 1, 1)
        );
        assert_eq!(
            (report.output_tokens, report.output_tokens_per_s),
            (28, 14.0)
        );
    }

    #[test]
    fn percentiles_are_those_of_the_times_within_a_thousandth() {
        let mut tally = Tally::new();
        for first_ms in 1..=100 {
            tally.ended(outcome(Ending::Whole, first_ms));
        }
        let report = tally.report(Duration::from_secs(1));
        for (found, exact) in [
            (report.ttft_p50_ms, 50.0),
            (report.ttft_p95_ms, 95.0),
            (report.itl_p50_ms, 10.0),
            (report.total_p50_ms, 80.0),
        ] {
            assert!(
                (found.expect("present") / exact - 1.0).abs() < 0.002,
                "{found:?} for {exact}"
            );
        }
        assert_eq!(report.late_p99_ms, None);
    }
}
