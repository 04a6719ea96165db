//! `pagoda`: what people ask of Pagoda from a terminal.

mod explain;
mod simulate;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// What people ask of Pagoda from a terminal
#[derive(Debug, Parser)]
#[command(name = "pagoda", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Plays a trace of requests against an InferenceService, days in seconds: how many pods, what clients feel, what it costs
    Simulate(Box<simulate::Arguments>),
    /// Shows the last hour of an InferenceService's autoscaling: what was decided, and from what figures
    Explain(explain::Arguments),
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Simulate(arguments) => simulate::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
    }
}
