//! Decisions in lines: for people as a table of what changed, for programs as CSV.

use std::fmt::Write;

use k8s_openapi::jiff::Timestamp;
use pagoda_operator_core::explain::{DecisionLog, DecisionSpan, MetricSpan};

/// What changed, oldest first: spans of the same numbers and reason are one line.
pub fn table(log: &DecisionLog) -> String {
    let mut lines = vec![
        ["SINCE", "FOR", "PODS", "READY", "REASON", "WHY"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for group in groups(&log.spans) {
        lines.push(line(group));
    }
    let mut text = format!(
        "{}/{}: the number of pods changed {} times\n",
        log.namespace,
        log.name,
        log.spans.iter().filter(|s| s.replicas != s.current).count()
    );
    aligned(&lines, &mut text);
    text
}

/// Spans that differ in figures alone.
fn groups(spans: &[DecisionSpan]) -> impl Iterator<Item = &[DecisionSpan]> {
    spans.chunk_by(|a, b| (a.current, a.replicas, &a.reason) == (b.current, b.replicas, &b.reason))
}

fn line(group: &[DecisionSpan]) -> Vec<String> {
    let (first, last) = (&group[0], &group[group.len() - 1]);
    let pods = if first.current == first.replicas {
        first.current.to_string()
    } else {
        format!("{} -> {}", first.current, first.replicas)
    };
    vec![
        time(first.from),
        duration(last.until - first.from),
        pods,
        range(group.iter().map(|span| f64::from(span.ready))),
        first.reason.clone(),
        why(group),
    ]
}

/// What the metric that asked for the most said, and what else counted.
fn why(group: &[DecisionSpan]) -> String {
    let first = &group[0];
    let mut parts = Vec::new();
    if let Some(index) = first.winner
        && let Some(metric) = first.metrics.get(index)
    {
        let values = group
            .iter()
            .filter_map(|span| span.metrics.get(index)?.value);
        parts.push(words(metric, &range(values.map(|v| shown(metric, v)))));
    }
    let held = group.iter().map(|span| span.held).max().unwrap_or(0);
    if held > 0 {
        parts.push(format!("{held} held"));
    }
    if let Some(panic) = group.iter().filter_map(|span| span.panic).max() {
        parts.push(format!("a burst asks for {panic}"));
    }
    if let Some(limit) = first.limit {
        parts.push(format!("behavior allows {limit}"));
    }
    if let Some(foreseen) = group.iter().filter_map(|span| span.foreseen).max() {
        parts.push(format!("{foreseen} foreseen"));
    }
    parts.join(", ")
}

fn words(metric: &MetricSpan, values: &str) -> String {
    let target = number(shown(metric, metric.target));
    let name = &metric.metric;
    match metric.unit.as_str() {
        "pods" => format!("{name} {values}, target {target} a pod"),
        "share" => format!("{name} {values} %, target {target} %"),
        "whole" => format!("{name} {values}, target {target}"),
        percentile => format!("{name} {percentile} {values} ms, target {target} ms"),
    }
}

/// In the unit that people read: percent of shares, milliseconds of latencies.
pub fn shown(metric: &MetricSpan, value: f64) -> f64 {
    match metric.unit.as_str() {
        "pods" | "whole" => value,
        "share" => value * 100.0,
        _ => value * 1000.0,
    }
}

/// One line for each span and metric.
pub fn csv(log: &DecisionLog) -> String {
    let mut text = "from,until,current,replicas,ready,pending,held,reason,min_replicas,panic,foreseen,limit,metric,unit,value,target,recommended\n".to_owned();
    for span in &log.spans {
        let mut metrics = span.metrics.iter().map(Some).collect::<Vec<_>>();
        if metrics.is_empty() {
            metrics.push(None);
        }
        for metric in metrics {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", csv_line(span, metric));
        }
    }
    text
}

/// Names of metrics and reasons hold neither commas nor quotes.
fn csv_line(span: &DecisionSpan, metric: Option<&MetricSpan>) -> String {
    let maybe = |value: Option<u32>| value.map_or_else(String::new, |value| value.to_string());
    let mut fields = vec![
        time(span.from),
        time(span.until),
        span.current.to_string(),
        span.replicas.to_string(),
        span.ready.to_string(),
        span.pending.to_string(),
        span.held.to_string(),
        span.reason.clone(),
        span.min_replicas.to_string(),
        maybe(span.panic),
        maybe(span.foreseen),
        maybe(span.limit),
    ];
    match metric {
        Some(metric) => fields.extend([
            metric.metric.clone(),
            metric.unit.clone(),
            metric
                .value
                .map_or_else(String::new, |value| value.to_string()),
            metric.target.to_string(),
            metric.replicas.to_string(),
        ]),
        None => fields.extend(vec![String::new(); 5]),
    }
    fields.join(",")
}

/// Columns as wide as their widest field.
fn aligned(lines: &[Vec<String>], text: &mut String) {
    let width = |column: usize| {
        let fields = lines.iter().filter_map(|line| line.get(column));
        fields.map(|field| field.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    for line in lines {
        let padded: Vec<String> = line
            .iter()
            .zip(&widths)
            .map(|(field, width)| format!("{field:<width$}"))
            .collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
}

/// `HH:MM:SSZ` with the day where it would be wanted.
pub fn time(unix_seconds: i64) -> String {
    Timestamp::from_second(unix_seconds).map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

pub fn duration(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// `3`, or `1..4`.
fn range(values: impl Iterator<Item = f64>) -> String {
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (least, most) = (least.min(value), most.max(value));
    }
    if least > most {
        return "?".to_owned();
    }
    let (least, most) = (number(least), number(most));
    if least == most {
        least
    } else {
        format!("{least}..{most}")
    }
}

/// Three digits are enough to read.
pub fn number(value: f64) -> String {
    let digits = if value.abs() >= 100.0 || value.fract() == 0.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}
