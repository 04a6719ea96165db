//! How far a simulation is, on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pagoda_simulate::Progress;

/// A line on standard error, if that is a terminal; gone when it is dropped.
pub struct Ticker {
    bar: ProgressBar,
    name: &'static str,
}

impl Ticker {
    /// Tells of a scaler's run.
    pub fn new(name: &'static str) -> Self {
        // Draws nothing where standard error is no terminal.
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, name }
    }

    /// One run is so far.
    pub fn progress(&self, progress: Progress) {
        let minutes = progress.now / 60_000_000_000;
        self.bar.set_message(format!(
            "{}: {}:{:02} h simulated, {} requests, {} pods",
            self.name,
            minutes / 60,
            minutes % 60,
            progress.requests,
            progress.pods
        ));
    }

    /// So many settings of a grid are done.
    pub fn grid(&self, done: usize, of: usize) {
        self.bar
            .set_message(format!("{}: {done} of {of} settings tried", self.name));
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
