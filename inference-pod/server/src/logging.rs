//! Logs on standard error: lines for people in a terminal, JSON for machines. They never carry prompts or answers.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// Starts logging. `quiet` is for programs whose output a person reads: only warnings, unless RUST_LOG says otherwise.
pub fn start(quiet: bool) {
    let default = if quiet { "warn" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start, as in tests, changes nothing.
    let _ = if std::io::stderr().is_terminal() {
        builder.compact().with_target(false).try_init()
    } else {
        builder
            .json()
            .flatten_event(true)
            .with_ansi(false)
            .try_init()
    };
}
