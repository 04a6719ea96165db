//! Revisions: a new one beside the old, ones that fail, canaries, and nodes without a spare GPU.

mod canaries;
mod revisions;

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use self::revisions::{
    at_rest, changed, identities, in_phase, joined, name_of, never_loading, only, pods_by_revision,
    replicas, says,
};
use crate::bed::{PATIENCE, eventually, is_ready, on_cluster, pod_uid, restarts};
use crate::file_server::Served;
use crate::load::Load;
use crate::manifests::{on_cpu, simulated, with};
use crate::model_server::{over_https, serve, sha256};
use crate::node::Node;
use crate::processes::kill_nine;

/// What fetch and load failures are told apart with; small, because its pods never get past it.
const MODEL_IMAGE: &str = "image://pagoda/smollm2-135m-instruct:q4_1//model.gguf";

#[test]
fn a_new_revision_starts_beside_the_old_and_no_request_is_lost() {
    on_cluster("beside", |bed| async move {
        let manifest = replicas(simulated("beside"), 2);
        bed.apply(&manifest).await?;
        bed.ready("beside").await?;
        let old = at_rest(&bed, "beside").await?;
        bed.ready_pods("beside", 2).await?;

        let load = Load::start(&bed.gateway, &bed.chat("beside", 100), 8);
        bed.apply(&changed(manifest)).await?;
        let new = joined(&bed, "beside", &old).await?;
        let fewest = async {
            // Until the old revision is gone, as many pods as are wanted are ready at any moment.
            loop {
                let pods = pods_by_revision(&bed, "beside").await?;
                let ready = pods.values().flatten().filter(|pod| is_ready(pod)).count();
                ensure!(ready >= 2, "only {ready} pods are ready");
                if !pods.contains_key(&old) {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, fewest)
            .await
            .context("the old revision does not go")??;
        ensure!(
            at_rest(&bed, "beside").await? == new,
            "another revision serves"
        );
        only(&bed, "beside", &new).await?;
        load.stop().await.unharmed()
    });
}

#[test]
fn a_revision_that_never_loads_leaves_the_old_one_serving_and_says_why() {
    on_cluster("never-loads", |bed| async move {
        let wrong_image = with(
            simulated("no-image"),
            &["spec", "engine"],
            json!({"image": "pagoda.local/nowhere:1"}),
        );
        let tight =
            json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "48Mi"}});
        let out_of_memory = with(
            on_cpu("no-memory", MODEL_IMAGE),
            &["spec", "hardware", "resources"],
            tight,
        );
        let no_file = on_cpu(
            "no-file",
            &MODEL_IMAGE.replace("//model.gguf", "//nowhere.gguf"),
        );
        let server = serve(&bed, [("small.gguf", Served::whole(&b"GGUF"[..]))]).await?;
        let elsewhere = sha256(b"another file");
        let wrong_hash = over_https(&server, "wrong-hash", "small.gguf", Some(&elsewhere));
        let cases = [
            (wrong_image, vec!["image", "pagoda.local/nowhere:1"]),
            (out_of_memory, vec!["memory"]),
            (no_file, vec!["nowhere.gguf"]),
            (wrong_hash, vec!["HashMismatch", &elsewhere]),
        ];
        let mut before = Vec::new();
        for (broken, _) in &cases {
            let service = name_of(broken)?;
            bed.apply(&simulated(service)).await?;
        }
        for (broken, _) in &cases {
            let service = name_of(broken)?;
            bed.ready(service).await?;
            let revision = at_rest(&bed, service).await?;
            before.push((revision, identities(&bed.ready_pods(service, 1).await?)));
            bed.apply(broken).await?;
        }
        for ((broken, words), (revision, pods)) in cases.iter().zip(&before) {
            let service = name_of(broken)?;
            says(&bed, service, words).await?;
            bed.answers(service).await?;
            let serving = pods_by_revision(&bed, service).await?.remove(revision);
            ensure!(
                serving.is_some_and(|serving| identities(&serving) == *pods),
                "the old pod of {service} was touched"
            );
        }
        Ok(())
    });
}

#[test]
fn a_revert_in_mid_rollout_returns_to_the_old_pods_without_restarting_them() {
    on_cluster("revert", |bed| async move {
        let manifest = replicas(simulated("reverted"), 2);
        bed.apply(&manifest).await?;
        bed.ready("reverted").await?;
        let old = at_rest(&bed, "reverted").await?;
        let pods = identities(&bed.ready_pods("reverted", 2).await?);
        let load = Load::start(&bed.gateway, &bed.chat("reverted", 50), 4);

        bed.apply(&never_loading(manifest.clone())).await?;
        joined(&bed, "reverted", &old).await?;
        bed.apply(&manifest).await?;
        ensure!(
            at_rest(&bed, "reverted").await? == old,
            "another revision serves than before"
        );
        only(&bed, "reverted", &old).await?;
        ensure!(
            identities(&bed.ready_pods("reverted", 2).await?) == pods,
            "the old pods were replaced or restarted"
        );
        load.stop().await.unharmed()
    });
}

