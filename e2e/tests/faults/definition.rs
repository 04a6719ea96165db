//! The definition of the resource changed under a running operator, and objects that it would refuse today. These tests take
//! the definition away from everybody, so they run alone and put the chart's back.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use pagoda_e2e::faults::Match;
use serde_json::{Value, json};

use crate::bed::{PATIENCE, condition, eventually};
use crate::manifests::{simulated, with};
use crate::stage::{Stage, at_zero, numbered, on_stage};

const NAME: &str = "inferenceservices.serving.pagoda.dev";
const RELEASED: &str = include_str!("definition-0.1.0.yaml");
const OTHERS: usize = 100;
/// Twenty-five children and statuses, and a few tries of each status.
const WRITES_UNDER_AN_OLD_DEFINITION: u64 = 100;
/// Longer than the first tries of something that is refused again and again lie apart.
const LEFT_ALONE: Duration = Duration::from_secs(15);

pub fn a_definition_that_is_upgraded_under_a_running_operator_changes_no_child() {
    on_stage("upgrade", |stage| async move {
        let chart = chart_definition()?;
        let outcome = upgraded(&stage, &chart).await;
        replace_spec(&stage.bed.client, &chart).await?;
        outcome
    });
}

/// The operator is newer than the definition at first, as when an upgrade of the charts comes in the wrong order: what it
/// tells has no place yet. It works all the same, and tells it as soon as it has.
async fn upgraded(stage: &Stage, chart: &Value) -> Result<()> {
    replace_spec(&stage.bed.client, &serde_yaml_ng::from_str(RELEASED)?).await?;
    let begun = stage.proxy.counts();
    stage.bed.apply(&simulated("running")).await?;
    let names = numbered("kept", 3);
    for name in &names {
        stage.bed.apply(&at_zero(name)).await?;
    }
    let pods = pods_of(stage, "running").await?;
    let mut before = BTreeMap::new();
    for name in &names {
        before.insert(name, stage.bed.settled_children(name).await?);
    }
    tokio::time::sleep(LEFT_ALONE).await;
    let written = stage.written_since(&begun).total(&Match::any());
    ensure!(
        written <= WRITES_UNDER_AN_OLD_DEFINITION,
        "{written} writes under the old definition are a hot loop"
    );

    replace_spec(&stage.bed.client, chart).await?;
    for name in names.iter().map(String::as_str).chain(["running"]) {
        stage.bed.ready(name).await?;
    }
    stage.rests().await?;
    for (service, children) in &before {
        let now = stage.bed.children(service).await?;
        ensure!(
            *children == now,
            "children were written: {children:?} became {now:?}"
        );
    }
    ensure!(
        pods == pods_of(stage, "running").await?,
        "pods were replaced"
    );
    old_objects_are_changed_in_old_fields_and_in_new_ones(stage).await?;
    stage.bed.answers("running").await.map(drop)
}

async fn old_objects_are_changed_in_old_fields_and_in_new_ones(stage: &Stage) -> Result<()> {
    stage.change("kept-0", 32).await?;
    stage.carried_out("kept-0", 32).await?;
    let rollout = json!({"strategy": "TerminateFirst"});
    let applied = stage
        .bed
        .apply(&with(at_zero("kept-1"), &["spec", "rollout"], rollout))
        .await?;
    ensure!(
        applied.data["spec"]["rollout"]["strategy"] == "TerminateFirst",
        "the new field was dropped"
    );
    stage.bed.ready("kept-1").await
}

async fn pods_of(stage: &Stage, service: &str) -> Result<Vec<String>> {
    Ok(stage
        .bed
        .ready_pods(service, 1)
        .await?
        .iter()
        .map(crate::bed::pod_uid)
        .collect())
}

pub fn a_definition_that_is_newer_than_the_operator_costs_nothing() {
    on_stage("newer", |stage| async move {
        let chart = chart_definition()?;
        let outcome = newer(&stage, &chart).await;
        replace_spec(&stage.bed.client, &chart).await?;
        outcome
    });
}

/// Fields that the operator does not know are somebody else's business.
async fn newer(stage: &Stage, chart: &Value) -> Result<()> {
    let kept = stage.services_at_rest(&numbered("kept", 2)).await?;
    let before = stage.proxy.counts();
    replace_spec(&stage.bed.client, &future(chart)?).await?;
    stage.rests().await?;
    let written = stage.written_since(&before);
    ensure!(
        written.is_empty(),
        "the new definition made the operator write\n{written}"
    );

    stage
        .bed
        .apply(&with(
            at_zero("modern"),
            &["spec", "future"],
            json!({"field": 1}),
        ))
        .await?;
    stage.bed.ready("modern").await?;
    stage.change("kept-0", 32).await?;
    stage.carried_out("kept-0", 32).await?;
    let now = stage.bed.children("kept-1").await?;
    ensure!(
        kept["kept-1"] == now,
        "children were written: {:?} became {now:?}",
        kept["kept-1"]
    );
    Ok(())
}

