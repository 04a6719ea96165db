//! Processes that die, and what must not be harmed by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use pagoda_e2e::openai::Reply;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bed::{Bed, PATIENCE, eventually, is_ready, on_cluster, pod_name, pod_uid, restarts};
use crate::load::Load;
use crate::manifests::{simulated, with};
use crate::processes::kill_nine;

const STREAMS: usize = 16;

#[test]
fn a_killed_engine_ends_only_its_own_streams_each_with_an_error_event() {
    on_cluster("kill-engine", |bed| async move {
        two_pods(&bed, "mortal").await?;
        let streams = open_streams(&bed, "mortal").await?;
        let (victim, its_streams) = busiest_pod(&bed, "mortal").await?;
        ensure!(
            its_streams < STREAMS,
            "one pod has every stream: nothing could be told apart"
        );

        kill_nine(&pod_uid(&victim), "pagoda-engine")?;
        for _ in 0..10 {
            // The dead pod may still be listed as ready: the gateway must go elsewhere by itself.
            bed.answers("mortal").await?;
        }
        let replies = streams
            .join_all()
            .await
            .into_iter()
            .collect::<Result<Vec<Reply>>>()?;
        let cut: Vec<&Reply> = replies.iter().filter(|reply| !reply.is_whole()).collect();
        ensure!(
            cut.len() == its_streams,
            "the killed pod had {its_streams} streams, and {} ended badly: {cut:?}",
            cut.len()
        );
        ensure!(
            cut.iter()
                .all(|reply| reply.error.is_some() && !reply.text.is_empty()),
            "a stream was cut without an error event: {cut:?}"
        );

        let again = eventually("the killed engine is back", PATIENCE, async || {
            let pods = bed.pods("mortal").await?;
            let same = pods
                .into_iter()
                .find(|pod| pod_uid(pod) == pod_uid(&victim))
                .context("its pod was replaced")?;
            ensure!(is_ready(&same), "it is not ready");
            Ok(same)
        });
        ensure!(
            restarts(&again.await?) == 1,
            "the engine was restarted more than once"
        );
        Ok(())
    });
}

#[test]
fn a_deleted_pod_drains_and_no_request_notices() {
    on_cluster("delete-pod", |bed| async move {
        let pods = two_pods(&bed, "drained").await?;
        let load = Load::start(&bed.gateway, &bed.chat("drained", 100), 8);
        let (victim, _) = eventually("a pod has streams", PATIENCE, async || {
            busiest_pod(&bed, "drained").await
        })
        .await?;
        replace(&bed, "drained", &victim).await?;
        ensure!(pods.len() == 2, "there were two pods");
        load.stop().await.unharmed()
    });
}

/// Deletes one of a service's two pods and waits until it is gone, and two are ready again.
pub async fn replace(bed: &Bed, service: &str, victim: &Pod) -> Result<()> {
    bed.api::<Pod>()
        .delete(&pod_name(victim), &DeleteParams::default())
        .await?;
    eventually(
        "the deleted pod is gone and replaced",
        PATIENCE,
        async || {
            let now = bed.ready_pods(service, 2).await?;
            ensure!(
                now.iter().all(|pod| pod_uid(pod) != pod_uid(victim)),
                "it is still there"
            );
            Ok(())
        },
    )
    .await
}

/// Generation and status of a service, without the load that its requests make.
async fn told_but_load(bed: &Bed, service: &str) -> Result<Value> {
    let mut service = bed.service(service).await?;
    let mut status = service["status"].take();
    if let Some(status) = status.as_object_mut() {
        status.remove("load");
    }
    Ok(json!([service["metadata"]["generation"], status]))
}

