//! The rows of the engine's table, their targets, and the flat JSON object that they become.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::quiet::TOLERATED_BUSY_CORES;
use crate::statistics::median;

/// What a figure must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// In the JSON.
    pub key: String,
    /// In the table.
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
    /// None for a figure that stands for itself.
    pub target: Option<Target>,
    /// What counts in the target's place, in words, where that is reached.
    pub met_otherwise: Option<String>,
    /// What it was measured beside, and how.
    pub note: String,
}

impl Figure {
    pub fn new(key: impl Into<String>, what: impl Into<String>, value: f64) -> Self {
        Self {
            key: key.into(),
            what: what.into(),
            value,
            unit: "",
            target: None,
            met_otherwise: None,
            note: String::new(),
        }
    }

    pub fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub fn at_least(self, target: f64) -> Self {
        let target = Some(Target::AtLeast(target));
        Self { target, ..self }
    }

    pub fn at_most(self, target: f64) -> Self {
        let target = Some(Target::AtMost(target));
        Self { target, ..self }
    }

    pub fn note(self, note: impl Into<String>) -> Self {
        let note = note.into();
        Self { note, ..self }
    }

    /// Whether the target is reached; a figure without one has no verdict.
    pub fn is_met(&self) -> Option<bool> {
        let reached = match self.target? {
            Target::AtLeast(least) => self.value >= least,
            Target::AtMost(most) => self.value <= most,
        };
        Some(reached || self.met_otherwise.is_some())
    }

    fn row(&self) -> String {
        let amount = |value: f64| format!("{} {}", readable(value), self.unit);
        let target = match self.target {
            None => String::new(),
            Some(Target::AtLeast(least)) => format!("at least {}", amount(least)),
            Some(Target::AtMost(most)) => format!("at most {}", amount(most)),
        };
        let verdict = match self.is_met() {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        let mut row = format!(
            "{:<54}{:>16}{:>24}  {verdict}",
            self.what,
            amount(self.value).trim(),
            target.trim()
        )
        .trim_end()
        .to_owned();
        for line in [
            self.met_otherwise.as_deref().unwrap_or_default(),
            &self.note,
        ] {
            if !line.is_empty() {
                row.push_str("\n    ");
                row.push_str(line);
            }
        }
        row
    }
}

/// All that was measured, and what could not be.
#[derive(Debug, Default)]
pub struct Table {
    figures: Vec<Figure>,
    facts: Map<String, Value>,
    /// Rows without figures, with the reason.
    unmeasured: Vec<(String, String)>,
    /// Cores that others kept busy, one number before each measurement.
    busy_cores: Vec<f64>,
}

impl Table {
    pub fn figure(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// What stands in the JSON only.
    pub fn fact(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.facts.insert(key.into(), value.into());
    }

    /// A row that could not be measured: said in the table, absent from the JSON.
    pub fn unmeasured(&mut self, row: &str, reason: impl Into<String>) {
        let reason: String = reason.into();
        let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        self.unmeasured.push((row.to_owned(), line));
    }

    pub fn busy(&mut self, cores: impl IntoIterator<Item = f64>) {
        self.busy_cores.extend(cores);
    }

    /// The object of the last line.
    pub fn json(&self) -> Value {
        let mut line = Map::from_iter([("bench".to_owned(), json!("engine"))]);
        line.extend(self.facts.clone());
        for figure in &self.figures {
            line.insert(figure.key.clone(), json!(rounded(figure.value)));
        }
        let missed: Vec<&str> = self
            .figures
            .iter()
            .filter(|figure| figure.is_met() == Some(false))
            .map(|figure| figure.key.as_str())
            .collect();
        line.insert("missed".to_owned(), json!(missed.join(",")));
        if let Some(busy) = median(&self.busy_cores) {
            line.insert("other_busy_cores".to_owned(), json!(rounded(busy)));
        }
        Value::Object(line)
    }

    /// Prints the table and the JSON as the last line, and writes that line to `file`.
    pub fn print(&self, heading: &str, file: &Path) -> Result<()> {
        println!("{heading}");
        let busy = median(&self.busy_cores).unwrap_or(0.0);
        if busy > TOLERATED_BUSY_CORES {
            println!(
                "warning: other programs kept {busy:.1} cores busy, so these figures say little: run it again when they end"
            );
        }
        println!("\n{:<54}{:>16}{:>24}", "", "measured", "target");
        for figure in &self.figures {
            println!("{}", figure.row());
        }
        for (row, reason) in &self.unmeasured {
            println!("{row:<54}not measured: {reason}");
        }
        let line = self.json().to_string();
        fs::create_dir_all(file.parent().context("the JSON's file has no folder")?)?;
        fs::write(file, format!("{line}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
        println!("\nalso in {}\n{line}", file.display());
        Ok(())
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn readable(value: f64) -> String {
    let digits = if value.abs() < 100.0 { 2 } else { 0 };
    let text = format!("{value:.digits$}");
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_at_its_target_meets_it_whichever_side_is_better() {
        let figure = |value| Figure::new("k", "w", value);
        assert_eq!(figure(1.3).at_least(1.3).is_met(), Some(true));
        assert_eq!(figure(1.29).at_least(1.3).is_met(), Some(false));
        assert_eq!(figure(1.5).at_most(1.5).is_met(), Some(true));
        assert_eq!(figure(1.51).at_most(1.5).is_met(), Some(false));
        assert_eq!(figure(9.0).is_met(), None);
    }

    #[test]
    fn what_counts_in_a_targets_place_meets_it_and_is_said() {
        let figure = Figure {
            met_otherwise: Some("95 % of the memory's bandwidth".to_owned()),
            ..Figure::new("decode_ratio", "decode", 1.1).at_least(1.3)
        };
        assert_eq!(figure.is_met(), Some(true));
        assert!(figure.row().contains("95 % of the memory's bandwidth"));
    }

    #[test]
    fn what_was_not_measured_is_no_key_and_what_was_missed_is_named() {
        let mut table = Table::default();
        table.figure(Figure::new("a", "", 1.0).at_least(2.0));
        table.figure(Figure::new("b", "", 3.0).at_least(2.0));
        table.unmeasured("gemma", "no such model");
        let line = table.json();
        assert_eq!((&line["missed"], &line["b"]), (&json!("a"), &json!(3.0)));
        assert!(
            line.as_object()
                .unwrap()
                .keys()
                .all(|key| !key.contains("gemma"))
        );
    }

    #[test]
    fn numbers_are_as_short_as_they_can_be() {
        assert_eq!(
            (readable(4.0), readable(1.25), readable(1234.5)),
            ("4".into(), "1.25".into(), "1234".into())
        );
        assert_eq!(readable(100.0), "100");
    }
}
