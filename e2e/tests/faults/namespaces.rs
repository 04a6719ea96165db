//! Namespaces that end, and namespaces that are full.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use pagoda_e2e::faults::Match;
use serde_json::json;

use crate::bed::{PATIENCE, eventually};
use crate::manifests::simulated;
use crate::stage::{Stage, at_zero, numbered, on_stage, on_stage_with, services_in};

/// Writes into a namespace that is going; each is refused or in vain.
const WRITES_IN_VAIN: u64 = 40;
const WATCHED: Duration = Duration::from_secs(20);

pub fn a_namespace_that_is_terminating_costs_no_hot_loop_and_hinders_no_other() {
    let going = format!("t-going-{}", std::process::id());
    let watched = going.clone();
    let widen = move |command: &mut pagoda_e2e::operator_process::OperatorCommand| {
        command.namespaces.push(watched);
        Ok(())
    };
    on_stage_with("terminating", widen, |stage| async move {
        let namespaces: Api<Namespace> = Api::all(stage.bed.client.clone());
        let manifest =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": going}});
        namespaces
            .patch(&going, &PatchParams::apply("e2e"), &Patch::Apply(&manifest))
            .await?;
        let outcome = terminating(&stage, &going).await;
        let held: Api<ConfigMap> = Api::namespaced(stage.bed.client.clone(), &going);
        let release = json!({"metadata": {"finalizers": null}});
        for name in ["holder", "last"] {
            held.patch(name, &PatchParams::default(), &Patch::Merge(&release))
                .await
                .ok();
        }
        outcome?;
        eventually("the namespace is gone", PATIENCE, async || {
            ensure!(
                namespaces.get_opt(&going).await?.is_none(),
                "it is still there"
            );
            Ok(())
        })
        .await?;
        stage.rests().await
    });
}

/// A third party's finalizers hold the namespace and the services in it, so that the operator has long to err.
async fn terminating(stage: &Stage, going: &str) -> Result<()> {
    stage.services_at_rest(&numbered("bystander", 1)).await?;
    let services = services_in(stage, going);
    for name in numbered("going", 3) {
        services
            .patch(
                &name,
                &PatchParams::apply("e2e"),
                &Patch::Apply(&at_zero(&name)),
            )
            .await?;
    }
    stage.rests().await?;
    let holder = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "holder", "finalizers": ["example.com/holder"]},
    });
    let maps: Api<ConfigMap> = Api::namespaced(stage.bed.client.clone(), going);
    maps.patch("holder", &PatchParams::apply("e2e"), &Patch::Apply(&holder))
        .await?;
    let before = stage.proxy.counts();
    let namespaces: Api<Namespace> = Api::all(stage.bed.client.clone());
    namespaces.delete(going, &DeleteParams::default()).await?;
    tokio::time::sleep(WATCHED).await;
    let written = stage
        .written_since(&before)
        .only(&Match::any().in_namespace(going));
    let count = written.total(&Match::any());
    ensure!(
        count <= WRITES_IN_VAIN,
        "{count} writes into a namespace that is going:\n{written}"
    );
    stage.change("bystander-0", 32).await?;
    stage.carried_out("bystander-0", 32).await
}

pub fn an_exceeded_quota_of_children_is_said_and_heals_when_it_is_raised() {
    on_stage("quota", |stage| async move {
        stage.services_at_rest(&numbered("early", 1)).await?;
        set_quota(&stage, &json!({"count/services": "1"})).await?;
        stage.bed.apply(&at_zero("late")).await?;
        let said = eventually("the quota is said", PATIENCE, async || {
            let service = stage.bed.service("late").await?;
            let conditions = service["status"]["conditions"].to_string();
            ensure!(
                conditions.contains("exceeded quota"),
                "conditions are {conditions}"
            );
            Ok(conditions)
        });
        ensure!(
            said.await?.contains("services"),
            "the message does not say of what"
        );
        // What fits goes on.
        stage.change("early-0", 32).await?;
        stage.carried_out("early-0", 32).await?;
        stage.rests().await?;
        set_quota(&stage, &json!({"count/services": "2"})).await?;
        stage.bed.ready("late").await?;
        stage.bed.settled_children("late").await?;
        stage.rests().await
    });
}

pub fn an_exceeded_quota_of_pods_is_said_and_heals_when_it_is_raised() {
    on_stage("pod-quota", |stage| async move {
        set_quota(&stage, &json!({"pods": "0"})).await?;
        stage.bed.apply(&simulated("crowded")).await?;
        eventually("the quota is said", PATIENCE, async || {
            let service = stage.bed.service("crowded").await?;
            let conditions = service["status"]["conditions"].to_string();
            ensure!(
                conditions.contains("exceeded quota") && conditions.contains("pods"),
                "conditions are {conditions}"
            );
            Ok(())
        })
        .await?;
        stage.rests().await?;
        set_quota(&stage, &json!({"pods": "5"})).await?;
        stage.bed.ready("crowded").await?;
        stage.bed.answers("crowded").await.map(drop)
    });
}

/// Sets the quota and waits until the API server counts by it.
async fn set_quota(stage: &Stage, hard: &serde_json::Value) -> Result<()> {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": {"hard": hard},
    });
    stage.bed.apply_object::<ResourceQuota>(&quota).await?;
    eventually("the quota is counted", PATIENCE, async || {
        let found = stage.bed.api::<ResourceQuota>().get("tight").await?;
        let status = serde_json::to_value(found.status)?;
        ensure!(status["hard"] == *hard, "its status is {status}");
        Ok(())
    })
    .await
}