#[test]
fn a_killed_operator_comes_back_and_nothing_changes() {
    on_cluster("kill-operator", |bed| async move {
        bed.apply(&simulated("bystander")).await?;
        bed.ready("bystander").await?;
        let before = bed.settled_children("bystander").await?;
        let pods_before = identities(&bed.ready_pods("bystander", 1).await?);
        let told_before = told_but_load(&bed, "bystander").await?;

        let load = Load::start(&bed.gateway, &bed.chat("bystander", 20), 4);
        let operator = operator_pod(&bed).await?;
        kill_nine(&pod_uid(&operator), "pagoda-operator")?;
        eventually("the operator's container is back", PATIENCE, async || {
            let now = operator_pod(&bed).await?;
            ensure!(
                restarts(&now) > restarts(&operator) && is_ready(&now),
                "{} restarts, ready: {}",
                restarts(&now),
                is_ready(&now)
            );
            Ok(())
        })
        .await?;
        // A new service that gets its children shows that the new process holds the lease and reconciles.
        bed.apply(&simulated("newcomer")).await?;
        bed.ready("newcomer").await?;

        load.stop().await.unharmed()?;
        let after = bed.settled_children("bystander").await?;
        ensure!(
            before == after,
            "children were written: {before:?} became {after:?}"
        );
        ensure!(
            pods_before == identities(&bed.pods("bystander").await?),
            "pods were replaced or restarted"
        );
        let told_after = told_but_load(&bed, "bystander").await?;
        ensure!(
            told_before == told_after,
            "the service was written: {told_before} became {told_after}"
        );
        Ok(())
    });
}

async fn two_pods(bed: &Bed, service: &str) -> Result<Vec<Pod>> {
    bed.apply(&with(
        simulated(service),
        &["spec", "scaling"],
        json!({"minReplicas": 2, "maxReplicas": 2}),
    ))
    .await?;
    bed.ready(service).await?;
    bed.ready_pods(service, 2).await
}

/// Opens streams of six seconds each and returns when each has brought its first text.
async fn open_streams(bed: &Bed, service: &str) -> Result<JoinSet<Result<Reply>>> {
    let begun = Arc::new(AtomicUsize::new(0));
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let (gateway, chat, begun) = (bed.gateway.clone(), bed.chat(service, 300), begun.clone());
        streams.spawn(async move {
            let mut first = true;
            gateway
                .stream(&chat, move |_| {
                    if std::mem::take(&mut first) {
                        begun.fetch_add(1, Ordering::Relaxed);
                    }
                })
                .await
        });
    }
    eventually("every stream has begun", PATIENCE, async || {
        let begun = begun.load(Ordering::Relaxed);
        ensure!(begun == STREAMS, "{begun} of {STREAMS} have begun");
        Ok(())
    })
    .await?;
    Ok(streams)
}

/// The pod with the most running requests, and how many those are; an error when none runs.
async fn busiest_pod(bed: &Bed, service: &str) -> Result<(Pod, usize)> {
    let mut busiest = None;
    for pod in bed.pods(service).await? {
        let running = bed
            .pod_metric(&pod_name(&pod), "vllm:num_requests_running")
            .await?
            .context("the pod has no such metric")?;
        let running = running as usize;
        if running > busiest.as_ref().map_or(0, |(_, most)| *most) {
            busiest = Some((pod, running));
        }
    }
    busiest.context("no pod has a running request")
}

/// The operator's pod that is ready.
pub async fn operator_pod(bed: &Bed) -> Result<Pod> {
    let deployments: Api<Deployment> = Api::namespaced(bed.client.clone(), "pagoda-system");
    let selector = deployments
        .get("pagoda-operator")
        .await?
        .spec
        .context("a Deployment without a spec")?
        .selector;
    let labels: Vec<String> = selector
        .match_labels
        .unwrap_or_default()
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), "pagoda-system");
    let found = pods
        .list(&ListParams::default().labels(&labels.join(",")))
        .await?;
    found
        .items
        .into_iter()
        .find(is_ready)
        .context("no operator pod is ready")
}

fn identities(pods: &[Pod]) -> Vec<(String, i32)> {
    pods.iter()
        .map(|pod| (pod_uid(pod), restarts(pod)))
        .collect()
}
