//! How the autoscaler explains itself, whom it takes pods from, and whom it lets start.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::stage::{EACH, LOOK, Stage, elastic, with};

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

pub async fn what_was_decided_and_why_stands_in_the_status_the_log_and_the_metrics(
    stage: Arc<Stage>,
) -> Result<()> {
    stage.at_four(&elastic("told", 1, 6)).await?;
    stage.load("told").set_in_flight(2 * EACH);
    stage.has("told", 2).await?;
    let service = stage.service("told").await?;
    let history = service["status"]["scaling"]["history"].clone();
    let newest = &history[0];
    ensure!(
        newest["to"] == 2 && newest["from"].is_number(),
        "the history is {history}"
    );
    ensure!(
        newest["reason"]
            .as_str()
            .is_some_and(|why| why.contains("InFlightRequests")),
        "the reason names no metric: {newest}"
    );
    let path = format!("/decisions/{}/told", stage.namespace);
    let (status, text) = stage.operator()?.ask(&path).await?;
    let log: Value = serde_json::from_str(&text)?;
    ensure!(status == 200, "{status} {text}");
    let shrank = |span: &Value| span["replicas"] == 2 && span["current"].as_u64() > Some(2);
    ensure!(
        log["spans"]
            .as_array()
            .is_some_and(|all| all.iter().any(shrank)),
        "{text}"
    );
    let (status, text) = stage.operator()?.ask(&format!("{path}-not")).await?;
    ensure!(
        status == 404 && text.contains("nothing was decided"),
        "{status} {text}"
    );
    let metrics = stage.operator()?.metrics().await?;
    let desired = format!(
        "pagoda_operator_service_desired_replicas{{namespace=\"{}\",name=\"told\"}} 2.0",
        stage.namespace
    );
    ensure!(metrics.contains(&desired), "{desired} is not in\n{metrics}");
    // A new operator has no log, and the history stands.
    stage.start_with(|_| {}).await?;
    tokio::time::sleep(LOOK / 2).await;
    let after = stage.service("told").await?["status"]["scaling"]["history"].clone();
    ensure!(
        after[0] == *newest,
        "the history was {history}, and is {after}"
    );
    Ok(())
}

/// What became of pods, as a watch saw it.
#[derive(Default)]
struct Fates {
    marked: BTreeMap<String, String>,
    gone: BTreeSet<String>,
}

async fn follow(pods: Api<Pod>, fates: Arc<Mutex<Fates>>) -> Result<()> {
    let mut events = pin!(pods.watch(&WatchParams::default(), "0").await?);
    while let Some(event) = events.next().await {
        let mut fates = fates.lock().unwrap_or_else(PoisonError::into_inner);
        match event? {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                if let Some(cost) = pod.annotations().get(DELETION_COST) {
                    fates.marked.insert(pod.name_any(), cost.clone());
                }
                if pod.metadata.deletion_timestamp.is_some() {
                    fates.gone.insert(pod.name_any());
                }
            }
            WatchEvent::Deleted(pod) => {
                fates.gone.insert(pod.name_any());
            }
            _ => {}
        }
    }
    Ok(())
}

pub async fn pods_that_are_to_go_are_marked_first_and_no_others(stage: Arc<Stage>) -> Result<()> {
    let fates = Arc::<Mutex<Fates>>::default();
    let pods: Api<Pod> = Api::namespaced(stage.built().client.clone(), &stage.namespace);
    let following = tokio::spawn(follow(pods, fates.clone()));
    stage.at_four(&elastic("fewer", 1, 6)).await?;
    {
        let fates = fates.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(
            fates.marked.is_empty(),
            "marked while it grew: {:?}",
            fates.marked
        );
    }
    stage.load("fewer").set_in_flight(2 * EACH);
    stage.has("fewer", 2).await?;
    following.abort();
    let fates = fates.lock().unwrap_or_else(PoisonError::into_inner);
    let marked: BTreeSet<String> = fates.marked.keys().cloned().collect();
    ensure!(
        marked.len() == 2 && marked == fates.gone,
        "marked {marked:?}, gone {:?}",
        fates.gone
    );
    Ok(())
}

pub async fn services_that_wake_beyond_the_cap_wait_their_turn_and_say_so(
    stage: Arc<Stage>,
) -> Result<()> {
    stage
        .start_with(|command| command.arguments.push("--max-cold-starts=1".to_owned()))
        .await?;
    let asleep = |name| with(elastic(name, 0, 3), &["spec", "replicas"], json!(0));
    let nowhere = json!({"spec": {"nodeSelector": {"example.com/there": "is-no-such-node"}}});
    let first = with(asleep("first"), &["spec", "podTemplate"], nowhere);
    let first = with(
        first,
        &["spec", "rollout"],
        json!({"progressDeadlineSeconds": 15}),
    );
    stage.load("first").set_in_flight(EACH);
    stage.apply(&first).await?;
    stage.asks_for("first", 1).await?;
    let since = Instant::now();
    stage.load("second").set_in_flight(EACH);
    stage.apply(&asleep("second")).await?;
    stage.says("second", &["WaitsForColdStart"]).await?;
    stage.stayed_within("second", since, 0, 0)?;
    // The first cannot start, and gives its place up at its deadline.
    stage.has("second", 1).await
}
