//! The table, the peers' published figures beside it, and the JSON object.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::quiet::{TOLERATED_BUSY_CORES, busy_cores};

/// What is known in public of how the peers do at such sizes. Published, not measured here.
const PEERS: [(&str, &str); 4] = [
    (
        "KServe stopped at 112 of 300 services created together, its controller saturated",
        "github.com/opendatahub-io/kserve/issues/126",
    ),
    (
        "KServe's webhook timed out while 300 services were created",
        "github.com/opendatahub-io/kserve/issues/76",
    ),
    (
        "AIBrix with HPA writes at least 12 times a minute for each autoscaler at rest",
        "reading of its source",
    ),
    (
        "WVA writes about once a minute for each autoscaler at rest",
        "reading of its source",
    ),
];

/// One line of the table that has a target.
pub(super) struct Figure {
    pub(super) key: &'static str,
    pub(super) what: String,
    pub(super) value: f64,
    /// The most that is allowed; infinite for a figure that only others are compared with.
    pub(super) target: f64,
    pub(super) unit: &'static str,
    pub(super) note: String,
}

impl Figure {
    fn verdict(&self) -> &'static str {
        if self.target.is_infinite() {
            ""
        } else if self.value <= self.target {
            "met"
        } else {
            "MISSED"
        }
    }

    fn row(&self) -> String {
        let amount = |value: f64| {
            format!("{} {}", readable(value), self.unit)
                .trim()
                .to_owned()
        };
        let target = if self.target.is_infinite() {
            String::new()
        } else {
            amount(self.target)
        };
        let row = format!(
            "{:<52}{:>20}{target:>20}  {:<7}",
            self.what,
            amount(self.value),
            self.verdict()
        );
        if self.note.is_empty() {
            row
        } else {
            format!("{row}\n    {}", self.note)
        }
    }
}

/// All that was measured.
pub(super) struct Report {
    figures: Vec<Figure>,
    facts: Vec<(&'static str, f64)>,
    /// Cores that other programs kept busy before the first measurement.
    busy_before: f64,
}

impl Report {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            figures: Vec::new(),
            facts: Vec::new(),
            busy_before: busy_cores()?,
        })
    }

    pub(super) fn figure(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// A number that stands in the JSON only.
    pub(super) fn fact(&mut self, key: &'static str, value: f64) {
        self.facts.push((key, value));
    }

    /// Prints the table and the JSON as the last line, and writes that line to `file`.
    pub(super) fn print(&self, file: &Path) -> Result<ExitCode> {
        println!("{}", machine());
        println!(
            "half of the services have one pod each (fake, by kwok), half are at zero with autoscaling on; API server, etcd, \
             controllers, scheduler and operator share these cores"
        );
        if self.busy_before > TOLERATED_BUSY_CORES {
            println!(
                "warning: other programs kept {:.1} cores busy before it began: run it again when they end",
                self.busy_before
            );
        }
        println!("\n{:<52}{:>20}{:>20}", "", "measured", "target");
        for figure in &self.figures {
            println!("{}", figure.row());
        }
        println!("\npeers, as published:");
        for (what, source) in PEERS {
            println!("  {what} ({source})");
        }
        let line = self.json().to_string();
        fs::create_dir_all(file.parent().context("the JSON's file has no folder")?)?;
        fs::write(file, format!("{line}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
        println!("\nalso in {}\n{line}", file.display());
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> Value {
        let mut line = Map::new();
        line.insert("bench".to_owned(), json!("operator"));
        line.insert("cores".to_owned(), json!(cores()));
        line.insert(
            "busy_cores_before".to_owned(),
            json!(rounded(self.busy_before)),
        );
        let figures = self.figures.iter().map(|figure| (figure.key, figure.value));
        for (key, value) in figures.chain(self.facts.iter().copied()) {
            line.insert(key.to_owned(), json!(rounded(value)));
        }
        let missed: Vec<&str> = self
            .figures
            .iter()
            .filter(|figure| figure.verdict() == "MISSED")
            .map(|figure| figure.key)
            .collect();
        line.insert("missed".to_owned(), json!(missed.join(",")));
        Value::Object(line)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn machine() -> String {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .map(str::to_owned);
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
            .unwrap_or_else(|| "unknown".to_owned())
    };
    let memory = field("/proc/meminfo", "MemTotal");
    let gib = memory
        .split(' ')
        .next()
        .and_then(|kib| kib.parse::<f64>().ok())
        .map_or(0.0, |kib| kib / f64::from(1 << 20));
    format!(
        "{} cores of {}, {gib:.0} GiB",
        cores(),
        field("/proc/cpuinfo", "model name")
    )
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn readable(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, target: f64) -> Figure {
        Figure {
            key: "k",
            what: "w".to_owned(),
            value,
            target,
            unit: "s",
            note: String::new(),
        }
    }

    #[test]
    fn a_figure_at_its_target_meets_it_and_one_above_misses_it() {
        assert_eq!(figure(1.0, 1.0).verdict(), "met");
        assert_eq!(figure(1.001, 1.0).verdict(), "MISSED");
        assert_eq!(figure(9e9, f64::INFINITY).verdict(), "");
    }

    #[test]
    fn whole_numbers_show_no_fraction() {
        assert_eq!(readable(0.0), "0");
        assert_eq!(readable(12.5), "12.5");
        assert_eq!(readable(1000.0), "1000");
    }
}
