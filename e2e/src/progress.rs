//! Progress a person can follow: one line a step with the seconds since the start, and a live line for the long ones.

use std::io::{BufRead, IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Prints steps to standard error, so that standard output stays for results.
#[derive(Debug)]
pub struct Progress {
    began: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            began: Instant::now(),
        }
    }
}

impl Progress {
    /// Starts the clock that the lines show.
    pub fn start() -> Self {
        Self::default()
    }

    /// One line: `[  1.2 s] text`.
    pub fn step(&self, text: impl AsRef<str>) {
        eprintln!("[{:5.1} s] {}", self.seconds(), text.as_ref());
    }

    /// Seconds since [`Progress::start`].
    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Counts the lines of `output` (a compiler names each package it builds on one) until it ends, showing the count
    /// against `expected`. Returns the last `keep` lines, for an error message.
    pub fn count_lines(
        &self,
        what: &str,
        expected: u64,
        output: impl BufRead,
        keep: usize,
    ) -> Vec<String> {
        let bar = live_bar(what, expected);
        let mut tail = std::collections::VecDeque::with_capacity(keep);
        let mut said = Instant::now();
        for line in output.lines().map_while(Result::ok) {
            bar.inc(1);
            if bar.is_hidden() && said.elapsed() >= Duration::from_secs(20) {
                self.step(format!("{what}: {} of about {expected}", bar.position()));
                said = Instant::now();
            }
            if tail.len() == keep {
                tail.pop_front();
            }
            tail.push_back(line);
        }
        bar.finish_and_clear();
        tail.into()
    }
}

fn live_bar(what: &str, expected: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        let hidden = ProgressBar::hidden();
        hidden.set_length(expected);
        return hidden;
    }
    let template = "[{elapsed:>7}] {msg} {wide_bar} {pos}/{len}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(expected)
        .with_style(style)
        .with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
