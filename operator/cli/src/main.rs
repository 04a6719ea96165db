//! `pagoda`: what people ask of Pagoda from a terminal.

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
enum Command {}

fn main() -> Result<()> {
    match Cli::parse().command {}
}
