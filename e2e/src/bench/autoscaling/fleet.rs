//! The services of `burst` and `cost`, and the wait until all their pods are there.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use pagoda_e2e::operator_process::OperatorProcess;
use pagoda_e2e::progress::Progress;
use pagoda_e2e::sources::Sources;
use serde_json::{Value, json};

use super::Run;
use crate::bed::Bed;
use crate::bed::services::{self, Key};

/// Open requests that each pod should carry.
pub(super) const TARGET: u64 = 8;
const CONCURRENCY: usize = 32;
const PATIENCE: Duration = Duration::from_mins(15);
const SAY_EVERY: Duration = Duration::from_secs(10);

const PODS_PER_NODE: usize = 240;
/// Where the operator is reached by the API server, as its pod would be: every address of the cluster is local in a sandbox.
const OPERATOR: &str = "198.18.0.9";
const METRICS_PORT: u16 = 6443;

/// A bed with room for so many pods, and an operator that leads; with the metrics that HPAs read, when they are asked for.
pub(super) async fn start(
    run: &Run<'_>,
    pods: usize,
    serves_metrics: bool,
) -> Result<(Bed, Sources, OperatorProcess)> {
    let nodes = (pods / PODS_PER_NODE + 4).min(60);
    let (mut settings, mut flags) = (Vec::new(), Vec::new());
    if serves_metrics {
        settings.push("metricsApi.enabled=true".to_owned());
        flags.push(format!("--metrics-listen={OPERATOR}:{METRICS_PORT}"));
        flags.push(format!("--pod-ip={OPERATOR}"));
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (bed, sources) =
        Bed::start_with_sources(run.cache, run.workspace, nodes, &settings, run.progress).await?;
    let operator = bed
        .leading_operator_with("operator-autoscaling", &flags)
        .await?;
    Ok((bed, sources, operator))
}

/// Namespace and name of the `index`-th service.
pub(super) fn key_of(prefix: &str, index: usize) -> Key {
    services::name_of(prefix, index).0
}

/// A service on in-flight requests, as small as one can be.
pub(super) fn manifest(key: &Key, least: u32, most: u32, managed_by: &str) -> Value {
    json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"namespace": key.0, "name": key.1},
        "spec": {
            "engine": {"executor": "simulated"},
            "hardware": {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}},
            "replicas": least,
            "scaling": {
                "minReplicas": least,
                "maxReplicas": most,
                "managedBy": managed_by,
                "targets": [{"metric": "InFlightRequests", "averageValue": TARGET.to_string()}],
            },
        },
    })
}

/// Creates `count` services, and their namespaces.
pub(super) async fn create(
    client: &Client,
    prefix: &str,
    count: usize,
    manifest: impl Fn(&Key) -> Value,
) -> Result<()> {
    services::create_namespaces(client, prefix, count).await?;
    stream::iter((0..count).map(|index| manifest(&key_of(prefix, index))))
        .map(Ok)
        .try_for_each_concurrent(CONCURRENCY, |manifest| async move {
            services::create(client, &manifest).await.map(drop)
        })
        .await
}

/// Waits until each of `keys` has `pods` ready pods.
pub(super) async fn wait_for_pods(
    sources: &Sources,
    keys: &[Key],
    pods: usize,
    progress: &Progress,
) -> Result<()> {
    let (began, mut said) = (Instant::now(), Instant::now());
    loop {
        let there = keys
            .iter()
            .filter(|key| sources.service(&key.0, &key.1).pods() >= pods)
            .count();
        if there == keys.len() {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!(
                "after {} s only {there} of {} services had {pods} ready pods",
                PATIENCE.as_secs(),
                keys.len()
            );
        }
        if said.elapsed() > SAY_EVERY {
            progress.step(format!(
                "{there} of {} services have {pods} ready pods",
                keys.len()
            ));
            said = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}