#[test]
fn on_a_node_with_one_gpu_the_old_pod_leaves_first_and_requests_wait() {
    on_cluster("one-gpu", |bed| async move {
        let node = Node::with(&bed.client, "e2e.pagoda.dev/single-gpu", 1).await?;
        let manifest = node.asking(simulated("single"), 1);
        bed.apply(&manifest).await?;
        bed.ready("single").await?;
        let old = at_rest(&bed, "single").await?;
        let load = Load::start(&bed.gateway, &bed.chat("single", 20), 2);
        bed.apply(&changed(manifest.clone())).await?;
        in_phase(&bed, "single", "TerminatingFirst").await?;
        let new = at_rest(&bed, "single").await?;
        ensure!(new != old, "the old revision still serves");
        only(&bed, "single", &new).await?;
        load.stop().await.unharmed()
    });
}

#[test]
fn a_new_revision_that_never_loads_gives_the_only_gpu_back_to_the_old_one() {
    on_cluster("gpu-back", |bed| async move {
        let node = Node::with(&bed.client, "e2e.pagoda.dev/returned-gpu", 1).await?;
        let manifest = with(
            node.asking(simulated("returned"), 1),
            &["spec", "rollout"],
            json!({"strategy": "TerminateFirst", "progressDeadlineSeconds": 15}),
        );
        bed.apply(&manifest).await?;
        bed.ready("returned").await?;
        let old = at_rest(&bed, "returned").await?;
        bed.apply(&never_loading(manifest.clone())).await?;
        let status = in_phase(&bed, "returned", "RolledBack").await?;
        ensure!(status["revision"]["current"] == old, "{status}");
        bed.answers("returned").await?;
        bed.apply(&changed(manifest)).await?;
        ensure!(at_rest(&bed, "returned").await? != old, "it is stuck");
        Ok(())
    });
}

#[test]
fn old_pods_that_are_all_broken_do_not_block_a_rollout() {
    on_cluster("all-broken", |bed| async move {
        let manifest = replicas(simulated("mended"), 2);
        bed.apply(&never_loading(manifest.clone())).await?;
        eventually("two pods load for ever", PATIENCE, async || {
            let pods = bed.pods("mended").await?;
            ensure!(pods.len() == 2, "{} pods", pods.len());
            Ok(())
        })
        .await?;
        bed.apply(&manifest).await?;
        bed.ready("mended").await?;
        let revision = at_rest(&bed, "mended").await?;
        only(&bed, "mended", &revision).await?;
        bed.answers("mended").await.map(drop)
    });
}

#[test]
fn a_rollout_ends_well_while_the_autoscaler_moves_the_number_of_pods() {
    on_cluster("moving", |bed| async move {
        let scaling = json!({
            "minReplicas": 1, "maxReplicas": 3, "scaleDownStabilizationSeconds": 5,
            "targets": [{"metric": "InFlightRequests", "averageValue": "4"}],
        });
        let manifest = with(simulated("moving"), &["spec", "scaling"], scaling);
        bed.apply(&manifest).await?;
        bed.ready("moving").await?;
        let old = at_rest(&bed, "moving").await?;
        let chat = bed.chat("moving", 50);
        let trickle = Load::start(&bed.gateway, &chat, 1);
        let wave = Load::start(&bed.gateway, &chat, 12);
        bed.apply(&changed(manifest)).await?;
        bed.ready_pods("moving", 3).await?;
        let new = at_rest(&bed, "moving").await?;
        ensure!(new != old, "the old revision still serves");
        wave.stop().await.unharmed()?;
        bed.ready_pods("moving", 1).await?;
        only(&bed, "moving", &new).await?;
        trickle.stop().await.unharmed()
    });
}

#[test]
fn an_old_pod_that_restarts_in_mid_rollout_keeps_its_own_configuration() {
    on_cluster("restarts", |bed| async move {
        let manifest = simulated("restarted");
        bed.apply(&manifest).await?;
        bed.ready("restarted").await?;
        let old = at_rest(&bed, "restarted").await?;
        let pods = bed.ready_pods("restarted", 1).await?;
        bed.apply(&never_loading(manifest)).await?;
        joined(&bed, "restarted", &old).await?;

        kill_nine(&pod_uid(&pods[0]), "pagoda-engine")?;
        eventually("the old pod is ready again", PATIENCE, async || {
            let now = pods_by_revision(&bed, "restarted").await?.remove(&old);
            let now = now.and_then(|mut now| now.pop()).context("it is gone")?;
            ensure!(pod_uid(&now) == pod_uid(&pods[0]), "it was replaced");
            ensure!(
                restarts(&now) == 1 && is_ready(&now),
                "{} restarts, ready: {}",
                restarts(&now),
                is_ready(&now)
            );
            Ok(())
        })
        .await?;
        bed.answers("restarted").await.map(drop)
    });
}