/// The same definition with one field more.
fn future(definition: &Value) -> Result<Value> {
    let mut future = definition.clone();
    let fields = future
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties")
        .context("the definition has no fields of spec")?;
    fields["future"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    Ok(future)
}

pub fn one_malformed_object_among_a_hundred_hinders_none_of_them() {
    on_stage("malformed", |stage| async move {
        let chart = chart_definition()?;
        let outcome = malformed(&stage, &chart).await;
        replace_spec(&stage.bed.client, &chart).await?;
        outcome
    });
}

async fn malformed(stage: &Stage, chart: &Value) -> Result<()> {
    // The operator first meets the object with its first list, and under the definition that would refuse it today.
    stage.operator().stop().await?;
    replace_spec(&stage.bed.client, &relaxed(chart)?).await?;
    let bad = with(
        at_zero("malformed"),
        &["spec", "scaling", "minReplicas"],
        json!("many"),
    );
    stage.bed.apply(&bad).await?;
    replace_spec(&stage.bed.client, chart).await?;
    stage.start_again()?;
    stage.operator().wait_until_leading(PATIENCE).await?;

    let others = numbered("sound", OTHERS);
    apply_all(stage, &others).await?;
    all_ready(stage, &others).await?;
    is_told_of(stage, "malformed", "many").await?;
    stage.rests().await?;
    // It is not tried again and again either.
    let before = stage.proxy.counts();
    tokio::time::sleep(LEFT_ALONE).await;
    let written = stage.written_since(&before);
    ensure!(written.is_empty(), "the operator wrote\n{written}");
    stage.change("sound-7", 32).await?;
    stage.carried_out("sound-7", 32).await?;

    // Put right, it is a service like the others. The API server takes no server-side apply to such an object.
    let right = json!({"spec": {"scaling": {"minReplicas": 0}}});
    let services = stage.bed.services();
    services
        .patch("malformed", &PatchParams::default(), &Patch::Merge(&right))
        .await?;
    stage.bed.ready("malformed").await?;
    stage.rests().await
}

/// In a condition, or, where the definition's own rules refuse every status of such an object, in an Event.
async fn is_told_of(stage: &Stage, service: &str, word: &str) -> Result<()> {
    eventually("what is wrong with it is told", PATIENCE, async || {
        let object = stage.bed.service(service).await?;
        let ready = condition(&object, "Ready").unwrap_or_default();
        let events = stage
            .bed
            .api::<Event>()
            .list(&ListParams::default())
            .await?;
        let about = |event: &&Event| {
            event
                .regarding
                .as_ref()
                .and_then(|object| object.name.as_deref())
                == Some(service)
        };
        let news = events.items.iter().filter(about);
        let told: Vec<String> = news
            .map(|event| {
                format!(
                    "{} {}",
                    event.reason.as_deref().unwrap_or_default(),
                    event.note.as_deref().unwrap_or_default()
                )
            })
            .chain([format!("{} {}", ready["reason"], ready["message"])])
            .collect();
        ensure!(
            told.iter()
                .any(|text| text.contains("InvalidSpec") && text.contains(word)),
            "told is {told:?}"
        );
        Ok(())
    })
    .await
}

async fn apply_all(stage: &Stage, names: &[String]) -> Result<()> {
    let applied =
        futures::stream::iter(names).map(async |name| stage.bed.apply(&at_zero(name)).await);
    applied
        .buffer_unordered(8)
        .try_for_each(async |_| Ok(()))
        .await
}

async fn all_ready(stage: &Stage, names: &[String]) -> Result<()> {
    eventually("every sound service is ready", PATIENCE, async || {
        let list = stage.bed.services().list(&ListParams::default()).await?;
        let is_ready = |object: &&DynamicObject| {
            let conditions = object.data["status"]["conditions"].as_array();
            conditions.is_some_and(|list| {
                list.iter()
                    .any(|c| c["type"] == "Ready" && c["status"] == "True")
            })
        };
        let ready = list
            .items
            .iter()
            .filter(is_ready)
            .filter(|object| names.contains(&object.name_any()))
            .count();
        ensure!(ready == names.len(), "{ready} of {} are", names.len());
        Ok(())
    })
    .await
}

/// The definition that the chart installs.
fn chart_definition() -> Result<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../charts/pagoda-crds/templates/inferenceservices.yaml");
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(serde_yaml_ng::from_str(&text)?)
}

/// The same definition, whose `spec` takes anything.
fn relaxed(definition: &Value) -> Result<Value> {
    let mut relaxed = definition.clone();
    let schema = relaxed
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .context("the definition has no schema of spec")?;
    *schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    Ok(relaxed)
}

/// Puts the spec of `definition` in place of that of the installed one, whose labels and annotations stay helm's, and waits
/// until the API server serves it.
async fn replace_spec(client: &Client, definition: &Value) -> Result<()> {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let mut installed = api.get(NAME).await?;
    installed.data["spec"] = definition["spec"].clone();
    let replaced = api
        .replace(NAME, &PostParams::default(), &installed)
        .await?;
    let wanted = replaced.metadata.generation;
    serves(client, definition)
        .await
        .with_context(|| format!("generation {wanted:?} of {NAME}"))
}

/// The published schema follows a change of the definition after a moment, and the handler with it.
async fn serves(client: &Client, definition: &Value) -> Result<()> {
    let fields = |schema: Option<&Value>| -> Vec<String> {
        let properties =
            schema.and_then(|schema| schema["properties"]["spec"]["properties"].as_object());
        let mut names: Vec<String> = properties
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        names.sort();
        names
    };
    let wanted = fields(definition.pointer("/spec/versions/0/schema/openAPIV3Schema"));
    eventually(
        "the API server serves the definition",
        PATIENCE,
        async || {
            let request = http::Request::get("/openapi/v3/apis/serving.pagoda.dev/v1alpha1")
                .body(Vec::new())?;
            let published: Value = client.request(request).await?;
            let schemas = published["components"]["schemas"].as_object();
            let schema = schemas.and_then(|all| {
                all.iter()
                    .find(|(name, _)| name.ends_with(".InferenceService"))
            });
            let found = fields(schema.map(|(_, schema)| schema));
            ensure!(
                found == wanted,
                "the fields of spec are {found:?} instead of {wanted:?}"
            );
            Ok(())
        },
    )
    .await
}
