//! `./demo`.

use std::process::ExitCode;

use clap::Parser;
use pagoda_e2e::demo::{DemoArgs, run};

#[derive(Debug, Parser)]
#[command(name = "./demo", version)]
struct Cli {
    #[command(flatten)]
    demo: DemoArgs,
}

fn main() -> ExitCode {
    match run(Cli::parse().demo) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
