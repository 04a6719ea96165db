//! Children that others delete, edit, take over, or whose names others have.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::bed::{PATIENCE, eventually};
use crate::stage::{CHILD_KINDS, Stage, at_zero, on_stage, says};

/// An edit of each kind that a person may make in a hurry, and the path of what it changes.
fn edits() -> [(&'static str, Value, &'static str); 5] {
    [
        (
            "Deployment",
            json!({"spec": {"replicas": 0, "template": {"spec": {"terminationGracePeriodSeconds": 1}}}}),
            "/spec/template/spec/terminationGracePeriodSeconds",
        ),
        (
            "Service",
            json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": 9}]}}),
            "/spec/ports/0/targetPort",
        ),
        (
            "PodDisruptionBudget",
            json!({"spec": {"maxUnavailable": 77}}),
            "/spec/maxUnavailable",
        ),
        (
            "ServiceAccount",
            json!({"automountServiceAccountToken": true}),
            "/automountServiceAccountToken",
        ),
        (
            "ConfigMap",
            json!({"data": {"engine.json": "{}"}}),
            "/data/engine.json",
        ),
    ]
}

pub fn each_child_that_is_deleted_or_edited_is_put_right() {
    on_stage("children", |stage| async move {
        stage.services_at_rest(&["kept".to_owned()]).await?;
        for (kind, edit, path) in edits() {
            is_put_right(&stage, kind, &edit, path)
                .await
                .with_context(|| format!("an edited {kind}"))?;
        }
        for kind in CHILD_KINDS {
            let deleted = stage.delete_child(kind, "kept").await?;
            stage.made_anew(kind, "kept", &deleted).await?;
        }
        stage.bed.ready("kept").await?;
        stage.rests().await
    });
}

async fn is_put_right(stage: &Stage, kind: &str, edit: &Value, path: &str) -> Result<()> {
    let api = stage.children_of_kind(kind);
    let before = stage.child(kind, "kept").await?;
    let name = before.name_any();
    let value = |object: &DynamicObject| object.data.pointer(path).cloned();
    let edited = api
        .patch(&name, &PatchParams::default(), &Patch::Merge(edit))
        .await?;
    ensure!(
        value(&edited) != value(&before),
        "the edit at {path} changed nothing"
    );
    eventually(&format!("the {kind} is as it was"), PATIENCE, async || {
        let now = api.get(&name).await?;
        ensure!(value(&now) == value(&before), "{path} is {:?}", value(&now));
        ensure!(now.uid() == before.uid(), "it was replaced");
        Ok(())
    })
    .await
}

pub fn a_child_that_another_takes_over_is_left_to_them_and_said_in_a_condition() {
    on_stage("taken-over", |stage| async move {
        stage
            .services_at_rest(&["robbed".to_owned(), "bystander".to_owned()])
            .await?;
        let other =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other-owner"}});
        stage.bed.apply_object::<ConfigMap>(&other).await?;
        let owner = stage.bed.api::<ConfigMap>().get("other-owner").await?;
        let reference = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "other-owner", "uid": owner.uid(), "controller": true,
        });
        let services = stage.children_of_kind("Service");
        let patch = json!({"metadata": {"ownerReferences": [reference]}, "spec": {"ports": [{"name": "http", "port": 81, "targetPort": 81}]}});
        let taken = services
            .patch("robbed", &PatchParams::default(), &Patch::Merge(&patch))
            .await?;

        says(&stage, "robbed", "NameConflict", &["Service", "robbed"]).await?;
        stage.rests().await?;
        ensure!(
            services.get("robbed").await?.resource_version() == taken.resource_version(),
            "the taken child was written"
        );
        still_works(&stage, "bystander", 32).await?;

        // Its new owner goes, and with it what it owns; then the service may have its child again.
        stage
            .bed
            .api::<ConfigMap>()
            .delete("other-owner", &DeleteParams::default())
            .await?;
        stage.bed.ready("robbed").await?;
        stage
            .made_anew("Service", "robbed", &taken.uid().unwrap_or_default())
            .await?;
        stage.rests().await
    });
}

