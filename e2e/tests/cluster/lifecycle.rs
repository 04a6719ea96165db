//! From `kubectl apply` to the first token, through changes, to `kubectl delete`.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use serde_json::json;

use crate::bed::{Bed, PATIENCE, eventually, is_ready, of_service, on_cluster, pod_name, pod_uid};
use crate::load::Load;
use crate::manifests::{simulated, with};
use pagoda_e2e::openai::Chat;

#[test]
fn an_applied_service_becomes_ready_and_answers_with_its_real_model() {
    on_cluster("answers", |bed| async move {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/smollm2.yaml");
        let applied = Instant::now();
        bed.kubectl_ok(&["apply", "--filename", &sample.to_string_lossy()], None)
            .await?;
        bed.ready("smollm2").await?;
        let ready = applied.elapsed();

        let question = "What is the capital of France? Answer in one sentence.".to_owned();
        let chat = Chat {
            model: bed.model("smollm2"),
            prompt: question,
            max_tokens: 48,
            ignore_eos: false,
        };
        let mut first_token = None;
        let streamed = bed
            .gateway
            .stream(&chat, |_| {
                first_token.get_or_insert_with(|| applied.elapsed());
            })
            .await?;
        let first_token = first_token.context("the stream carried no text")?;
        println!(
            "kubectl apply to Ready {:.1} s, to the first streamed token {:.1} s",
            ready.as_secs_f64(),
            first_token.as_secs_f64()
        );

        ensure!(
            streamed.is_whole(),
            "the stream did not end whole: {streamed:?}"
        );
        ensure!(
            streamed.text.contains("Paris"),
            "SmolLM2 knows the capital of France: {streamed:?}"
        );
        let whole = bed.gateway.ask(&chat).await?;
        ensure!(
            whole.is_whole() && whole.text == streamed.text,
            "streamed and not, the answers differ: {whole:?} and {streamed:?}"
        );
        says_what_runs(&bed, "smollm2").await
    });
}

async fn says_what_runs(bed: &Bed, service: &str) -> Result<()> {
    // A pod is asked for its facts once it answers, and again when it was too busy to.
    eventually("the status tells of the model", PATIENCE, async || {
        let model = bed.service(service).await?["status"]["model"].take();
        ensure!(
            model["architecture"] == "llama"
                && model["quantization"] == "Q4_1"
                && model["executor"] == "cpu"
                && model["bytes"].as_u64() > Some(90 << 20),
            "status.model is {model}"
        );
        Ok(())
    })
    .await?;
    let status = bed.service(service).await?["status"].take();
    ensure!(status["readyReplicas"] == 1, "status is {status}");
    ensure!(
        status["url"]
            .as_str()
            .is_some_and(|url| url.starts_with("http")),
        "status.url is {}",
        status["url"]
    );
    let listed: serde_json::Value = bed
        .gateway
        .http()
        .get(bed.gateway.url("/v1/models"))
        .send()
        .await?
        .json()
        .await?;
    let ids: Vec<&str> = listed["data"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry["id"].as_str())
        .collect();
    ensure!(
        ids.contains(&"smollm2") || ids.contains(&bed.model(service).as_str()),
        "the gateway lists {ids:?}"
    );
    Ok(())
}

#[test]
fn a_hundred_applies_of_the_same_manifest_write_no_child() {
    on_cluster("reapply", |bed| async move {
        let manifest = simulated("steady");
        bed.apply(&manifest).await?;
        bed.ready("steady").await?;
        let before = bed.settled_children("steady").await?;
        for round in 0..100 {
            bed.apply(&manifest).await?;
            // An identical apply is no event; a changed annotation makes the operator look again.
            bed.apply(&with(
                manifest.clone(),
                &["metadata", "annotations"],
                json!({"example.com/round": round.to_string()}),
            ))
            .await?;
        }
        let after = bed.settled_children("steady").await?;
        ensure!(
            before == after,
            "children were written: {before:?} became {after:?}"
        );
        Ok(())
    });
}

#[test]
fn kubectl_delete_leaves_nothing_of_the_service() {
    on_cluster("delete", |bed| async move {
        bed.apply(&simulated("gone")).await?;
        bed.ready("gone").await?;
        bed.settled_children("gone").await?;
        bed.kubectl_ok(&["delete", "isvc", "gone"], None).await?;
        eventually("nothing is left of the service", PATIENCE, async || {
            let children = bed.children("gone").await?;
            ensure!(children.is_empty(), "children are left: {children:?}");
            let sets: Api<ReplicaSet> = bed.api();
            let slices: Api<EndpointSlice> = bed.api();
            let pods: Api<Pod> = bed.api();
            let by_service = of_service("gone");
            let left = (
                sets.list(&by_service).await?.items.len(),
                slices.list(&by_service).await?.items.len(),
                pods.list(&by_service).await?.items.len(),
            );
            ensure!(
                left == (0, 0, 0),
                "ReplicaSets, EndpointSlices and Pods left: {left:?}"
            );
            Ok(())
        })
        .await?;
        let reply = bed.gateway.ask(&bed.chat("gone", 4)).await?;
        ensure!(
            reply.status == 404,
            "the gateway still knows the deleted service: {reply:?}"
        );
        Ok(())
    });
}

