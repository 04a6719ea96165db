//! `pagoda-bench NAME`: every benchmark, each ending with one flat JSON object on the last line. `./bench` builds and runs it.

mod autoscaling;
mod bed;
mod chaos;
mod engine;
mod memory;
mod operator;
mod peers;
mod quiet;
mod report;
mod statistics;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use pagoda_e2e::cache::Cache;

/// Measures Pagoda beside its peers: a table for people, and as the last line one flat JSON object.
#[derive(Debug, Parser)]
#[command(
    name = "bench",
    bin_name = "./bench",
    subcommand_value_name = "NAME",
    subcommand_help_heading = "Benchmarks"
)]
struct Cli {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Our engine over llama.cpp and mistral.rs: one sequence, many streams, shared prompts; memory, leaks and waste
    Engine(engine::Arguments),
    /// Writes, time and memory of the operator at 1,000 and 5,000 services, on a real API server with fake nodes
    Operator(operator::Arguments),
    /// From a burst, a step or a wake from zero to pods, what it costs, and the traces, on real and simulated pods
    Autoscaling(autoscaling::Arguments),
    /// Seeded random chaos over 200 services and two operators, with invariants that are checked at each step
    Chaos(chaos::Arguments),
}

fn main() -> Result<ExitCode> {
    let cache = Cache::from_env()?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the package lies in no workspace")?;
    match Cli::parse().benchmark {
        None => list(),
        Some(Benchmark::Engine(arguments)) => {
            return engine::run_benchmark(&arguments, &cache, workspace);
        }
        Some(Benchmark::Operator(arguments)) => {
            return operator::run_benchmark(&arguments, &cache, workspace);
        }
        Some(Benchmark::Autoscaling(arguments)) => {
            return autoscaling::run_benchmark(&arguments, &cache, workspace);
        }
        Some(Benchmark::Chaos(arguments)) => return chaos::run(&arguments, &cache, workspace),
    }
    Ok(ExitCode::SUCCESS)
}

fn list() {
    println!("usage: ./bench NAME [OPTIONS], where NAME is one of");
    for command in <Cli as clap::CommandFactory>::command().get_subcommands() {
        println!(
            "  {:<12}{}",
            command.get_name(),
            command
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default()
        );
    }
}
