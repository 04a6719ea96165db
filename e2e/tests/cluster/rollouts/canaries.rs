//! A canary's steps, the shares of requests that the gateway gives it, and what takes it back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::revisions::{
    at_rest, changed, in_phase, joined, name_of, only, pods_by_revision, replicas,
};
use crate::bed::{Bed, PATIENCE, eventually, on_cluster, pod_name};
use crate::load::Load;
use crate::manifests::{simulated, with};

/// A good canary takes half a minute.
fn canary(manifest: Value, steps: &[u32], step_seconds: u32) -> Value {
    let rollout = json!({
        "strategy": "Canary",
        "canary": {"steps": steps, "stepSeconds": step_seconds, "minRequests": 20, "maxErrorPercent": 5, "maxTtftIncreasePercent": 100},
        "progressDeadlineSeconds": 300,
        "drainSeconds": 60,
    });
    with(manifest, &["spec", "rollout"], rollout)
}

/// Of each revision the attempts that went well, and badly.
type Counts = BTreeMap<String, (u64, u64)>;

/// What the gateways have counted.
async fn counted(bed: &Bed, service: &str) -> Result<Counts> {
    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), "pagoda-system");
    let gateways = ListParams::default().labels("app.kubernetes.io/name=pagoda-gateway");
    let mut found: Counts = BTreeMap::new();
    for gateway in pods.list(&gateways).await? {
        let path = format!(
            "/api/v1/namespaces/pagoda-system/pods/{}:8081/proxy/metrics",
            pod_name(&gateway)
        );
        let text = bed
            .client
            .request_text(http::Request::get(path).body(Vec::new())?)
            .await?;
        let of_service = format!("namespace=\"{}\",service=\"{service}\"", bed.namespace);
        for line in text.lines().filter(|line| {
            line.starts_with("pagoda_gateway_revision_requests_total{")
                && line.contains(&of_service)
        }) {
            let label = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\""))?;
                Some(rest.split('"').next()?.to_owned())
            };
            let value: u64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
            let entry = found
                .entry(label("revision").context("a revision")?)
                .or_default();
            match label("outcome").as_deref() {
                Some("ok") => entry.0 += value,
                _ => entry.1 += value,
            }
        }
    }
    Ok(found)
}

/// Percent of the requests that each revision is to get now.
fn shares(status: &Value) -> BTreeMap<String, u64> {
    let traffic = status["rollout"]["traffic"].as_array();
    traffic
        .into_iter()
        .flatten()
        .filter_map(|share| {
            Some((
                share["revision"].as_str()?.to_owned(),
                share["percent"].as_u64()?,
            ))
        })
        .collect()
}

