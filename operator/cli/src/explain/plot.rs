//! Pods and the metric that asked for the most, over time, in characters.

use std::fmt::Write;

use pagoda_operator_core::explain::{DecisionLog, DecisionSpan};

use super::rows::{duration, number, shown, time};

const POD_LINES: usize = 8;
const METRIC_LINES: usize = 6;
/// Room for the numbers at the left.
const MARGIN: usize = 9;
/// Eighths of a line.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const GREEN: &str = "\u{1b}[32m";
const BLUE: &str = "\u{1b}[34m";
const PLAIN: &str = "\u{1b}[0m";

/// A plot so many columns wide.
pub fn plot(log: &DecisionLog, columns: usize, colours: bool) -> String {
    let width = columns.saturating_sub(MARGIN + 1).max(10);
    let moments = moments(&log.spans, width);
    let mut text = format!("{}/{}\n", log.namespace, log.name);
    let pods: Vec<Option<f64>> = moments
        .iter()
        .map(|span| Some(f64::from(span.as_ref()?.replicas)))
        .collect();
    panel(
        &mut text,
        "pods",
        &pods,
        POD_LINES,
        colours.then_some(GREEN),
    );
    if let Some(name) = winner(&log.spans) {
        let values: Vec<Option<f64>> = moments
            .iter()
            .map(|span| value_of(span.as_ref()?, &name))
            .collect();
        let title = title(&log.spans, &name);
        panel(
            &mut text,
            &title,
            &values,
            METRIC_LINES,
            colours.then_some(BLUE),
        );
    }
    axis(&mut text, &log.spans, width);
    text
}

/// What held at each column; where decisions are missing, nothing.
fn moments(spans: &[DecisionSpan], width: usize) -> Vec<Option<&DecisionSpan>> {
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
        return vec![None; width];
    };
    let length = (last.until - first.from).max(1);
    let at = |column: usize| {
        let from = first.from + length * column as i64 / width as i64;
        let until = first.from + length * (column as i64 + 1) / width as i64;
        // Of several the largest: a peak must not hide between two columns.
        let within = spans.iter().filter(|s| s.from <= until && s.until >= from);
        let most = within.max_by_key(|span| span.replicas);
        // The operator looks at a quiet service every few seconds: until the next span the last one holds.
        most.or_else(|| spans.iter().rev().find(|span| span.until < from))
    };
    (0..width).map(at).collect()
}

/// The metric that asked for the most, most of the time.
fn winner(spans: &[DecisionSpan]) -> Option<String> {
    let mut seconds: Vec<(&str, i64)> = Vec::new();
    for span in spans {
        let Some(metric) = span.winner.and_then(|index| span.metrics.get(index)) else {
            continue;
        };
        let length = span.until - span.from + 1;
        match seconds.iter_mut().find(|(name, _)| *name == metric.metric) {
            Some((_, sum)) => *sum += length,
            None => seconds.push((&metric.metric, length)),
        }
    }
    let most = seconds.into_iter().max_by_key(|(_, seconds)| *seconds);
    most.map(|(name, _)| name.to_owned())
}

fn value_of(span: &DecisionSpan, name: &str) -> Option<f64> {
    let metric = span.metrics.iter().find(|metric| metric.metric == name)?;
    Some(shown(metric, metric.value?))
}

fn title(spans: &[DecisionSpan], name: &str) -> String {
    let found = |span: &DecisionSpan| span.metrics.iter().find(|m| m.metric == name).cloned();
    let Some(metric) = spans.iter().rev().find_map(found) else {
        return name.to_owned();
    };
    let target = number(shown(&metric, metric.target));
    match metric.unit.as_str() {
        "pods" => format!("{name} in all, target {target} a pod"),
        "whole" => format!("{name}, target {target}"),
        "share" => format!("{name} in percent, target {target}"),
        percentile => format!("{name} {percentile} in ms, target {target}"),
    }
}

/// Columns filled up to their values.
fn panel(
    text: &mut String,
    title: &str,
    values: &[Option<f64>],
    lines: usize,
    colour: Option<&str>,
) {
    let most = values.iter().flatten().copied().fold(0.0, f64::max);
    let top = if most > 0.0 { most } else { 1.0 };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{:MARGIN$} {title}", "");
    for line in (0..lines).rev() {
        let label = match line {
            0 => "0".to_owned(),
            line if line == lines - 1 => number(top),
            _ => String::new(),
        };
        let bars: String = values
            .iter()
            .map(|value| block(value.unwrap_or(0.0) / top, line, lines))
            .collect();
        let bars = bars.trim_end();
        let label_width = MARGIN - 1;
        let _ = match colour.filter(|_| !bars.is_empty()) {
            Some(colour) => writeln!(text, "{label:>label_width$} |{colour}{bars}{PLAIN}"),
            None => writeln!(text, "{label:>label_width$} |{bars}"),
        };
    }
}

/// What of a column that is filled up to this share shows in a line.
fn block(share: f64, line: usize, lines: usize) -> char {
    let eighths = (share.clamp(0.0, 1.0) * (lines * 8) as f64).round() as usize;
    BLOCKS[eighths.saturating_sub(line * 8).min(8)]
}

fn axis(text: &mut String, spans: &[DecisionSpan], width: usize) {
    let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
        return;
    };
    let (from, until) = (time(first.from), time(last.until));
    let gap = width.saturating_sub(from.len() + until.len()).max(1);
    let _ = writeln!(text, "{:MARGIN$}+{}", "", "-".repeat(width));
    let _ = writeln!(text, "{:MARGIN$} {from}{:gap$}{until}", "", "");
    let _ = writeln!(text, "{:MARGIN$} {}", "", duration(last.until - first.from));
}
