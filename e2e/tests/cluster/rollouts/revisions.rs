//! A service's other specs, and what is seen of its revisions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use serde_json::{Value, json};

use crate::bed::{Bed, PATIENCE, eventually, of_service, pod_uid, restarts};
use crate::manifests::with;

const REVISION_LABEL: &str = "serving.pagoda.dev/revision";

pub fn replicas(manifest: Value, count: u32) -> Value {
    let scaling = json!({"minReplicas": count, "maxReplicas": count});
    with(manifest, &["spec", "scaling"], scaling)
}

/// The same service as another revision that serves as well as the first.
pub fn changed(manifest: Value) -> Value {
    with(manifest, &["spec", "engine", "maxSequences"], json!(32))
}

/// The same service as a revision whose pods never become ready.
pub fn never_loading(manifest: Value) -> Value {
    with(
        changed(manifest),
        &["spec", "engine", "simulated", "loadSeconds"],
        json!(3000),
    )
}

/// The revision that serves, when it is the one of the spec that is there now and no rollout is under way.
pub async fn at_rest(bed: &Bed, service: &str) -> Result<String> {
    let what = format!("{service} serves its updated revision and no rollout is under way");
    eventually(&what, PATIENCE * 2, async || {
        let found = bed.service(service).await?;
        let status = &found["status"];
        ensure!(
            status["observedGeneration"] == found["metadata"]["generation"],
            "the operator has not seen the spec yet"
        );
        let revision = &status["revision"];
        ensure!(
            revision["current"].is_string() && revision["current"] == revision["updated"],
            "revision is {revision}, rollout {}",
            status["rollout"]
        );
        ensure!(
            status["rollout"]["phase"].is_null(),
            "rollout is {}",
            status["rollout"]
        );
        revision["current"]
            .as_str()
            .map(str::to_owned)
            .context("no revision")
    })
    .await
}

/// Waits until the status speaks of a rollout in this phase; the status then.
pub async fn in_phase(bed: &Bed, service: &str, phase: &str) -> Result<Value> {
    let what = format!("{service} is {phase}");
    eventually(&what, PATIENCE * 2, async || {
        let mut found = bed.service(service).await?;
        ensure!(
            found["status"]["rollout"]["phase"] == phase,
            "rollout is {}, conditions {}",
            found["status"]["rollout"],
            found["status"]["conditions"]
        );
        Ok(found["status"].take())
    })
    .await
}

pub fn revision_of(pod: &Pod) -> String {
    pod.metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(REVISION_LABEL))
        .cloned()
        .unwrap_or_default()
}

pub async fn pods_by_revision(bed: &Bed, service: &str) -> Result<BTreeMap<String, Vec<Pod>>> {
    let mut found: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in bed.pods(service).await? {
        found.entry(revision_of(&pod)).or_default().push(pod);
    }
    Ok(found)
}

/// Waits until the revision `old` is joined by pods of one other; that one's name.
pub async fn joined(bed: &Bed, service: &str, old: &str) -> Result<String> {
    let what = format!("{service} has pods of another revision than {old}");
    eventually(&what, PATIENCE, async || {
        let pods = pods_by_revision(bed, service).await?;
        pods.into_keys()
            .find(|revision| revision != old)
            .context("there is none")
    })
    .await
}

pub fn identities(pods: &[Pod]) -> BTreeSet<(String, i32)> {
    pods.iter()
        .map(|pod| (pod_uid(pod), restarts(pod)))
        .collect()
}

/// Waits until only this revision has a Deployment and a ConfigMap, named after it, and pods.
pub async fn only(bed: &Bed, service: &str, revision: &str) -> Result<()> {
    let what = format!("nothing is left of {service} but revision {revision}");
    let wanted = format!("{service}-{revision}");
    eventually(&what, PATIENCE, async || {
        let by_service = of_service(service);
        let deployments: Api<Deployment> = bed.api();
        let maps: Api<ConfigMap> = bed.api();
        for names in [
            names(
                deployments
                    .list(&by_service)
                    .await?
                    .items
                    .iter()
                    .map(|found| &found.metadata),
            ),
            names(
                maps.list(&by_service)
                    .await?
                    .items
                    .iter()
                    .map(|found| &found.metadata),
            ),
        ] {
            ensure!(names == [wanted.clone()], "there are {names:?}");
        }
        let pods = pods_by_revision(bed, service).await?;
        ensure!(
            pods.keys().eq([revision]),
            "pods are of revisions {:?}",
            pods.keys()
        );
        Ok(())
    })
    .await
}

fn names<'a>(metadata: impl Iterator<Item = &'a kube::core::ObjectMeta>) -> Vec<String> {
    metadata
        .map(|metadata| metadata.name.clone().unwrap_or_default())
        .collect()
}

/// Waits until some condition or the failed rollout speaks of all these words, whatever their case.
pub async fn says(bed: &Bed, service: &str, words: &[&str]) -> Result<String> {
    let what = format!("{service} says {words:?}");
    eventually(&what, PATIENCE, async || {
        let found = bed.service(service).await?;
        let status = &found["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let failed = status["rollout"]["failed"].clone();
        let mut texts = conditions.iter().chain([&failed]).map(|said| {
            format!(
                "{} {}",
                said["reason"].as_str().unwrap_or_default(),
                said["message"].as_str().unwrap_or_default()
            )
        });
        let has_all = |text: &String| {
            let text = text.to_lowercase();
            words.iter().all(|word| text.contains(&word.to_lowercase()))
        };
        texts.find(has_all).with_context(|| {
            format!(
                "conditions are {}, rollout {}",
                status["conditions"], status["rollout"]
            )
        })
    })
    .await
}

pub fn name_of(manifest: &Value) -> Result<&str> {
    manifest["metadata"]["name"]
        .as_str()
        .context("the manifest has no name")
}