/// A service that is deleted and made again while the garbage collector does not look leaves children behind that it never
/// comes for: it knows objects by name, and sees no deletion.
pub fn what_an_earlier_service_of_the_name_left_behind_is_taken_over() {
    on_stage("inherited", |stage| async move {
        stage.services_at_rest(&["again".to_owned()]).await?;
        let uid = stage.bed.service("again").await?["metadata"]["uid"].clone();
        for kind in CHILD_KINDS {
            let api = stage.children_of_kind(kind);
            let name = stage.child(kind, "again").await?.name_any();
            let earlier = json!({
                "apiVersion": "serving.pagoda.dev/v1alpha1", "kind": "InferenceService", "name": "again",
                "uid": "5f1d7a52-0000-4000-8000-000000000000", "controller": true,
            });
            let patch = json!({"metadata": {"ownerReferences": [earlier]}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await?;
            // Or made anew, where the garbage collector is quicker.
            eventually(
                &format!("the {kind} is the service's"),
                PATIENCE,
                async || {
                    let owners = api.get(&name).await?.metadata.owner_references;
                    let owners = owners.unwrap_or_default();
                    ensure!(
                        owners.len() == 1 && json!(owners[0].uid) == uid,
                        "owners are {owners:?}"
                    );
                    Ok(())
                },
            )
            .await?;
        }
        stage.bed.ready("again").await?;
        stage.rests().await
    });
}

async fn still_works(stage: &Stage, service: &str, sequences: u32) -> Result<()> {
    stage.change(service, sequences).await?;
    stage.carried_out(service, sequences).await
}

pub fn a_foreign_object_under_a_childs_name_is_refused_and_never_touched() {
    on_stage("foreign", |stage| async move {
        let names: Vec<String> = CHILD_KINDS.iter().map(|kind| kind.to_lowercase()).collect();
        stage.services_at_rest(&names).await?;
        stage.services_at_rest(&["bystander".to_owned()]).await?;
        let mut foreign = Vec::new();
        for (kind, service) in CHILD_KINDS.iter().zip(&names) {
            foreign.push((
                *kind,
                service,
                replace_by_foreign(&stage, kind, service).await?,
            ));
        }
        for (kind, service, object) in &foreign {
            stage.bed.apply(&at_zero(service)).await?;
            says(&stage, service, "NameConflict", &[kind, &object.name_any()]).await?;
        }
        still_works(&stage, "bystander", 32).await?;
        stage.rests().await?;
        for (kind, _, object) in foreign {
            let api = stage.children_of_kind(kind);
            let now = api.get(&object.name_any()).await?;
            ensure!(
                (now.uid(), now.resource_version()) == (object.uid(), object.resource_version()),
                "the foreign {kind} was touched: {now:?}"
            );
            api.delete(&object.name_any(), &DeleteParams::default())
                .await?;
        }
        // What was in the way has gone; nobody touches the services.
        for service in &names {
            stage.bed.ready(service).await?;
            stage.bed.settled_children(service).await?;
        }
        Ok(())
    });
}

/// Deletes a service and puts an object of somebody else's under the name that its child of this kind had, which a service
/// of the same name and spec will want again.
async fn replace_by_foreign(stage: &Stage, kind: &str, service: &str) -> Result<DynamicObject> {
    let child = stage.child(kind, service).await?;
    let api = stage.children_of_kind(kind);
    stage
        .bed
        .services()
        .delete(service, &DeleteParams::default())
        .await?;
    eventually(
        &format!("nothing is left of {service}"),
        PATIENCE,
        async || {
            let left = stage.bed.children(service).await?;
            ensure!(left.is_empty(), "children are {left:?}");
            Ok(())
        },
    )
    .await?;
    let mut foreign = DynamicObject {
        types: child.types.clone(),
        metadata: kube::api::ObjectMeta {
            name: Some(child.name_any()),
            annotations: Some(
                [("example.com/owner".to_owned(), "somebody else".to_owned())].into(),
            ),
            ..kube::api::ObjectMeta::default()
        },
        data: child.data.clone(),
    };
    clean(&mut foreign.data);
    let made = api.create(&PostParams::default(), &foreign).await?;
    // Its controller tells a status once; from then on it stands.
    settled(&api, &made.name_any()).await
}

/// What the API server itself gave the child.
fn clean(data: &mut Value) {
    if let Some(data) = data.as_object_mut() {
        data.remove("status");
    }
    if let Some(spec) = data.get_mut("spec").and_then(Value::as_object_mut) {
        for field in ["clusterIP", "clusterIPs"] {
            spec.remove(field);
        }
    }
}

async fn settled(api: &kube::Api<DynamicObject>, name: &str) -> Result<DynamicObject> {
    eventually(&format!("{name} comes to rest"), PATIENCE, async || {
        let first = api.get(name).await?;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let second = api.get(name).await?;
        ensure!(
            first.resource_version() == second.resource_version(),
            "it still changes"
        );
        Ok(second)
    })
    .await
}
