//! What a person at a terminal sees: progress bars and a little colour, none of it where output goes to a file.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of percents on standard error, invisible unless that is a terminal.
pub fn percent_bar(what: &str) -> ProgressBar {
    let bar = bar(100);
    bar.set_style(style("{msg} [{bar:32}] {percent} %"));
    bar.set_message(what.to_owned());
    bar
}

/// A bar of bytes on standard error, invisible unless that is a terminal.
pub fn byte_bar(what: &str) -> ProgressBar {
    let bar = bar(0);
    bar.set_style(style("{msg} [{bar:32}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left"));
    bar.set_message(what.to_owned());
    bar
}

fn bar(length: u64) -> ProgressBar {
    if std::io::stderr().is_terminal() {
        let bar = ProgressBar::new(length);
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    } else {
        ProgressBar::hidden()
    }
}

/// The templates are constants that the test below tries, so the fallback is never seen.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// Colours, or empty strings where standard output is no terminal or NO_COLOR is set.
#[derive(Clone, Copy, Debug)]
pub struct Colours {
    /// For what the person types.
    pub prompt: &'static str,
    /// For notes aside.
    pub dim: &'static str,
    /// Back to normal.
    pub reset: &'static str,
}

impl Colours {
    /// For standard output.
    pub fn detect() -> Self {
        let plain = !std::io::stdout().is_terminal()
            || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if plain {
            Self {
                prompt: "",
                dim: "",
                reset: "",
            }
        } else {
            Self {
                prompt: "\x1b[1;36m",
                dim: "\x1b[2m",
                reset: "\x1b[0m",
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_of_the_bars_are_valid() {
        for template in [
            "{msg} [{bar:32}] {percent} %",
            "{msg} [{bar:32}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
        ] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }
}
