//! What moves the number of real pods, beyond requests in flight; faults of what the autoscaler knows are tested where pods are
//! fake (`e2e/tests/autoscaling`).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::bed::{Bed, PATIENCE, eventually, on_cluster};
use crate::load::Load;
use crate::manifests::{simulated, with};

/// How long a test looks whether something happens that must not.
const LOOK: Duration = Duration::from_secs(20);
/// The least that the API allows.
const DEADLINE_SECONDS: u32 = 10;

fn scaled(name: &str, most: u32, target: &Value) -> Value {
    let scaling = json!({
        "minReplicas": 1, "maxReplicas": most, "windowSeconds": 5, "scaleDownStabilizationSeconds": 5, "targets": [target],
    });
    with(simulated(name), &["spec", "scaling"], scaling)
}

async fn replicas(bed: &Bed, service: &str) -> Result<i64> {
    let service = bed.service(service).await?;
    Ok(service["spec"]["replicas"].as_i64().unwrap_or_default())
}

/// Waits until the service has more pods than one, all of them ready, and its last decision names `word`.
async fn grew_by(bed: &Bed, service: &str, word: &str) -> Result<()> {
    eventually(
        &format!("{service} grows by its {word}"),
        PATIENCE,
        async || {
            let service = bed.service(service).await?;
            let (decision, ready) = (
                &service["status"]["scaling"]["lastDecision"],
                &service["status"]["readyReplicas"],
            );
            let reason = decision["reason"].as_str().unwrap_or_default();
            ensure!(
                ready.as_i64() > Some(1) && reason.contains(word),
                "{ready} pods are ready, the last decision is {decision}"
            );
            Ok(())
        },
    )
    .await
}

#[test]
fn first_tokens_that_come_too_late_bring_pods() {
    on_cluster("latency", |bed| async move {
        let target = json!({"metric": "TimeToFirstToken", "percentile": 90, "milliseconds": 200});
        // Two at a time: of eight, six wait for a second or more.
        let manifest = with(
            scaled("latency", 4, &target),
            &["spec", "engine", "maxSequences"],
            json!(2),
        );
        bed.apply(&manifest).await?;
        bed.ready("latency").await?;
        let load = Load::start(&bed.gateway, &bed.chat("latency", 40), 8);
        let grew = grew_by(&bed, "latency", "TimeToFirstToken").await;
        load.stop().await.unharmed()?;
        grew
    });
}

#[test]
fn full_kv_caches_bring_pods() {
    on_cluster("kv", |bed| async move {
        let target = json!({"metric": "KvCacheUtilization", "percent": 20});
        // Its 128 blocks hold 2,048 tokens, of which eight answers take half.
        bed.apply(&scaled("kv", 3, &target)).await?;
        bed.ready("kv").await?;
        let load = Load::start(&bed.gateway, &bed.chat("kv", 200), 8);
        let grew = grew_by(&bed, "kv", "KvCacheUtilization").await;
        load.stop().await.unharmed()?;
        grew
    });
}

#[test]
fn pagoda_explain_tells_through_the_api_server_what_changed_the_number_of_pods() {
    on_cluster("explain", |bed| async move {
        let target = json!({"metric": "InFlightRequests", "averageValue": "4"});
        bed.apply(&scaled("told", 2, &target)).await?;
        bed.ready("told").await?;
        let load = Load::start(&bed.gateway, &bed.chat("told", 200), 8);
        let grew = grew_by(&bed, "told", "InFlightRequests").await;
        load.stop().await.unharmed()?;
        grew?;
        let table = bed.explain("told", &[]).await?;
        let change = table.lines().find(|line| line.contains("1 -> 2"));
        ensure!(
            change.is_some_and(|line| line.contains("InFlightRequests")),
            "no line tells the change: {table}"
        );
        let json: Value = serde_json::from_str(&bed.explain("told", &["--format", "json"]).await?)?;
        let spans = json["spans"].as_array().context("no spans")?;
        ensure!(
            spans
                .iter()
                .any(|s| s["current"] == 1 && s["replicas"] == 2),
            "no span tells the change: {json}"
        );
        Ok(())
    });
}

#[test]
fn pods_that_load_for_ever_are_said_and_no_more_are_asked_for() {
    on_cluster("load-for-ever", |bed| async move {
        let target = json!({"metric": "InFlightRequests", "averageValue": "4"});
        let manifest = with(
            scaled("loading", 12, &target),
            &["spec", "engine", "simulated", "loadSeconds"],
            json!(3600),
        );
        let deadline = json!({"progressDeadlineSeconds": DEADLINE_SECONDS});
        let manifest = with(manifest, &["spec", "rollout"], deadline);
        bed.apply(&manifest).await?;
        // Twelve that are held for want of a pod are three pods' worth.
        let load = Load::start(&bed.gateway, &bed.chat("loading", 8), 12);
        let asked = eventually("three pods are asked for", PATIENCE, async || {
            let replicas = replicas(&bed, "loading").await?;
            ensure!(replicas == 3, "{replicas} are asked for");
            Ok(())
        })
        .await;
        tokio::time::sleep(LOOK).await;
        let after = replicas(&bed, "loading").await;
        let said = bed
            .fails_with("loading", "Autoscaling", "PodsNotReady")
            .await;
        // Held requests are told that nobody came; how is the gateway's matter.
        drop(load);
        asked?;
        ensure!(after? == 3, "more were asked for while none got ready");
        said.map(drop)
    });
}