#[test]
fn a_good_canary_takes_its_steps_and_the_gateway_shares_requests_out_as_told() {
    on_cluster("canary-good", |bed| async move {
        let manifest = canary(replicas(simulated("good"), 2), &[20, 50], 15);
        bed.apply(&manifest).await?;
        bed.ready("good").await?;
        let old = at_rest(&bed, "good").await?;
        let load = Load::start(&bed.gateway, &bed.chat("good", 5), 8);
        bed.apply(&changed(manifest)).await?;
        let new = joined(&bed, "good", &old).await?;

        let mut seen = BTreeSet::new();
        let mut measured = BTreeMap::new();
        let mut from: Option<(u64, Counts)> = None;
        let watching = async {
            loop {
                let status = bed.service("good").await?["status"].take();
                let percent = shares(&status).get(&new).copied();
                let counts = counted(&bed, "good").await?;
                match (percent, &from) {
                    (Some(now), Some((then, before))) if now == *then => {
                        let split = |revision: &str| {
                            let of = |counts: &Counts| {
                                counts.get(revision).copied().unwrap_or_default().0
                            };
                            of(&counts).saturating_sub(of(before))
                        };
                        measured.insert(now, (split(&new), split(&old)));
                    }
                    (Some(now), _) => {
                        seen.insert(now);
                        from = Some((now, counts));
                    }
                    (None, _) if seen.is_empty() => {}
                    (None, _) => return Ok(()),
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let ended: Result<()> = tokio::time::timeout(PATIENCE * 2, watching)
            .await
            .context("the canary does not end")?;
        ended?;
        ensure!(
            at_rest(&bed, "good").await? == new,
            "the canary did not take over"
        );
        only(&bed, "good", &new).await?;
        ensure!(
            seen.is_superset(&BTreeSet::from([20, 50])),
            "shares were {seen:?} percent"
        );
        for percent in [20_u64, 50] {
            let (new, old) = measured.get(&percent).copied().unwrap_or_default();
            let all = (new + old) as f64;
            ensure!(
                all >= 100.0,
                "too few requests at {percent} %: {new} and {old}"
            );
            let share = percent as f64 / 100.0;
            let deviation = (all * share * (1.0 - share)).sqrt();
            // The gateway learns of a step a moment after it is written, hence the second term.
            let bound = 6.0 * deviation + 0.1 * all;
            ensure!(
                (new as f64 - all * share).abs() <= bound,
                "at {percent} % the new revision got {new} of {all} requests"
            );
        }
        load.stop().await.unharmed()
    });
}

/// Waits until the canary was taken back, looks that it stays so, and that a better spec is tried again.
async fn is_taken_back(bed: &Bed, service: &str, old: &str, better: &Value) -> Result<String> {
    let status = in_phase(bed, service, "RolledBack").await?;
    let failed = &status["rollout"]["failed"];
    let bad = status["revision"]["updated"].as_str().unwrap_or_default();
    ensure!(
        failed["revision"] == bad && bad != old,
        "failed is {failed}, revisions {}",
        status["revision"]
    );
    ensure!(
        status["revision"]["current"] == old,
        "{}",
        status["revision"]
    );
    let message = failed["message"].as_str().unwrap_or_default().to_owned();
    ensure!(
        message.chars().any(|char| char.is_ascii_digit()),
        "it says no number: {message}"
    );
    eventually("the bad revision has no pod", PATIENCE, async || {
        let pods = pods_by_revision(bed, service).await?;
        ensure!(pods.keys().eq([old]), "pods are of {:?}", pods.keys());
        Ok(())
    })
    .await?;
    // Something makes the operator look again and again; what failed is not tried again by that.
    for round in 0..20 {
        let annotations =
            json!({"metadata": {"annotations": {"example.com/round": round.to_string()}}});
        bed.kubectl_ok(
            &[
                "patch",
                "isvc",
                service,
                "--type=merge",
                "--patch",
                &annotations.to_string(),
            ],
            None,
        )
        .await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let pods = pods_by_revision(bed, service).await?;
        ensure!(
            pods.keys().eq([old]),
            "it is tried again: {:?}",
            pods.keys()
        );
    }
    // Whoever asked the bad one may have given up, and a canary that nobody asks is not judged.
    let load = Load::start(&bed.gateway, &bed.chat(service, 5), 4);
    bed.apply(better).await?;
    let next = at_rest(bed, service).await?;
    ensure!(next != old && next != bad, "revision {next} serves");
    load.stop().await.unharmed()?;
    Ok(message)
}

#[test]
fn a_slower_canary_is_taken_back_and_tried_again_only_with_another_spec() {
    on_cluster("canary-slow", |bed| async move {
        let manifest = canary(simulated("slow"), &[30], 10);
        bed.apply(&manifest).await?;
        bed.ready("slow").await?;
        let old = at_rest(&bed, "slow").await?;
        let load = Load::start(&bed.gateway, &bed.chat("slow", 5), 8);
        let slow = with(
            manifest.clone(),
            &["spec", "engine", "simulated", "prefillTokensPerSecond"],
            json!(60),
        );
        bed.apply(&slow).await?;
        let message = is_taken_back(&bed, "slow", &old, &changed(manifest)).await?;
        ensure!(
            message.to_lowercase().contains("token"),
            "the reason is the time to first token: {message}"
        );
        // It was slow, and that was all that clients saw of it.
        load.stop().await.unharmed()
    });
}

#[test]
fn a_canary_that_answers_errors_is_taken_back() {
    on_cluster("canary-errors", |bed| async move {
        let manifest = canary(simulated("errors"), &[30], 10);
        bed.apply(&manifest).await?;
        bed.ready("errors").await?;
        let old = at_rest(&bed, "errors").await?;
        let load = Load::start(&bed.gateway, &bed.chat("errors", 5), 4);
        bed.apply(&answering_errors(&bed, manifest.clone()).await?)
            .await?;
        is_taken_back(&bed, "errors", &old, &changed(manifest)).await?;
        // Clients did see those errors: that is what the canary's share bounds.
        ensure!(load.stop().await.whole > 0, "no request was answered");
        Ok(())
    });
}

/// The service with another server: a gateway whose only pod is nobody, so that it is healthy and answers 502.
async fn answering_errors(bed: &Bed, manifest: Value) -> Result<Value> {
    let service = name_of(&manifest)?.to_owned();
    let routes = json!([{
        "namespace": bed.namespace, "name": service, "models": [service], "endpoints": ["127.0.0.1:1"], "holdTimeoutSeconds": 0,
    }]);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "routes"}, "data": {"routes.json": routes.to_string()},
    });
    bed.apply_object::<ConfigMap>(&map).await?;
    let engine = json!({
        "image": "pagoda/gateway:dev",
        "args": ["--static-routes=/routes/routes.json", "--listen=0.0.0.0:8000"],
        "healthPath": "/v1/models",
    });
    let overlay = json!({"spec": {
        "volumes": [{"name": "routes", "configMap": {"name": "routes"}}],
        "containers": [{"name": "engine", "volumeMounts": [{"name": "routes", "mountPath": "/routes", "readOnly": true}]}],
    }});
    let manifest = with(manifest, &["spec", "engine"], engine);
    Ok(with(manifest, &["spec", "podTemplate"], overlay))
}
