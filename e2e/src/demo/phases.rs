//! The demo's steps and how long each took.

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// Colours, or nothing where nobody would see them.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub bold: &'static str,
    pub dim: &'static str,
    pub plain: &'static str,
}

impl Style {
    /// Colours only on a terminal, and not where `NO_COLOR` is set.
    pub fn of_stdout() -> Self {
        let colourful = stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if colourful {
            Self {
                bold: "\x1b[1m",
                dim: "\x1b[2m",
                plain: "\x1b[0m",
            }
        } else {
            Self {
                bold: "",
                dim: "",
                plain: "",
            }
        }
    }
}

/// Runs steps one after another and remembers their times.
pub struct Phases {
    began: Instant,
    style: Style,
    done: Vec<(String, Duration)>,
}

impl Phases {
    /// The clock starts where the shell script did, whose build is the first phase, when it says so in `PAGODA_STARTED`.
    pub fn start() -> Self {
        let before = std::env::var("PAGODA_STARTED")
            .ok()
            .and_then(|text| seconds_since(&text))
            .unwrap_or_default();
        let began = Instant::now()
            .checked_sub(before)
            .unwrap_or_else(Instant::now);
        let mut phases = Self {
            began,
            style: Style::of_stdout(),
            done: Vec::new(),
        };
        if !before.is_zero() {
            phases.done.push(("build".to_owned(), before));
        }
        phases
    }

    /// Runs `work` under a heading. A failure names the phase.
    pub fn run<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("{}==> {name}{}", self.style.bold, self.style.plain);
        let began = Instant::now();
        let value = work().with_context(|| format!("the step '{name}' failed"))?;
        let took = began.elapsed();
        println!(
            "{}    {name}: {:.1} s{}",
            self.style.dim,
            took.as_secs_f64(),
            self.style.plain
        );
        self.done.push((name.to_owned(), took));
        Ok(value)
    }

    /// All phases and their sum, one line each.
    pub fn summary(&self) -> String {
        let mut lines: Vec<String> = self
            .done
            .iter()
            .map(|(name, took)| format!("{:>8.1} s  {name}", took.as_secs_f64()))
            .collect();
        lines.push(format!(
            "{:>8.1} s  in all",
            self.began.elapsed().as_secs_f64()
        ));
        lines.join("\n")
    }
}

/// Time since `text`, seconds since 1970 as the shell's `EPOCHREALTIME` writes them; `None` for anything else.
fn seconds_since(text: &str) -> Option<Duration> {
    let then: f64 = text.replace(',', ".").parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    now.checked_sub(Duration::try_from_secs_f64(then).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_time_from_the_shell_is_read_in_any_locale_and_nonsense_is_none() {
        assert!(seconds_since("1700000000.5").is_some_and(|since| since > Duration::from_secs(1)));
        assert!(seconds_since("1700000000,5").is_some());
        assert_eq!(seconds_since("soon"), None);
        assert_eq!(seconds_since("-3"), None);
    }

    #[test]
    fn a_failed_phase_is_named() {
        let failed = Phases::start()
            .run::<()>("images", || anyhow::bail!("no space"))
            .unwrap_err();
        assert!(
            format!("{failed:#}").contains("images") && format!("{failed:#}").contains("no space")
        );
    }
}
