//! Kinds of faults that other operators had and that no other test here covers. `README.md` has all thirteen kinds.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use pagoda_e2e::faults::Match;
use serde_json::{Value, json};

use crate::bed::{PATIENCE, eventually, pod_name, pod_uid};
use crate::manifests::{simulated, with};
use crate::stage::{Stage, numbered, on_stage};

/// Pods that somebody asked for, and that no node takes, so that they cost nothing.
const PODS: i32 = 4;
/// Refused writes that one child which cannot be put right may cost while the test looks.
const TRIES: u64 = 12;

fn of_pods_that_no_node_takes(name: &str) -> Value {
    let overlay = json!({"spec": {"nodeSelector": {"example.com/there": "is-no-such-node"}}});
    let scaling = json!({"minReplicas": 0, "maxReplicas": 8, "managedBy": "External"});
    let manifest = with(simulated(name), &["spec", "scaling"], scaling);
    with(manifest, &["spec", "podTemplate"], overlay)
}

pub fn a_number_of_pods_that_somebody_set_survives_every_other_change() {
    on_stage("replicas", |stage| async move {
        let manifest = of_pods_that_no_node_takes("scaled");
        stage.bed.apply(&manifest).await?;
        stage.rests().await?;
        let four = json!({"spec": {"replicas": PODS}});
        stage
            .bed
            .services()
            .patch_scale("scaled", &PatchParams::default(), &Patch::Merge(&four))
            .await?;
        eventually("the number is carried out", PATIENCE, async || {
            has_pods(&stage, PODS).await
        })
        .await?;
        let uid = stage.child("Deployment", "scaled").await?.uid();

        // Whatever names no number changes none: an apply of the same manifest, an annotation, other fields, a restart.
        for (path, value) in unrelated_changes() {
            stage
                .bed
                .apply(&with(manifest.clone(), &path, value))
                .await?;
            stage.rests().await?;
            has_pods(&stage, PODS)
                .await
                .with_context(|| format!("after a change of {}", path.join(".")))?;
        }
        stage.operator().stop().await?;
        stage.start_again()?;
        stage.operator().wait_until_leading(PATIENCE).await?;
        stage.rests().await?;
        has_pods(&stage, PODS).await.context("after a restart")?;
        ensure!(
            stage.child("Deployment", "scaled").await?.uid() == uid,
            "the Deployment was replaced"
        );
        Ok(())
    });
}

fn unrelated_changes() -> Vec<(Vec<&'static str>, Value)> {
    vec![
        (vec!["metadata", "annotations"], json!({})),
        (
            vec!["metadata", "annotations"],
            json!({"example.com/team": "a"}),
        ),
        (vec!["metadata", "labels"], json!({"example.com/team": "a"})),
        (vec!["spec", "scaling", "maxReplicas"], json!(9)),
        (
            vec!["spec", "rollout"],
            json!({"progressDeadlineSeconds": 600}),
        ),
    ]
}

async fn has_pods(stage: &Stage, wanted: i32) -> Result<()> {
    let service = stage.bed.service("scaled").await?;
    let deployment = stage.child("Deployment", "scaled").await?;
    let (asked, made) = (
        &service["spec"]["replicas"],
        &deployment.data["spec"]["replicas"],
    );
    ensure!(
        *asked == wanted && *made == wanted,
        "{asked} are asked for, and {made} made"
    );
    Ok(())
}

pub fn the_scale_subresource_selects_the_pods_of_the_service_and_no_others() {
    on_stage("selector", |stage| async move {
        // Of two names, one begins with the other.
        for name in ["scaled", "scaled-too"] {
            stage.bed.apply(&simulated(name)).await?;
        }
        for name in ["scaled", "scaled-too"] {
            stage.bed.ready(name).await?;
            let scale = stage.bed.services().get_scale(name).await?;
            let selector = scale.status.and_then(|status| status.selector);
            let selector =
                selector.context("the scale has no selector, so an HPA cannot use it")?;
            let selected = stage
                .bed
                .api::<Pod>()
                .list(&ListParams::default().labels(&selector))
                .await?
                .items;
            let own = stage.bed.pods(name).await?;
            let uids = |pods: &[Pod]| -> Vec<String> { pods.iter().map(pod_uid).collect() };
            ensure!(
                !own.is_empty() && uids(&selected) == uids(&own),
                "{selector} selects {:?}",
                uids(&selected)
            );
        }
        Ok(())
    });
}

