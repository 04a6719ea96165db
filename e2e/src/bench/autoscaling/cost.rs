//! What it costs to ask thousands of pods and to decide for all their services each second.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pagoda_e2e::operator_process::OperatorProcess;
use pagoda_e2e::sources::Sources;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Run;
use super::fleet::{self, TARGET, key_of};
use crate::bed::services::Key;
use crate::report::{Figure, Report};

const PREFIX: &str = "cost";
/// Children are made and statuses written before anything is counted.
const CALM: Duration = Duration::from_secs(40);
/// The operator's own clock of its rounds.
const ROUND: &str = "pagoda_operator_autoscale_seconds";

pub(super) async fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let (services, pods) = (run.arguments.services as usize, run.arguments.pods as usize);
    let (bed, sources, operator) = fleet::start(run, services * (pods + 1), false).await?;
    run.progress.step(format!(
        "creating {services} services of {pods} pods, autoscaled"
    ));
    let keys: Vec<Key> = (0..services).map(|index| key_of(PREFIX, index)).collect();
    let mut random = SmallRng::seed_from_u64(run.arguments.seed);
    move_loads(&sources, &keys, pods, &mut random);
    fleet::create(&bed.client, PREFIX, services, |key| {
        fleet::manifest(key, pods as u32, 4 * pods as u32, "Pagoda")
    })
    .await?;
    fleet::wait_for_pods(&sources, &keys, pods, run.progress).await?;
    run.progress.step("all pods are there; until all is told");
    tokio::time::sleep(CALM).await;
    let measured = count(run, &sources, &operator, &keys, &mut random).await?;
    ensure!(
        operator.exit_status()?.is_none(),
        "the operator ended:\n{}",
        operator.log_tail()
    );
    operator.stop().await?;
    tell(report, services, pods, &measured);
    Ok(())
}

/// Every load differs from second to second, and stays within tolerance of its target.
fn move_loads(sources: &Sources, keys: &[Key], pods: usize, random: &mut SmallRng) {
    let whole = TARGET * pods as u64;
    let most = whole / 20;
    for (namespace, name) in keys {
        let now = whole - most + random.random_range(0..=2 * most);
        sources.service(namespace, name).set_in_flight(now);
    }
}

struct Measured {
    seconds: f64,
    cpu_seconds: f64,
    resident_bytes: f64,
    /// Answers of pods.
    answers: u64,
    /// Seconds between two answers of a pod.
    gap_p50: f64,
    gap_p99: f64,
    /// Mean seconds of the operator's rounds, as it tells them.
    round: f64,
    patches: f64,
}

async fn count(
    run: &Run<'_>,
    sources: &Sources,
    operator: &OperatorProcess,
    keys: &[Key],
    random: &mut SmallRng,
) -> Result<Measured> {
    let length = Duration::from_secs(run.arguments.cost_seconds.into());
    run.progress
        .step(format!("counting for {} s", length.as_secs()));
    sources.take_gaps();
    let rounds_before = rounds(operator).await?;
    let patches_before = operator
        .metric("pagoda_operator_scale_writes_total")
        .await?;
    let (began, cpu_before) = (Instant::now(), operator.cpu_time());
    let mut every = tokio::time::interval(Duration::from_secs(1));
    while began.elapsed() < length {
        every.tick().await;
        move_loads(sources, keys, run.arguments.pods as usize, random);
    }
    let (seconds, cpu) = (began.elapsed(), operator.cpu_time());
    let (gaps, rounds_after) = (sources.take_gaps(), rounds(operator).await?);
    let of_rounds = (
        rounds_after.0 - rounds_before.0,
        rounds_after.1 - rounds_before.1,
    );
    ensure!(of_rounds.1 > 0.0, "the operator made no round");
    Ok(Measured {
        seconds: seconds.as_secs_f64(),
        cpu_seconds: cpu.saturating_sub(cpu_before).as_secs_f64(),
        resident_bytes: operator.resident_bytes() as f64,
        answers: gaps.len(),
        gap_p50: gaps.value_at_quantile(0.5) as f64 / 1e6,
        gap_p99: gaps.value_at_quantile(0.99) as f64 / 1e6,
        round: of_rounds.0 / of_rounds.1,
        patches: operator
            .metric("pagoda_operator_scale_writes_total")
            .await?
            - patches_before,
    })
}

/// Seconds of all rounds so far, and how many.
async fn rounds(operator: &OperatorProcess) -> Result<(f64, f64)> {
    Ok((
        operator.metric(&format!("{ROUND}_sum")).await?,
        operator.metric(&format!("{ROUND}_count")).await?,
    ))
}

fn tell(report: &mut Report, services: usize, pods: usize, measured: &Measured) {
    let all = services * pods;
    let per_second = measured.answers as f64 / measured.seconds;
    report.figure(Figure {
        key: "cpu_percent".into(),
        what: format!("{services} services of {pods} pods, each second: processor"),
        value: measured.cpu_seconds / measured.seconds * 100.0,
        target: Some(10.0),
        unit: "% of a core".into(),
        note: format!(
            "scrape included; {per_second:.0} answers of pods a second, {:.0} patches in {:.0} s; operator's memory {:.0} MiB",
            measured.patches,
            measured.seconds,
            measured.resident_bytes / f64::from(1 << 20)
        ),
    });
    report.figure(Figure {
        key: "scrape_5000_s".into(),
        what: format!("{all} pods asked and all decided: a round, mean"),
        value: measured.round,
        target: Some(1.0),
        unit: "s".into(),
        note: format!(
            "as the operator tells it; at the pods, {:.2} s between two questions at the median and {:.2} s at p99",
            measured.gap_p50, measured.gap_p99
        ),
    });
    report.fact("cost_pods", all as f64);
    report.fact("cost_answers_per_s", per_second);
    report.fact("scrape_gap_p50_s", measured.gap_p50);
    report.fact("scrape_gap_p99_s", measured.gap_p99);
    report.fact("cost_rss_mib", measured.resident_bytes / f64::from(1 << 20));
}
