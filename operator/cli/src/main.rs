//! `pagoda`: what people ask of Pagoda from a terminal.

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
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Simulate(arguments) => simulate::run(&arguments),
    }
}
