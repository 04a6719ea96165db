//! The autoscaler on a real cluster: up under load, down in silence, to zero and back.

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::task::JoinSet;

use crate::bed::{PATIENCE, on_cluster};
use crate::load::Load;
use crate::manifests::{simulated, with};

#[test]
fn grows_from_one_to_three_pods_under_load_and_back_without_harming_a_request() {
    on_cluster("one-three-one", |bed| async move {
        let scaling = json!({
            "minReplicas": 1,
            "maxReplicas": 3,
            "scaleDownStabilizationSeconds": 5,
            "targets": [{"metric": "InFlightRequests", "averageValue": "4"}],
        });
        let manifest = with(simulated("elastic"), &["spec", "scaling"], scaling);
        bed.apply(&manifest).await?;
        bed.ready("elastic").await?;
        bed.ready_pods("elastic", 1).await?;

        let chat = bed.chat("elastic", 50);
        let trickle = Load::start(&bed.gateway, &chat, 1);
        let wave = Load::start(&bed.gateway, &chat, 12);
        bed.ready_pods("elastic", 3).await?;
        // As a GitOps tool does it all day: the manifest says nothing about replicas, so they are left alone.
        let applied = bed.apply(&manifest).await?;
        ensure!(
            applied.data["spec"]["replicas"] == 3,
            "an apply moved spec.replicas: {}",
            applied.data["spec"]
        );
        wave.stop().await.unharmed()?;
        // The trickle goes on while two pods are taken away under it.
        bed.ready_pods("elastic", 1).await?;
        trickle.stop().await.unharmed()?;

        let decision = &bed.service("elastic").await?["status"]["scaling"]["lastDecision"];
        ensure!(
            decision["to"] == 1 && decision["reason"].is_string(),
            "the last decision is {decision}"
        );
        Ok(())
    });
}

#[test]
fn falls_to_zero_in_silence_and_fifty_requests_at_once_are_all_answered() {
    on_cluster("zero", |bed| async move {
        let scaling = json!({"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 5, "scaleDownStabilizationSeconds": 0});
        bed.apply(&with(simulated("sleeper"), &["spec", "scaling"], scaling))
            .await?;
        bed.ready("sleeper").await?;
        bed.answers("sleeper").await?;
        bed.ready_pods("sleeper", 0).await?;

        let mut requests = JoinSet::new();
        for _ in 0..50 {
            let (gateway, chat) = (bed.gateway.clone(), bed.chat("sleeper", 20));
            requests.spawn(async move {
                tokio::time::timeout(PATIENCE, gateway.stream(&chat, |_| ())).await
            });
        }
        let mut texts = Vec::new();
        for outcome in requests.join_all().await {
            let reply = outcome??;
            ensure!(
                reply.is_whole(),
                "a request that woke the service was not answered whole: {reply:?}"
            );
            texts.push(reply.text);
        }
        texts.dedup();
        ensure!(
            texts.len() == 1,
            "the same greedy question got {} different answers",
            texts.len()
        );
        all_is_quiet_again(&bed).await
    });
}

#[test]
fn kubectl_scale_sets_the_pods_of_a_service_that_is_managed_externally() {
    on_cluster("external", |bed| async move {
        let scaling = json!({"minReplicas": 1, "maxReplicas": 4, "managedBy": "External"});
        bed.apply(&with(simulated("manual"), &["spec", "scaling"], scaling))
            .await?;
        bed.ready("manual").await?;
        for replicas in [3, 2] {
            bed.kubectl_ok(
                &["scale", "isvc", "manual", &format!("--replicas={replicas}")],
                None,
            )
            .await?;
            bed.ready_pods("manual", replicas).await?;
        }
        bed.answers("manual").await.map(drop)
    });
}

async fn all_is_quiet_again(bed: &crate::bed::Bed) -> Result<()> {
    bed.ready_pods("sleeper", 0).await.map(drop)
}
