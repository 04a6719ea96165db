//! `./bench operator`: what the operator costs and how fast it is, against a real API server with fake nodes.

mod change;
mod converge;
mod floor;
mod idle;
mod restart;
mod watching;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use pagoda_e2e::cache::Cache;
use pagoda_e2e::operator_process::OperatorProcess;
use pagoda_e2e::progress::Progress;

use crate::bed::audit::{AuditLog, Write};
use crate::bed::{self, Bed, services};
use crate::report::{Report, Setting};

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only these; by default all, which takes about 20 minutes on 2 cores
    #[arg(value_enum, value_name = "PART")]
    parts: Vec<Part>,
    /// Services at rest, changed one by one, and found by an operator that starts anew
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    services: u32,
    /// Services created at once
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    burst: u32,
    /// Seconds of rest over which writes are counted
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(10..))]
    idle_seconds: u32,
    /// Changes of a spec
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(200..))]
    changes: u32,
    /// Services that the bare client creates at a time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// Where the JSON goes besides the last line; by default bench/operator.json in the cache
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Writes and processor time of 1,000 services at rest
    Idle,
    /// 5,000 services at once, the API server's own time for the same writes, and memory
    Converge,
    /// From a changed spec to the changed child, at 1,000 services
    Change,
    /// An operator that starts anew at 1,000 services
    Restart,
}

/// What all parts share.
struct Run<'a> {
    arguments: &'a Arguments,
    cache: &'a Cache,
    workspace: &'a Path,
    progress: &'a Progress,
}

/// Measures and prints the table and, as the last line, the flat JSON object.
pub fn run_benchmark(arguments: &Arguments, cache: &Cache, workspace: &Path) -> Result<ExitCode> {
    bed::inside(cache, || measure(arguments, cache, workspace))
}

async fn measure(arguments: &Arguments, cache: &Cache, workspace: &Path) -> Result<ExitCode> {
    let progress = Progress::start();
    let run = Run {
        arguments,
        cache,
        workspace,
        progress: &progress,
    };
    let wants = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let mut report = Report::new(setting())?;
    if [Part::Idle, Part::Change, Part::Restart]
        .into_iter()
        .any(wants)
    {
        run.at_rest(&wants, &mut report).await?;
    }
    if wants(Part::Converge) {
        converge::measure(&run, &mut report).await?;
    }
    let file = arguments
        .json
        .clone()
        .unwrap_or_else(|| cache.root().join("bench/operator.json"));
    report.print(&file)
}

/// What is known in public of how the peers do at such sizes. Published, not measured here.
const PEERS: [(&str, &str); 4] = [
    (
        "KServe stopped at 112 of 300 services created together, its controller saturated",
        "github.com/opendatahub-io/kserve/issues/126",
    ),
    (
        "KServe's webhook timed out while 300 services were created",
        "github.com/opendatahub-io/kserve/issues/76",
    ),
    (
        "AIBrix with HPA writes at least 12 times a minute for each autoscaler at rest",
        "reading of its source",
    ),
    (
        "WVA writes about once a minute for each autoscaler at rest",
        "reading of its source",
    ),
];

fn setting() -> Setting {
    Setting {
        bench: "operator",
        about: "half of the services have one pod each (fake, by kwok), half are at zero with autoscaling on; API server, etcd, \
                controllers, scheduler and operator share these cores",
        peers: &PEERS,
    }
}

impl Run<'_> {
    /// The parts that begin with services at rest, on one control plane.
    async fn at_rest(&self, wants: &impl Fn(Part) -> bool, report: &mut Report) -> Result<()> {
        let count = self.arguments.services as usize;
        let bed = self.bed(count).await?;
        let mut operator = bed.leading_operator("operator-a").await?;
        self.progress.step(format!("creating {count} services"));
        services::create_namespaces(&bed.client, "rest", count).await?;
        services::create_all(&bed.client, "rest", 0..count, self.concurrency()).await?;
        let mut audit = bed.audit();
        settle(&mut audit, &operator, self.progress).await?;
        if wants(Part::Restart) {
            operator = restart::measure(self, &bed, operator, &mut audit, report).await?;
        }
        if wants(Part::Idle) {
            idle::measure(self, &operator, &mut audit, report).await?;
        }
        if wants(Part::Change) {
            change::measure(self, &bed, &operator, report).await?;
        }
        operator.stop().await?;
        Ok(())
    }

    /// A bed with room for every pod and, in a rollout, its successor.
    async fn bed(&self, services: usize) -> Result<Bed> {
        let nodes = (services / 250 + 4).min(60);
        Bed::start(self.cache, self.workspace, nodes, self.progress).await
    }

    fn concurrency(&self) -> usize {
        usize::from(self.arguments.concurrency)
    }
}

/// Nothing written for this long is rest.
const QUIET: Duration = Duration::from_secs(12);
const SETTLE_PATIENCE: Duration = Duration::from_mins(15);

/// Waits until the operator has written nothing for a while; returns what it wrote until then.
async fn settle(
    audit: &mut AuditLog,
    operator: &OperatorProcess,
    progress: &Progress,
) -> Result<Vec<Write>> {
    let (began, mut quiet_since, mut said) = (Instant::now(), Instant::now(), Instant::now());
    let mut writes = Vec::new();
    while quiet_since.elapsed() < QUIET {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = writes.len();
        writes.extend(audit.read_on()?.into_iter().filter(Write::is_work));
        if writes.len() > before {
            quiet_since = Instant::now();
        }
        if let Some(status) = operator.exit_status()? {
            bail!("the operator ended ({status}):\n{}", operator.log_tail());
        }
        if began.elapsed() > SETTLE_PATIENCE {
            let last = writes
                .iter()
                .rev()
                .take(5)
                .map(|w| format!("{} {} {}/{}", w.verb, w.resource, w.namespace, w.name));
            bail!(
                "the operator did not come to rest in {} s; its last writes: {}",
                SETTLE_PATIENCE.as_secs(),
                last.collect::<Vec<_>>().join(", ")
            );
        }
        if said.elapsed() > Duration::from_secs(10) {
            progress.step(format!("{} writes so far", writes.len()));
            said = Instant::now();
        }
    }
    progress.step(format!("at rest after {} writes", writes.len()));
    Ok(writes)
}
