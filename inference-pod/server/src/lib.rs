//! The inference pod: an OpenAI-compatible server around the embedded engine.
//!
//! `serve` listens at once ([`http`]), loads a model ([`load`]), and hands it to the engine's thread ([`engine`]), which
//! schedules with `pagoda-engine-core` and computes behind the executor seam. SIGTERM drains ([`drain`]).

pub mod app;
mod cgroup;
mod cli;
mod commands;
pub mod config;
pub mod drain;
pub mod engine;
mod executor;
mod failure;
pub mod http;
pub mod language;
pub mod load;
mod logging;
pub mod memory;
pub mod metrics;
mod progress;
mod serve;
pub mod simulated;
pub mod structured;
mod terminal;
pub mod threads;

use std::process::ExitCode;

use clap::Parser;

pub use failure::{Fatal, exit_code};

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = cli::Cli::parse();
    logging::start(!matches!(cli.command, cli::Command::Serve(_)));
    match commands::run(cli.command) {
        Ok(code) => code,
        Err(fatal) => {
            eprintln!("error: {fatal}");
            fatal.report();
            fatal.exit_code()
        }
    }
}
