use super::*;
use crate::SECOND;

fn report() -> Report {
    let moments = (0..100)
        .map(|second| Moment {
            at: second * SECOND,
            lasts: SECOND,
            desired: 1 + second as u32 / 25,
            ready: 1,
            arrived: 2,
            ended: 2,
            met: 1,
            ..Moment::default()
        })
        .collect();
    Report {
        scaler: "pagoda".to_owned(),
        note: String::new(),
        seconds: 100.0,
        counts: Counts {
            requests: 201,
            completed: 190,
            met: 100,
            hold_full: 10,
            too_long: 1,
            ..Counts::default()
        },
        unfinished: 0,
        slo_first_token_ms: 2000.0,
        slo_inter_token_ms: 100.0,
        first_token: Percentiles {
            p50: 100.0,
            p95: 1500.0,
            p99: 2500.0,
            max: 9000.0,
        },
        inter_token: Percentiles::default(),
        gpus_per_pod: 2,
        gpu_hours: 1.25,
        cost: 2.5,
        mean_replicas: 2.5,
        most_replicas: 4,
        reversals: 0,
        cached_share: 0.25,
        preemptions: 3,
        events: vec![ScaleEvent {
            at: 25 * SECOND,
            from: 1,
            to: 2,
            reason: "AboveTarget: a < b".to_owned(),
        }],
        moments,
    }
}

#[test]
fn attainment_counts_who_was_refused_and_not_who_could_never_run() {
    assert!((report().attainment() - 0.5).abs() < 1e-9);
    let empty = Report {
        counts: Counts::default(),
        ..report()
    };
    assert!((empty.attainment() - 1.0).abs() < 1e-9);
}

#[test]
fn a_table_has_a_column_for_each_scaler() {
    let other = Report {
        scaler: "hpa".to_owned(),
        ..report()
    };
    let text = comparison(&[report(), other]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("hpa") && lines[0].contains("pagoda"));
    assert!(
        lines[1].starts_with("requests within SLO") && lines[1].matches("50.00 %").count() == 2
    );
    assert!(text.contains("100 ms / 1.50 s / 2.50 s"));
    assert_eq!(
        replicas_line(&report(), 4),
        "▂▄▆█  0 to 4 replicas over 0:01:40"
    );
    assert!(events_table(&report(), 5).contains("0:00:25        1 -> 2  AboveTarget"));
    assert!(events_table(&report(), 0).contains("and 1 more"));
}

#[test]
fn csv_has_as_many_columns_as_its_header() {
    for text in [summary_csv(&[report()]), moments_csv(&[report()])] {
        let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert!(
            columns.len() > 1 && columns.iter().all(|count| *count == columns[0]),
            "{text}"
        );
    }
    assert_eq!(moments_csv(&[report()]).lines().count(), 101);
}

#[test]
fn json_tells_what_the_table_tells_and_no_more_points_than_a_plot_needs() {
    let long = Report {
        moments: vec![
            Moment {
                lasts: SECOND,
                ..Moment::default()
            };
            5000
        ],
        ..report()
    };
    let json = to_json(&[long]);
    let run = &json["runs"][0];
    assert_eq!(run["slo"]["attainment"], 0.5);
    assert_eq!(run["gpu_hours"], 1.25);
    assert_eq!(run["events"][0]["to"], 2);
    assert!(run["timeline"].as_array().expect("points").len() <= 600);
}

#[test]
fn a_plot_is_an_svg_with_every_scaler_and_nothing_unescaped() {
    let svg = plot(
        "a <b> & c",
        &[
            report(),
            Report {
                scaler: "x<y".to_owned(),
                ..report()
            },
        ],
    );
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("a &lt;b&gt; &amp; c") && svg.contains("x&lt;y: replicas"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    assert_eq!(
        svg.matches("<path d=\"M").count(),
        svg.matches("<path ").count(),
        "no empty line"
    );
    let empty = Report {
        moments: vec![],
        seconds: 0.0,
        ..report()
    };
    assert!(!plot("", &[empty]).contains("NaN"));
}
