//! Many services burst in one moment: from the moment at which gateway and pods tell the load until a watch shows the new
//! `spec.replicas`. Beside them, in the same moments, services that a HorizontalPodAutoscaler scales on the same metric.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use pagoda_e2e::replicas_seen::ReplicasSeen;
use pagoda_e2e::sources::Sources;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::Run;
use super::fleet::{self, TARGET, key_of};
use super::hpa;
use crate::bed::Bed;
use crate::bed::services::Key;
use crate::report::{Figure, Report};

const OWN: &str = "burst";
const HPAS: &str = "hpa";
/// Open requests of a service before and after: ten times as many.
const BEFORE: u64 = 4;
const AFTER: u64 = 40;
pub(super) const MOST_PODS: u32 = 40;
/// Of services that an HPA scales, each burst doubles the load, because the HPA takes minutes to forget the last one.
const HPA_BEFORE: u64 = TARGET;
const HPA_BURSTS: u32 = 3;
const PATIENCE: Duration = Duration::from_mins(2);
/// Nothing changes for so long before the first burst.
const CALM: Duration = Duration::from_secs(20);

/// Microseconds from load to patch.
struct Latencies {
    own: Histogram<u64>,
    hpa: Histogram<u64>,
}

pub(super) async fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let arguments = run.arguments;
    ensure!(
        arguments.bursting <= arguments.services,
        "--bursting is above --services: only services that there are can burst"
    );
    let (services, hpas) = (arguments.services as usize, arguments.hpas as usize);
    let (bed, sources, operator) = fleet::start(run, services + 12 * hpas, hpas > 0).await?;
    let hpas = create(run, &bed, &sources, services, hpas).await?;
    let watch = ReplicasSeen::watch(&bed.client);
    run.progress
        .step("all have their first pod; a moment of calm");
    tokio::time::sleep(CALM).await;
    let latencies = bursts(run, &sources, &watch, hpas).await?;
    ensure!(
        operator.exit_status()?.is_none(),
        "the operator ended:\n{}",
        operator.log_tail()
    );
    operator.stop().await?;
    tell(run, report, &latencies);
    Ok(())
}

/// Returns how many of those that an HPA scales there are: none where no HPA can read the metric.
async fn create(
    run: &Run<'_>,
    bed: &Bed,
    sources: &Sources,
    services: usize,
    hpas: usize,
) -> Result<usize> {
    run.progress.step(format!(
        "creating {services} services, and {hpas} that an HPA scales"
    ));
    let own: Vec<Key> = (0..services).map(|index| key_of(OWN, index)).collect();
    let others: Vec<Key> = (0..hpas).map(|index| key_of(HPAS, index)).collect();
    for (keys, in_flight) in [(&own, BEFORE), (&others, HPA_BEFORE)] {
        for (namespace, name) in keys {
            sources.service(namespace, name).set_in_flight(in_flight);
        }
    }
    fleet::create(&bed.client, OWN, services, |key| {
        let mut manifest = fleet::manifest(key, 1, MOST_PODS, "Pagoda");
        if let Some(seconds) = run.arguments.panic_seconds {
            manifest["spec"]["scaling"]["panic"] = json!({"windowSeconds": seconds});
        }
        manifest
    })
    .await?;
    if hpas > 0 {
        fleet::create(&bed.client, HPAS, hpas, |key| {
            fleet::manifest(key, 1, MOST_PODS, "External")
        })
        .await?;
    }
    let all: Vec<Key> = own.into_iter().chain(others.iter().cloned()).collect();
    fleet::wait_for_pods(sources, &all, 1, run.progress).await?;
    if let Some(first) = others.first() {
        if let Err(error) = hpa::wait_for_metric(&bed.client, first).await {
            // Ours are measured all the same; what is missing is missing in the JSON too.
            run.progress.step(format!("no HPA beside them: {error:#}"));
            return Ok(0);
        }
        hpa::create_all(&bed.client, &others).await?;
    }
    Ok(hpas)
}

