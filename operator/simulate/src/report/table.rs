//! Reports for people.

use std::fmt::Write;

use super::{Report, coarser};
use crate::time::seconds;

/// One column a scaler.
pub fn comparison(reports: &[Report]) -> String {
    let mut rows: Vec<Vec<String>> = vec![
        std::iter::once(String::new())
            .chain(reports.iter().map(|report| report.scaler.clone()))
            .collect(),
    ];
    let mut row = |name: &str, value: &dyn Fn(&Report) -> String| {
        let values = reports.iter().map(value);
        rows.push(std::iter::once(name.to_owned()).chain(values).collect());
    };
    row("requests within SLO", &|r| {
        format!("{:.2} %", r.attainment() * 100.0)
    });
    row("GPU-hours", &|r| format!("{:.2}", r.gpu_hours));
    row("cost", &|r| format!("{:.2}", r.cost));
    row("TTFT p50 / p95 / p99", &|r| {
        let p = r.first_token;
        format!("{} / {} / {}", time(p.p50), time(p.p95), time(p.p99))
    });
    row("ITL p50 / p95 / p99", &|r| {
        let p = r.inter_token;
        format!("{} / {} / {}", time(p.p50), time(p.p95), time(p.p99))
    });
    row("replicas mean / most", &|r| {
        format!("{:.1} / {}", r.mean_replicas, r.most_replicas)
    });
    row("scale events / reversals", &|r| {
        format!("{} / {}", r.events.len(), r.reversals)
    });
    row("requests", &|r| r.counts.requests.to_string());
    row("lost", &|r| r.lost().to_string());
    row("too long for a pod", &|r| r.counts.too_long.to_string());
    row("prompt tokens cached", &|r| {
        format!("{:.1} %", r.cached_share * 100.0)
    });
    row("preemptions", &|r| r.preemptions.to_string());
    aligned(&rows)
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Names to the left, figures to the right.
            let _ = if line.is_empty() {
                write!(line, "{cell:<width$}")
            } else {
                write!(line, "  {cell:>width$}")
            };
            if line.is_empty() {
                line.push(' ');
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Milliseconds in a unit that reads well.
fn time(milliseconds: f64) -> String {
    if milliseconds < 1000.0 {
        format!("{milliseconds:.0} ms")
    } else {
        format!("{:.2} s", milliseconds / 1000.0)
    }
}

/// Replicas over time, as a line of at most `width` bars, with its scale.
pub fn replicas_line(report: &Report, width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let moments = coarser(&report.moments, width);
    let most = moments.iter().map(|m| m.desired).max().unwrap_or(0).max(1);
    let bar = |desired: u32| match desired {
        0 => ' ',
        some => BARS[((some * 8).div_ceil(most) as usize).clamp(1, 8) - 1],
    };
    let bars: String = moments.iter().map(|m| bar(m.desired)).collect();
    format!(
        "{bars}  0 to {most} replicas over {}",
        clock(report.seconds)
    )
}

/// The changes of the number of pods, at most `most` of them.
pub fn events_table(report: &Report, most: usize) -> String {
    let mut rows = vec![["time", "replicas", "why"].map(str::to_owned).to_vec()];
    for event in report.events.iter().take(most) {
        rows.push(vec![
            clock(seconds(event.at)),
            format!("{} -> {}", event.from, event.to),
            event.reason.clone(),
        ]);
    }
    let mut text = String::new();
    for row in &rows {
        let _ = writeln!(text, "{:>9}  {:>12}  {}", row[0], row[1], row[2]);
    }
    if report.events.len() > most {
        let _ = writeln!(text, "{:>9}  and {} more", "", report.events.len() - most);
    }
    text
}

/// Hours, minutes and seconds.
pub(crate) fn clock(seconds: f64) -> String {
    let whole = seconds as u64;
    format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}
