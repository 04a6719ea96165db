//! One file a subcommand.

mod bench;
mod cache_prepare;
mod chat;
mod fetch;
mod hold;
mod install;
mod model;
mod serve;
mod signals;
mod wait_idle;

use std::process::ExitCode;

use crate::cli::Command;
use crate::failure::Fatal;

pub use signals::Signals;

/// Runs a subcommand.
pub fn run(command: Command) -> Result<ExitCode, Fatal> {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Chat(args) => chat::run(&args),
        Command::Fetch(args) => fetch::run(&args),
        Command::Install { path } => install::run(&path),
        Command::Hold { file } => hold::run(&file),
        Command::CachePrepare { directory, wait } => cache_prepare::run(&directory, wait),
        Command::WaitIdle(args) => wait_idle::run(&args),
        Command::Bench(args) => bench::run(&args),
    }
}
