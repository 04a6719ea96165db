//! A plot: for each scaler replicas wanted and ready, for all of them the requests that came, and the share of requests served
//! within the SLO.

use std::fmt::Write;

use super::table::clock;
use super::{Report, coarser};
use crate::recorder::Moment;
use crate::time::seconds;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const PANEL: f64 = 150.0;
const GAP: f64 = 46.0;
const TOP: f64 = 40.0;
const POINTS: usize = 480;
/// Told apart by people who see colours differently (Okabe and Ito).
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

struct Panel {
    title: String,
    most: f64,
    lines: Vec<Line>,
}

/// Name, colour, whether dashed, and points as (second, value).
type Line = (String, &'static str, bool, Vec<(f64, f64)>);

/// The plot as an SVG document.
pub fn plot(title: &str, reports: &[Report]) -> String {
    let span = reports.iter().map(|r| r.seconds).fold(1.0, f64::max);
    let mut panels = vec![requests(reports), attainment(reports)];
    panels.extend(
        reports
            .iter()
            .enumerate()
            .map(|(index, r)| replicas(index, r)),
    );
    let height = TOP + panels.len() as f64 * (PANEL + GAP) + 8.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{}</text>\n",
        escape(title)
    );
    for (index, panel) in panels.iter().enumerate() {
        draw(
            &mut text,
            panel,
            TOP + index as f64 * (PANEL + GAP) + 16.0,
            span,
        );
    }
    text.push_str("</svg>\n");
    text
}

fn points(moments: &[Moment], value: impl Fn(&Moment) -> Option<f64>) -> Vec<(f64, f64)> {
    let moments = coarser(moments, POINTS);
    let point = |m: &Moment| Some((seconds(m.at), value(m)?));
    moments.iter().filter_map(point).collect()
}

fn requests(reports: &[Report]) -> Panel {
    let rate = |m: &Moment| Some(m.arrived as f64 / seconds(m.lasts).max(1e-3));
    let line = reports.first().map(|r| points(&r.moments, rate));
    Panel {
        title: "requests per second".to_owned(),
        most: 0.0,
        lines: vec![(String::new(), "#555", false, line.unwrap_or_default())],
    }
}

fn attainment(reports: &[Report]) -> Panel {
    let share = |m: &Moment| (m.ended > 0).then(|| 100.0 * m.met as f64 / m.ended as f64);
    let line = |(index, r): (usize, &Report)| {
        let points = points(&coarser(&r.moments, 120), share);
        (
            r.scaler.clone(),
            COLOURS[index % COLOURS.len()],
            false,
            points,
        )
    };
    Panel {
        title: "percent of requests within SLO".to_owned(),
        most: 100.0,
        lines: reports.iter().enumerate().map(line).collect(),
    }
}

fn replicas(index: usize, report: &Report) -> Panel {
    let colour = COLOURS[index % COLOURS.len()];
    let desired = points(&report.moments, |m| Some(f64::from(m.desired)));
    let ready = points(&report.moments, |m| Some(f64::from(m.ready)));
    Panel {
        title: format!(
            "{}: replicas ({:.2} GPU-hours, {:.2} % within SLO)",
            report.scaler,
            report.gpu_hours,
            report.attainment() * 100.0
        ),
        most: 0.0,
        lines: vec![
            ("wanted".to_owned(), colour, false, desired),
            ("ready".to_owned(), "#888", true, ready),
        ],
    }
}

fn draw(text: &mut String, panel: &Panel, top: f64, span: f64) {
    let values = panel.lines.iter().flat_map(|(.., points)| points);
    let most = values.map(|(_, value)| *value).fold(panel.most, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let x = |second: f64| LEFT + second / span * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| top + PANEL * (1.0 - value / most);
    let _ = writeln!(
        text,
        "<text x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
        top - 6.0,
        escape(&panel.title)
    );
    for part in 0..=4_u32 {
        let value = most * f64::from(part) / 4.0;
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {0:.1}H{1}\" stroke=\"#ddd\"/><text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"end\" fill=\"#555\">{4}</text>",
            y(value),
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(value) + 4.0,
            number(value)
        );
        let second = span * f64::from(part) / 4.0;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            x(second).min(WIDTH - RIGHT - 20.0),
            top + PANEL + 14.0,
            clock(second)
        );
    }
    for (index, (name, colour, dashed, points)) in panel.lines.iter().enumerate() {
        let dash = if *dashed {
            " stroke-dasharray=\"4 3\""
        } else {
            ""
        };
        let path: String =
            points
                .iter()
                .enumerate()
                .fold(String::new(), |mut path, (index, (second, value))| {
                    let command = if index == 0 { 'M' } else { 'L' };
                    let _ = write!(path, "{command}{:.1} {:.1}", x(*second), y(*value));
                    path
                });
        let _ = writeln!(
            text,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"{dash}/>"
        );
        if !name.is_empty() {
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>",
                WIDTH - RIGHT - 110.0 * (panel.lines.len() - 1 - index) as f64,
                top - 6.0,
                escape(name)
            );
        }
    }
}

fn number(value: f64) -> String {
    if value.fract().abs() < 1e-9 || value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
