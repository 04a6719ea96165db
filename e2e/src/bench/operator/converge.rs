//! Services created all at once: until each has its children and a status, beside a bare client that does the same writes
//! without an operator, on another control plane as fresh as this one.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use pagoda_e2e::operator_process::OperatorProcess;

use super::floor::{self, Writes};
use super::watching::{Milestones, Watching};
use super::{Run, settle};
use crate::bed::audit::{Write, by_resource};
use crate::bed::{Bed, services};
use crate::report::{Figure, Report};

pub(super) const PREFIX: &str = "burst";
const PATIENCE: Duration = Duration::from_mins(10);
const MIB: f64 = 1024.0 * 1024.0;

/// What the operator took.
struct Burst {
    milestones: Milestones,
    created: f64,
    /// What it wrote until all had converged, to be written again by the bare client.
    writes: Writes,
    /// Seconds of processor time until then: the operator's and the cluster's parts'.
    cpu: Vec<(&'static str, f64)>,
    memory: Memory,
    note: String,
}

/// Resident bytes of the operator.
struct Memory {
    empty: f64,
    full: f64,
    peak: f64,
}

pub(super) async fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let count = run.arguments.burst as usize;
    let burst = burst(run, count).await?;
    run.progress
        .step("the same writes by a bare client, on a fresh control plane");
    let bed = run.bed(count).await?;
    let floor = floor::measure(run, &bed, &burst.writes, count).await?;
    tell(report, count, &burst, floor)
}

async fn burst(run: &Run<'_>, count: usize) -> Result<Burst> {
    let bed = run.bed(count).await?;
    let operator = bed.leading_operator("operator-burst").await?;
    services::create_namespaces(&bed.client, PREFIX, count).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let empty = operator.resident_bytes() as f64;
    let client = bed.bare_client().await?;
    let watching = Watching::start(&bed.client);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut audit = bed.audit();
    audit.skip()?;
    run.progress
        .step(format!("creating {count} services at once"));
    let cpu_before = cpu(&bed, &operator);
    let began = Instant::now();
    let concurrency = run.concurrency();
    let creating = tokio::spawn(async move {
        services::create_all(&client, PREFIX, 0..count, concurrency).await?;
        anyhow::Ok(began.elapsed().as_secs_f64())
    });
    let milestones = watching
        .wait(count, began, false, PATIENCE, run.progress)
        .await?;
    let (converged_at, cpu_after) = (Timestamp::now(), cpu(&bed, &operator));
    let created = creating.await??;
    let later = watching
        .wait(count, began, true, PATIENCE, run.progress)
        .await?;
    let all = settle(&mut audit, &operator, run.progress).await?;
    let until: Vec<&Write> = all.iter().filter(|w| w.received <= converged_at).collect();
    let burst = Burst {
        milestones: Milestones {
            ready: later.ready,
            ..milestones
        },
        created,
        note: told(&until),
        writes: Writes::of(&bed, &until, count).await?,
        cpu: difference(&cpu_before, &cpu_after),
        memory: Memory {
            empty,
            full: operator.resident_bytes() as f64,
            peak: peak_bytes(&operator).context("the operator has no peak of memory")?,
        },
    };
    operator.stop().await?;
    Ok(burst)
}

fn cpu(bed: &Bed, operator: &OperatorProcess) -> Vec<(&'static str, f64)> {
    let own = ("operator", operator.cpu_time().as_secs_f64());
    std::iter::once(own)
        .chain(bed.cluster_cpu_seconds())
        .collect()
}

fn difference(
    before: &[(&'static str, f64)],
    after: &[(&'static str, f64)],
) -> Vec<(&'static str, f64)> {
    let earlier = |name: &str| {
        before
            .iter()
            .find(|(n, _)| *n == name)
            .map_or(0.0, |(_, s)| *s)
    };
    after
        .iter()
        .map(|(name, seconds)| (*name, seconds - earlier(name)))
        .collect()
}

fn peak_bytes(operator: &OperatorProcess) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", operator.identity().pid)).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0)
}

/// Writes by kind, with how long the API server took for one.
fn told(writes: &[&Write]) -> String {
    let counts = by_resource(writes.iter().copied());
    let mean = |what: &str| {
        let of = writes
            .iter()
            .filter(|w| format!("{} {}", w.verb, w.resource) == what);
        let seconds: Vec<f64> = of.map(|w| w.seconds()).collect();
        seconds.iter().sum::<f64>() / seconds.len().max(1) as f64 * 1000.0
    };
    counts
        .iter()
        .map(|(what, count)| format!("{count} {what} ({:.0} ms each)", mean(what)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn tell(report: &mut Report, count: usize, burst: &Burst, floor: Milestones) -> Result<()> {
    let converged = burst
        .milestones
        .converged()
        .context("the services never converged")?;
    let floor = floor.converged().context("the bare client never ended")?;
    let cpu: Vec<String> = burst
        .cpu
        .iter()
        .map(|(name, s)| format!("{name} {s:.0} s"))
        .collect();
    report.figure(Figure {
        key: "apiserver_floor_s".into(),
        what: format!("the same writes by a bare client, {count} services"),
        value: floor,
        target: None,
        unit: "s".into(),
        note: burst.writes.to_string(),
    });
    report.figure(Figure {
        key: "converge_5000_s".into(),
        what: format!("{count} services created at once: all converged"),
        value: converged,
        target: Some(floor + 60.0),
        unit: "s".into(),
        note: format!(
            "{:+.1} s against the bare client; all created after {:.1} s, all children after {:.1} s, all statuses after {:.1} s, \
             all Ready after {:.1} s\n    until converged: {}\n    processor time: {}",
            converged - floor,
            burst.created,
            burst.milestones.children.unwrap_or_default(),
            burst.milestones.told.unwrap_or_default(),
            burst.milestones.ready.unwrap_or_default(),
            burst.note,
            cpu.join(", "),
        ),
    });
    report.fact("converge_services", count as f64);
    report.fact("converge_over_floor_s", converged - floor);
    report.fact("converge_created_s", burst.created);
    report.fact(
        "converge_ready_s",
        burst.milestones.ready.unwrap_or_default(),
    );
    memory(report, count, &burst.memory);
    Ok(())
}

fn memory(report: &mut Report, count: usize, memory: &Memory) {
    report.figure(Figure {
        key: "rss_mib".into(),
        what: format!("operator's resident memory at {count}"),
        value: memory.full / MIB,
        target: Some(150.0),
        unit: "MiB".into(),
        note: format!(
            "{:.1} MiB at none, {:.1} MiB at its peak",
            memory.empty / MIB,
            memory.peak / MIB
        ),
    });
    report.figure(Figure {
        key: "kib_per_service".into(),
        what: "of it for each service".to_owned(),
        value: (memory.full - memory.empty) / 1024.0 / count as f64,
        target: Some(20.0),
        unit: "KiB".into(),
        note: String::new(),
    });
    report.fact("rss_empty_mib", memory.empty / MIB);
    report.fact("rss_peak_mib", memory.peak / MIB);
}
