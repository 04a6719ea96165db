//! One file a subcommand.

mod bench;
mod chat;
mod fetch;
mod install;
mod model;
mod serve;

use std::process::ExitCode;

use crate::cli::Command;
use crate::failure::Fatal;

/// Runs a subcommand.
pub fn run(command: Command) -> Result<ExitCode, Fatal> {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Chat(args) => chat::run(&args),
        Command::Fetch(args) => fetch::run(&args),
        Command::Install { path } => install::run(&path),
        Command::Bench(args) => bench::run(&args),
    }
}