async fn bursts(
    run: &Run<'_>,
    sources: &Sources,
    watch: &ReplicasSeen,
    hpas: usize,
) -> Result<Latencies> {
    let arguments = run.arguments;
    let (services, bursting) = (arguments.services as usize, arguments.bursting as usize);
    let mut latencies = Latencies {
        own: Histogram::new(3)?,
        hpa: Histogram::new(3)?,
    };
    let mut random = SmallRng::seed_from_u64(arguments.seed);
    for burst in 0..arguments.bursts {
        // The operator looks once a second and the HPA every 15: a burst may come at any moment between.
        tokio::time::sleep(Duration::from_secs_f64(random.random_range(0.0..15.0))).await;
        let first = burst as usize * bursting;
        let own: Vec<Key> = (first..first + bursting)
            .map(|index| key_of(OWN, index % services))
            .collect();
        let others: Vec<Key> = if burst < HPA_BURSTS {
            (0..hpas).map(|index| key_of(HPAS, index)).collect()
        } else {
            Vec::new()
        };
        let began = Instant::now();
        // A second burst of the same service needs more than the first brought.
        let round = first / services;
        for (namespace, name) in &own {
            let load = AFTER * (round as u64 + 1);
            sources.service(namespace, name).set_in_flight(load);
        }
        for (namespace, name) in &others {
            let load = HPA_BEFORE << (burst + 1);
            sources.service(namespace, name).set_in_flight(load);
        }
        let own = wait(watch, &own, began, &mut latencies.own).await?;
        let others = wait(watch, &others, began, &mut latencies.hpa).await?;
        run.progress.step(format!(
            "burst {}: {own} services patched, and {others} by their HPA; p99 so far {:.2} s and {:.2} s",
            burst + 1,
            seconds(&latencies.own, 0.99),
            seconds(&latencies.hpa, 0.99),
        ));
    }
    Ok(latencies)
}

/// Waits until all of `keys` have been given more pods since `began`, and records after how long each.
async fn wait(
    watch: &ReplicasSeen,
    keys: &[Key],
    began: Instant,
    latencies: &mut Histogram<u64>,
) -> Result<usize> {
    let mut left: Vec<&Key> = keys.iter().collect();
    while !left.is_empty() {
        let mut failed = Ok(());
        left.retain(|key| match watch.rise_after(key, began) {
            Some(at) => {
                let micros = u64::try_from((at - began).as_micros()).unwrap_or(u64::MAX);
                failed = latencies.record(micros.max(1));
                false
            }
            None => true,
        });
        failed?;
        ensure!(
            began.elapsed() < PATIENCE,
            "{} of {} services that burst got no more pods in {} s, such as {}/{}",
            left.len(),
            keys.len(),
            PATIENCE.as_secs(),
            left[0].0,
            left[0].1
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(keys.len())
}

fn seconds(latencies: &Histogram<u64>, quantile: f64) -> f64 {
    latencies.value_at_quantile(quantile) as f64 / 1e6
}

fn tell(run: &Run<'_>, report: &mut Report, latencies: &Latencies) {
    let arguments = run.arguments;
    report.figure(Figure {
        key: "burst_p99_s".into(),
        what: format!(
            "burst to replicas patched, {} of {}, p99",
            arguments.bursting, arguments.services
        ),
        value: seconds(&latencies.own, 0.99),
        target: Some(3.0),
        unit: "s".into(),
        note: format!(
            "p50 {:.2} s, longest {:.2} s; {} bursts, {} patches",
            seconds(&latencies.own, 0.5),
            latencies.own.max() as f64 / 1e6,
            arguments.bursts,
            latencies.own.len()
        ),
    });
    report.fact("burst_p50_s", seconds(&latencies.own, 0.5));
    report.fact("burst_max_s", latencies.own.max() as f64 / 1e6);
    report.fact("burst_services", f64::from(arguments.services));
    report.fact("burst_samples", latencies.own.len() as f64);
    if latencies.hpa.is_empty() {
        return;
    }
    report.figure(Figure {
        key: "hpa_burst_p99_s".into(),
        what: format!("the same, {} services by HPA, p99", arguments.hpas),
        value: seconds(&latencies.hpa, 0.99),
        target: None,
        unit: "s".into(),
        note: format!(
            "p50 {:.2} s, longest {:.2} s; {} patches; the cluster's own HPA on the operator's external metric, its period as Kubernetes \
             sets it (15 s); same moments, twice the load at each of the first {HPA_BURSTS} bursts",
            seconds(&latencies.hpa, 0.5),
            latencies.hpa.max() as f64 / 1e6,
            latencies.hpa.len()
        ),
    });
    report.fact("hpa_burst_p50_s", seconds(&latencies.hpa, 0.5));
    report.fact("hpa_burst_samples", latencies.hpa.len() as f64);
}
