//! A benchmark's table, what peers published beside it, and the JSON object.

use std::borrow::Cow;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::quiet::{TOLERATED_BUSY_CORES, busy_cores};

/// What stands around a benchmark's figures.
pub struct Setting {
    /// The benchmark's name.
    pub bench: &'static str,
    /// What was measured on what, in words.
    pub about: &'static str,
    /// What peers published, and where. Not measured here.
    pub peers: &'static [(&'static str, &'static str)],
}

/// One line of the table that has a target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub key: Cow<'static, str>,
    pub what: String,
    pub value: f64,
    /// The most that is allowed; none for a figure that only others are compared with.
    pub target: Option<f64>,
    pub unit: Cow<'static, str>,
    pub note: String,
}

impl Figure {
    fn verdict(&self) -> &'static str {
        match self.target {
            None => "",
            Some(target) if self.value <= target => "met",
            Some(_) => "MISSED",
        }
    }

    fn row(&self) -> String {
        let amount = |value: f64| {
            format!("{} {}", readable(value), self.unit)
                .trim()
                .to_owned()
        };
        let target = self.target.map(amount).unwrap_or_default();
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
pub struct Report {
    setting: Setting,
    found: Found,
}

/// What a part measured, as one process hands it to another.
#[derive(Default, Serialize, Deserialize)]
struct Found {
    figures: Vec<Figure>,
    facts: Vec<(Cow<'static, str>, f64)>,
    /// Cores that other programs kept busy before the first measurement.
    busy_before: f64,
}

impl Report {
    pub fn new(setting: Setting) -> Result<Self> {
        Ok(Self {
            setting,
            found: Found {
                busy_before: busy_cores()?,
                ..Found::default()
            },
        })
    }

    pub fn figure(&mut self, figure: Figure) {
        self.found.figures.push(figure);
    }

    /// A number that stands in the JSON only.
    pub fn fact(&mut self, key: impl Into<Cow<'static, str>>, value: f64) {
        self.found.facts.push((key.into(), value));
    }

    /// Leaves what was measured in `file`, for another process to take in.
    pub fn hand_over(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string(&self.found)?;
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Takes in what another process handed over.
    pub fn take_over(&mut self, file: &Path) -> Result<()> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let found: Found = serde_json::from_str(&text)?;
        self.found.busy_before = found.busy_before;
        self.found.figures.extend(found.figures);
        self.found.facts.extend(found.facts);
        Ok(())
    }

    /// Prints the table and the JSON as the last line, and writes that line to `file`.
    pub fn print(&self, file: &Path) -> Result<ExitCode> {
        println!("{}", machine());
        println!("{}", self.setting.about);
        if self.found.busy_before > TOLERATED_BUSY_CORES {
            println!(
                "warning: other programs kept {:.1} cores busy before it began: run it again when they end",
                self.found.busy_before
            );
        }
        println!("\n{:<52}{:>20}{:>20}", "", "measured", "target");
        for figure in &self.found.figures {
            println!("{}", figure.row());
        }
        if !self.setting.peers.is_empty() {
            println!("\npeers, as published:");
        }
        for (what, source) in self.setting.peers {
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
        line.insert("bench".to_owned(), json!(self.setting.bench));
        line.insert("cores".to_owned(), json!(cores()));
        line.insert(
            "busy_cores_before".to_owned(),
            json!(rounded(self.found.busy_before)),
        );
        let figures = self
            .found
            .figures
            .iter()
            .map(|figure| (&figure.key, figure.value));
        let facts = self.found.facts.iter().map(|(key, value)| (key, *value));
        for (key, value) in figures.chain(facts) {
            line.insert(key.to_string(), json!(rounded(value)));
        }
        let missed: Vec<&str> = self
            .found
            .figures
            .iter()
            .filter(|figure| figure.verdict() == "MISSED")
            .map(|figure| &*figure.key)
            .collect();
        line.insert("missed".to_owned(), json!(missed.join(",")));
        Value::Object(line)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub fn machine() -> String {
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

    fn figure(value: f64, target: Option<f64>) -> Figure {
        Figure {
            key: "k".into(),
            what: "w".to_owned(),
            value,
            target,
            unit: "s".into(),
            note: String::new(),
        }
    }

    #[test]
    fn a_figure_at_its_target_meets_it_and_one_above_misses_it() {
        assert_eq!(figure(1.0, Some(1.0)).verdict(), "met");
        assert_eq!(figure(1.001, Some(1.0)).verdict(), "MISSED");
        assert_eq!(figure(9e9, None).verdict(), "");
    }

    #[test]
    fn whole_numbers_show_no_fraction() {
        assert_eq!(readable(0.0), "0");
        assert_eq!(readable(12.5), "12.5");
        assert_eq!(readable(1000.0), "1000");
    }
}
