//! `pagoda-loadgen`: see `pagoda-loadgen --help`.

use std::process::ExitCode;

use clap::Parser;
use pagoda_e2e::loadgen::{self, LoadgenArgs};

#[tokio::main]
async fn main() -> ExitCode {
    match loadgen::main(LoadgenArgs::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
