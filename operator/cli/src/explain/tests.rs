use super::*;
use pagoda_operator_core::explain::{DecisionSpan, MetricSpan};

fn span(from: i64, until: i64, current: u32, replicas: u32, value: f64) -> DecisionSpan {
    DecisionSpan {
        from,
        until,
        current,
        replicas,
        ready: current,
        reason: if replicas > current {
            "AboveTarget"
        } else {
            "OnTarget"
        }
        .into(),
        metrics: vec![MetricSpan {
            metric: "InFlightRequests".into(),
            unit: "pods".into(),
            value: Some(value),
            target: 8.0,
            replicas,
        }],
        winner: Some(0),
        ..DecisionSpan::default()
    }
}

fn log() -> DecisionLog {
    DecisionLog {
        namespace: "team".into(),
        name: "chat".into(),
        now: 1_000_100,
        spans: vec![
            span(1_000_000, 1_000_040, 1, 1, 6.0),
            span(1_000_041, 1_000_049, 1, 1, 8.0),
            span(1_000_050, 1_000_050, 1, 4, 30.0),
            span(1_000_051, 1_000_100, 4, 4, 31.5),
        ],
    }
}

#[test]
fn the_table_has_a_line_for_each_change_and_each_stretch_between() {
    let text = rows::table(&log());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "team/chat: the number of pods changed 1 times");
    assert!(lines[1].starts_with("SINCE"), "{text}");
    assert_eq!(lines.len(), 5, "{text}");
    assert!(
        lines[2].contains("49s  1 ") && lines[2].contains("InFlightRequests 6..8, target 8 a pod"),
        "{text}"
    );
    assert!(
        lines[3].contains("1 -> 4") && lines[3].contains("AboveTarget"),
        "{text}"
    );
}

#[test]
fn the_csv_has_as_many_fields_in_every_line() {
    let mut log = log();
    log.spans[0].metrics.clear();
    let text = rows::csv(&log);
    let fields: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(fields, [17; 5], "{text}");
}

#[test]
fn the_plot_fits_its_columns_and_has_colours_only_when_asked_for() {
    for columns in [40, 100] {
        let text = plot::plot(&log(), columns, false);
        assert!(
            text.lines()
                .all(|line| line.chars().count() <= columns.max(60)),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
        assert!(
            text.contains("InFlightRequests in all, target 8 a pod"),
            "{text}"
        );
    }
    assert!(plot::plot(&log(), 80, true).contains("\u{1b}[32m"));
}

#[test]
fn the_plot_is_highest_where_there_were_most_pods() {
    let text = plot::plot(&log(), 110, false);
    let top = text
        .lines()
        .find(|line| line.contains("4 |"))
        .expect("the top line");
    let bars: Vec<char> = top.split('|').nth(1).expect("bars").chars().collect();
    assert_eq!((bars[10], bars[90]), (' ', '█'), "{text}");
}

#[test]
fn only_the_time_that_was_asked_for_is_shown() {
    let log = since(log(), 55);
    assert_eq!(log.spans.len(), 3);
    assert_eq!(log.spans[0].from, 1_000_045);
}

#[test]
fn times_are_read_with_their_units_and_nonsense_is_refused() {
    assert_eq!(seconds("90s"), Ok(90));
    assert_eq!(seconds("10m"), Ok(600));
    assert_eq!(seconds("1h"), Ok(3600));
    for wrong in ["", "h", "2h", "0s", "-5m", "5d", "1hm", "99999999999999h"] {
        assert!(seconds(wrong).is_err(), "{wrong}");
    }
}