pub fn a_child_whose_selector_cannot_be_changed_is_replaced_or_said_and_never_hammered() {
    on_stage("immutable", |stage| async move {
        stage
            .services_at_rest(&["old".to_owned(), "bystander".to_owned()])
            .await?;
        // As another release of an operator might have made it: owned by the service, with a selector of its own.
        stage.operator().stop().await?;
        let mut deployment = stage.child("Deployment", "old").await?;
        let api = stage.children_of_kind("Deployment");
        let uid = stage.delete_child("Deployment", "old").await?;
        eventually("the Deployment is gone", PATIENCE, async || {
            ensure!(
                api.get_opt(&deployment.name_any()).await?.is_none(),
                "it is still there"
            );
            Ok(())
        })
        .await?;
        let label = json!("other");
        deployment.data["spec"]["selector"] =
            json!({"matchLabels": {"example.com/release": label}});
        deployment.data["spec"]["template"]["metadata"]["labels"]["example.com/release"] = label;
        deployment.data["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(7);
        deployment.metadata.resource_version = None;
        deployment.metadata.uid = None;
        deployment.metadata.managed_fields = None;
        let other = api.create(&PostParams::default(), &deployment).await?;
        ensure!(
            other.uid().as_deref() != Some(&*uid),
            "it was not made anew"
        );

        stage.start_again()?;
        stage.operator().wait_until_leading(PATIENCE).await?;
        let before = stage.proxy.counts();
        stage.change("bystander", 32).await?;
        stage.carried_out("bystander", 32).await?;
        replaced_or_said(&stage, &other.uid().unwrap_or_default()).await?;
        stage.rests().await?;
        let tried = stage
            .written_since(&before)
            .total(&Match::writes().of("deployments").named(&other.name_any()));
        ensure!(
            tried <= TRIES,
            "{tried} writes to one Deployment:\n{}",
            stage.written_since(&before)
        );
        Ok(())
    });
}

async fn replaced_or_said(stage: &Stage, uid: &str) -> Result<()> {
    eventually(
        "the Deployment is replaced, or said to be in the way",
        PATIENCE,
        async || {
            let now = stage.child("Deployment", "old").await;
            if now.is_ok_and(|now| now.uid().as_deref() != Some(uid)) {
                return Ok(());
            }
            let service = stage.bed.service("old").await?;
            let conditions = service["status"]["conditions"].to_string();
            ensure!(
                conditions.contains("immutable"),
                "conditions are {conditions}"
            );
            Ok(())
        },
    )
    .await
}

pub fn a_service_with_the_longest_name_has_all_its_children() {
    on_stage("longest", |stage| async move {
        // A hyphen where the name of a revision is cut.
        let name = format!("{}-{}", "n".repeat(39), "m".repeat(23));
        stage.bed.apply(&simulated(&name)).await?;
        stage.bed.ready(&name).await?;
        stage.bed.settled_children(&name).await?;
        stage.bed.answers(&name).await.map(drop)
    });
}

pub fn a_service_that_is_deleted_while_no_operator_runs_leaves_nothing() {
    on_stage("no-operator", |stage| async move {
        let names = numbered("left", 2);
        stage.services_at_rest(&names).await?;
        stage.operator().stop().await?;
        for name in &names {
            stage
                .bed
                .services()
                .delete(name, &DeleteParams::default())
                .await?;
        }
        for name in &names {
            eventually("nothing is left", PATIENCE, async || {
                ensure!(
                    stage.bed.services().get_opt(name).await?.is_none(),
                    "the service is still there"
                );
                let children = stage.bed.children(name).await?;
                ensure!(children.is_empty(), "children are {children:?}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    });
}

pub fn pods_come_back_while_no_operator_runs_and_no_webhook_is_asked() {
    on_stage("no-webhook", |stage| async move {
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(stage.bed.client.clone());
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(stage.bed.client.clone());
        let all = ListParams::default();
        let webhooks =
            validating.list(&all).await?.items.len() + mutating.list(&all).await?.items.len();
        ensure!(
            webhooks == 0,
            "{webhooks} webhook configurations stand between users and their pods"
        );

        stage.bed.apply(&simulated("alone")).await?;
        stage.bed.ready("alone").await?;
        let old = stage.bed.ready_pods("alone", 1).await?;
        stage.operator().stop().await?;
        stage
            .bed
            .api::<Pod>()
            .delete(&pod_name(&old[0]), &DeleteParams::default())
            .await?;
        eventually("another pod is ready", PATIENCE, async || {
            let pods = stage.bed.ready_pods("alone", 1).await?;
            ensure!(
                pod_uid(&pods[0]) != pod_uid(&old[0]),
                "it is still the old one"
            );
            Ok(())
        })
        .await?;
        stage.bed.answers("alone").await.map(drop)
    });
}