#[test]
fn a_child_that_was_deleted_or_edited_is_put_right() {
    on_cluster("children", |bed| async move {
        bed.apply(&simulated("kept")).await?;
        bed.ready("kept").await?;
        let before = bed.settled_children("kept").await?;
        let map = before
            .keys()
            .find_map(|child| child.strip_prefix("ConfigMap/"))
            .context("it has no ConfigMap")?
            .to_owned();
        bed.kubectl_ok(
            &[
                "delete",
                "service,serviceaccount,pdb",
                "--selector=serving.pagoda.dev/service=kept",
            ],
            None,
        )
        .await?;
        bed.kubectl_ok(
            &[
                "patch",
                "configmap",
                &map,
                "--patch",
                r#"{"data": {"engine.json": "{}"}}"#,
            ],
            None,
        )
        .await?;
        let config = eventually("the children are as they were", PATIENCE, async || {
            let now = bed.children("kept").await?;
            ensure!(now.keys().eq(before.keys()), "children are {now:?}");
            let config = bed
                .api::<ConfigMap>()
                .get(&map)
                .await?
                .data
                .unwrap_or_default();
            ensure!(config["engine.json"].len() > 2, "the edit still stands");
            Ok(config)
        })
        .await?;
        ensure!(
            config["engine.json"].contains("simulated"),
            "the configuration is {config:?}"
        );
        bed.answers("kept").await.map(drop)
    });
}

#[test]
fn of_two_services_with_one_name_the_older_has_it_and_the_younger_inherits() {
    on_cluster("names", |bed| async move {
        let shared = format!("shared-{}", std::process::id());
        let named = |service: &str| {
            with(
                simulated(service),
                &["spec", "model"],
                json!({"names": [shared]}),
            )
        };
        bed.apply(&named("older")).await?;
        bed.ready("older").await?;
        // Kubernetes keeps creation times in whole seconds; equal ones are told apart by name, and y comes after o.
        bed.apply(&named("younger")).await?;
        bed.ready("younger").await?;
        let chat = Chat {
            model: shared.clone(),
            ..bed.chat("older", 8)
        };
        ensure!(
            bed.gateway.stream(&chat, |_| ()).await?.is_whole(),
            "nobody answers to the name"
        );
        ensure!(
            served(&bed, "older").await? > 0.0 && served(&bed, "younger").await? == 0.0,
            "the younger answered"
        );

        bed.kubectl_ok(&["delete", "isvc", "older"], None).await?;
        eventually("the younger answers to the name", PATIENCE, async || {
            let reply = bed.gateway.stream(&chat, |_| ()).await?;
            ensure!(reply.is_whole(), "{reply:?}");
            ensure!(
                served(&bed, "younger").await? > 0.0,
                "somebody else answered"
            );
            Ok(())
        })
        .await
    });
}

/// Requests that the service's pods have answered.
async fn served(bed: &Bed, service: &str) -> Result<f64> {
    let mut total = 0.0;
    for pod in bed.pods(service).await? {
        total += bed
            .pod_metric(&pod_name(&pod), "vllm:request_success_total")
            .await?
            .unwrap_or_default();
    }
    Ok(total)
}

#[test]
fn a_rolling_update_under_load_cuts_no_stream() {
    on_cluster("rolling", |bed| async move {
        let manifest = with(
            simulated("rolling"),
            &["spec", "scaling"],
            json!({"minReplicas": 2, "maxReplicas": 2}),
        );
        bed.apply(&manifest).await?;
        bed.ready("rolling").await?;
        let old: Vec<String> = bed
            .ready_pods("rolling", 2)
            .await?
            .iter()
            .map(pod_uid)
            .collect();

        let load = Load::start(&bed.gateway, &bed.chat("rolling", 100), 8);
        bed.apply(&with(
            manifest,
            &["spec", "engine", "maxSequences"],
            json!(32),
        ))
        .await?;
        eventually(
            "two new pods have taken the old ones' place",
            PATIENCE,
            async || {
                let pods = bed.pods("rolling").await?;
                let new = pods
                    .iter()
                    .filter(|pod| is_ready(pod) && !old.contains(&pod_uid(pod)))
                    .count();
                ensure!(
                    pods.len() == 2 && new == 2,
                    "{} pods, {new} of them new and ready",
                    pods.len()
                );
                Ok(())
            },
        )
        .await?;
        load.stop().await.unharmed()
    });
}
