//! `./bench autoscaling`: how fast load becomes pods, and at what cost.
//!
//! What takes thousands of pods (`burst`, `cost`) runs on a control plane of its own in a sandbox, with fake nodes and pods
//! whose load is set (`pagoda_e2e::sources`). What takes real pods (`step`, `zero`) runs on the local cluster.

mod burst;
mod cost;
mod fleet;
mod hpa;
mod place;
mod ready_pods;
mod step;
mod traces;
mod zero;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;
use pagoda_e2e::cache::Cache;
use pagoda_e2e::progress::Progress;
use pagoda_e2e::sandbox;

use crate::bed;
use crate::report::{Report, Setting};

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only these; by default all, which takes about half an hour on 2 cores
    #[arg(value_enum, value_name = "PART")]
    parts: Vec<Part>,
    /// burst, cost: services that are looked at each second
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=2000))]
    services: u32,
    /// burst: services whose load rises tenfold in the same moment
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    bursting: u32,
    /// burst: bursts, each of other services
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    bursts: u32,
    /// burst: services beside them that a HorizontalPodAutoscaler scales on the same metric; 0 for none
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=500))]
    hpas: u32,
    /// burst: seconds of the panic window, spec.scaling.panic.windowSeconds; the API's default when left out
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=30))]
    panic_seconds: Option<u32>,
    /// cost: pods of each service
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10))]
    pods: u32,
    /// cost: seconds over which processor time is counted
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(10..))]
    cost_seconds: u32,
    /// step: seconds of tenfold load, over which changes of direction are counted
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(60..))]
    step_seconds: u32,
    /// zero: requests that meet a service without a pod
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    requests: u32,
    /// zero: how often
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    wakes: u32,
    /// step, zero: measure what is installed on the local cluster, rather than build and install this clone
    #[arg(long)]
    as_installed: bool,
    /// Seed of what is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// traces: seeds, from --seed on, over which each figure is a mean
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    seeds: u8,
    /// Where the JSON goes besides the last line; by default bench/autoscaling.json in the cache
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// From load that is there to be seen to replicas patched, 100 of 1,000 services at once, beside the HPA
    Burst,
    /// Processor time of 1,000 services with 5,000 pods, scraped and decided each second
    Cost,
    /// Ten times the load on one service of real pods that load for 5 s
    Step,
    /// 1,000 requests at a service without a pod
    Zero,
    /// Traces of real services in the simulator, against HPA, Knative's KPA and a saturation-based scaler
    Traces,
}

impl Part {
    fn is_in_sandbox(self) -> bool {
        matches!(self, Self::Burst | Self::Cost)
    }
}

/// What all parts share.
struct Run<'a> {
    arguments: &'a Arguments,
    cache: &'a Cache,
    workspace: &'a Path,
    progress: &'a Progress,
}

impl Run<'_> {
    fn wants(&self, part: Part) -> bool {
        wants(self.arguments, part)
    }
}

fn wants(arguments: &Arguments, part: Part) -> bool {
    arguments.parts.is_empty() || arguments.parts.contains(&part)
}

/// Measures and prints the table and, as the last line, the flat JSON object.
///
/// This very program runs twice where a part needs the sandbox: inside, it leaves what it found in a file.
pub fn run_benchmark(arguments: &Arguments, cache: &Cache, workspace: &Path) -> Result<ExitCode> {
    let found = cache.root().join("bench/autoscaling-sandbox.json");
    let in_sandbox = Part::value_variants()
        .iter()
        .any(|part| part.is_in_sandbox() && wants(arguments, *part));
    if sandbox::is_inside() {
        return bed::inside(cache, || inside(arguments, cache, workspace, &found));
    }
    let mut report = Report::new(setting())?;
    if in_sandbox {
        fs::create_dir_all(found.parent().context("the file has no folder")?)?;
        fs::remove_file(&found).ok();
        let code = bed::inside(cache, || inside(arguments, cache, workspace, &found))?;
        if !found.exists() {
            return Ok(code);
        }
        report.take_over(&found)?;
    }
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(outside(arguments, cache, workspace, &mut report))?;
    let file = arguments
        .json
        .clone()
        .unwrap_or_else(|| cache.root().join("bench/autoscaling.json"));
    report.print(&file)
}

async fn inside(
    arguments: &Arguments,
    cache: &Cache,
    workspace: &Path,
    found: &Path,
) -> Result<ExitCode> {
    let progress = Progress::start();
    let run = Run {
        arguments,
        cache,
        workspace,
        progress: &progress,
    };
    let mut report = Report::new(setting())?;
    if run.wants(Part::Burst) {
        burst::measure(&run, &mut report).await?;
    }
    if run.wants(Part::Cost) {
        cost::measure(&run, &mut report).await?;
    }
    report.hand_over(found)?;
    Ok(ExitCode::SUCCESS)
}

async fn outside(
    arguments: &Arguments,
    cache: &Cache,
    workspace: &Path,
    report: &mut Report,
) -> Result<()> {
    let progress = Progress::start();
    let run = Run {
        arguments,
        cache,
        workspace,
        progress: &progress,
    };
    if run.wants(Part::Traces) {
        traces::measure(&run, report)?;
    }
    if run.wants(Part::Step) || run.wants(Part::Zero) {
        let place = place::Place::up(&run).await?;
        if run.wants(Part::Step) {
            step::measure(&run, &place, report).await?;
        }
        if run.wants(Part::Zero) {
            zero::measure(&run, &place, report).await?;
        }
    }
    Ok(())
}

fn setting() -> Setting {
    Setting {
        bench: "autoscaling",
        about: "burst and cost: fake pods (kwok) that tell the real engine's metrics, on a control plane that shares these cores; step and \
                zero: real gateway and pods with the simulated executor, the load generator on the same cores",
        peers: &PEERS,
    }
}

/// What is known in public of how fast the peers are. Published or read in their sources, not measured here.
const PEERS: [(&str, &str); 3] = [
    (
        "HPA looks every 15 s, and waits 300 s before it removes a pod",
        "kubernetes.io, Horizontal Pod Autoscaling",
    ),
    (
        "llm-d WVA: KV cache at 0.99 after 90 s, decision at 105 s, pods ready at 240 s, p99 TTFT 60 s, with HPA and WVA alike",
        "llm-d's published comparison",
    ),
    (
        "Knative KPA looks every 2 s; NVIDIA Dynamo's planner every 5 s by load and every 180 s by throughput",
        "reading of their sources",
    ),
];
