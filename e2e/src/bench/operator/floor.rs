//! The API server's own time: a client that decides nothing writes what the operator wrote, object by object.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Run;
use super::converge::PREFIX;
use super::watching::{Milestones, Watching};
use crate::bed::Bed;
use crate::bed::audit::Write;
use crate::bed::services::{
    self, Key, SERVICE_LABEL, Size, child_resources, manifest, name_of, resource,
};

const PATIENCE: Duration = Duration::from_mins(10);
const MANAGER: &str = "bench-floor";

/// What was written for a service of one size.
struct Template {
    key: Key,
    uid: String,
    children: Vec<(ApiResource, Value)>,
    status: Value,
}

/// What the operator wrote for all of them.
pub(super) struct Writes {
    fixed: Template,
    at_zero: Template,
    /// Of all services together.
    children: usize,
    statuses: usize,
    events: usize,
    /// Numbers of pods, each of which makes a new generation of its service.
    scales: usize,
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "each service, {} children, {} numbers of pods, {} statuses and {} events, of the same content",
            self.children, self.scales, self.statuses, self.events
        )
    }
}

impl Writes {
    /// Counts `writes` and reads back two services' children and statuses.
    pub(super) async fn of(bed: &Bed, writes: &[&Write], count: usize) -> Result<Self> {
        let of = |resource: &str| {
            writes
                .iter()
                .filter(|write| write.resource == resource)
                .count()
        };
        let kinds = child_resources();
        let statuses = of("inferenceservices/status");
        ensure!(
            statuses >= count,
            "the audit log has only {statuses} statuses of {count} services"
        );
        Ok(Self {
            fixed: Template::read(bed, 0).await?,
            at_zero: Template::read(bed, 1).await?,
            children: kinds.iter().map(|kind| of(&kind.plural)).sum(),
            statuses,
            events: of("events"),
            scales: of("inferenceservices/scale"),
        })
    }
}

impl Template {
    async fn read(bed: &Bed, index: usize) -> Result<Self> {
        let (key, _) = name_of(PREFIX, index);
        let api: Api<DynamicObject> = Api::namespaced_with(bed.client.clone(), &key.0, &resource());
        let service = api.get(&key.1).await?;
        let mut children = Vec::new();
        for kind in child_resources() {
            let api: Api<DynamicObject> = Api::namespaced_with(bed.client.clone(), &key.0, &kind);
            let of_service = ListParams::default().labels(&format!("{SERVICE_LABEL}={}", key.1));
            for child in api.list(&of_service).await?.items {
                children.push((
                    kind.clone(),
                    applicable(serde_json::to_value(child)?, &kind),
                ));
            }
        }
        Ok(Self {
            uid: service.metadata.uid.context("a service without a UID")?,
            status: service.data["status"].clone(),
            key,
            children,
        })
    }

    /// The same for another service. Names are of one length and occur nowhere else, so text is replaced.
    fn for_service(&self, value: &Value, key: &Key, uid: &str) -> Result<Value> {
        let text = value
            .to_string()
            .replace(&self.key.1, &key.1)
            .replace(&self.key.0, &key.0)
            .replace(&self.uid, uid);
        Ok(serde_json::from_str(&text)?)
    }
}

/// Without what the API server and its controllers added.
fn applicable(mut child: Value, kind: &ApiResource) -> Value {
    let metadata = &child["metadata"];
    let mut kept = json!({});
    for field in [
        "name",
        "namespace",
        "labels",
        "annotations",
        "ownerReferences",
    ] {
        if !metadata[field].is_null() {
            kept[field] = metadata[field].clone();
        }
    }
    if let Some(annotations) = kept.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !key.starts_with("deployment.kubernetes.io/"));
    }
    child["metadata"] = kept;
    child["apiVersion"] = json!(kind.api_version);
    child["kind"] = json!(kind.kind);
    if let Some(fields) = child.as_object_mut() {
        fields.remove("status");
    }
    if let Some(spec) = child.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    child
}

/// Milestones of the bare client.
pub(super) async fn measure(
    run: &Run<'_>,
    bed: &Bed,
    writes: &Writes,
    count: usize,
) -> Result<Milestones> {
    services::create_namespaces(&bed.client, PREFIX, count).await?;
    let client = Arc::new(bed.bare_client().await?);
    let watching = Watching::start(&bed.client);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    let writing = stream::iter(0..count)
        .map(Ok)
        .try_for_each_concurrent(run.concurrency(), |index| {
            write_one(client.clone(), writes, index, count)
        });
    let waiting = watching.wait(count, began, false, PATIENCE, run.progress);
    let (milestones, ()) = tokio::try_join!(waiting, writing)?;
    Ok(milestones)
}

async fn write_one(client: Arc<Client>, writes: &Writes, index: usize, count: usize) -> Result<()> {
    let (key, size) = name_of(PREFIX, index);
    let template = if size == Size::Fixed {
        &writes.fixed
    } else {
        &writes.at_zero
    };
    let created = services::create(&client, &manifest(&key, size)).await?;
    let uid = created.metadata.uid.context("a service without a UID")?;
    let parameters = PatchParams::apply(MANAGER).force();
    for (kind, child) in &template.children {
        let child = template.for_service(child, &key, &uid)?;
        let name = child["metadata"]["name"]
            .as_str()
            .unwrap_or(&key.1)
            .to_owned();
        let api: Api<DynamicObject> = Api::namespaced_with((*client).clone(), &key.0, kind);
        api.patch(&name, &parameters, &Patch::Apply(&child)).await?;
    }
    let generation = scale(&client, &key, share(writes.scales, index, count)).await?;
    let mut status = template.for_service(&template.status, &key, &uid)?;
    status["observedGeneration"] = json!(generation);
    write_statuses(&client, &key, status, share(writes.statuses, index, count)).await?;
    for _ in 0..share(writes.events, index, count) {
        write_event(&client, &key, &uid).await?;
    }
    Ok(())
}

/// The part of `total` that falls to the `index`-th of `count`: together exactly `total`.
fn share(total: usize, index: usize, count: usize) -> usize {
    (index + 1) * total / count - index * total / count
}

/// Writes a number of pods as often, each another one, and returns the generation that comes of it.
async fn scale(client: &Client, key: &Key, times: usize) -> Result<i64> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.0, &resource());
    for time in 0..times {
        let patch = json!({"spec": {"replicas": (time + 1) % 2}});
        api.patch_scale(&key.1, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
    }
    Ok(1 + times as i64)
}

/// Each differs from the one before, or the API server would have nothing to store.
async fn write_statuses(client: &Client, key: &Key, status: Value, times: usize) -> Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.0, &resource());
    let parameters = PatchParams::apply("bench-floor-status").force();
    for time in 0..times.max(1) {
        let mut status = status.clone();
        if time + 1 < times {
            status["conditions"][0]["message"] = json!(format!("on the way {time}"));
        }
        let patch = json!({
            "apiVersion": "serving.pagoda.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": key.1},
            "status": status,
        });
        api.patch_status(&key.1, &parameters, &Patch::Apply(&patch))
            .await?;
    }
    Ok(())
}

async fn write_event(client: &Client, key: &Key, uid: &str) -> Result<()> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("events.k8s.io", "v1", "Event"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.0, &kind);
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": format!("{}-", key.1), "namespace": key.0},
        "eventTime": format!("{:.6}", jiff::Timestamp::now()),
        "reportingController": "bench.pagoda.dev/floor",
        "reportingInstance": "bench",
        "action": "Reconcile",
        "reason": "Ready",
        "type": "Normal",
        "note": "1 of 1 pods answer",
        "regarding": {
            "apiVersion": "serving.pagoda.dev/v1alpha1", "kind": "InferenceService",
            "namespace": key.0, "name": key.1, "uid": uid,
        },
    });
    api.create(&PostParams::default(), &serde_json::from_value(event)?)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_are_the_whole() {
        for (total, count) in [(0, 7), (3, 7), (7, 7), (17, 7), (10_003, 5000)] {
            let sum: usize = (0..count).map(|index| share(total, index, count)).sum();
            assert_eq!(sum, total);
        }
    }

    #[test]
    fn what_the_cluster_added_to_a_child_is_not_applied_again() {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Service"));
        let live = json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "labels": {"x": "y"}},
            "spec": {"clusterIP": "1.2.3.4", "clusterIPs": ["1.2.3.4"], "ports": [{"port": 80}]},
            "status": {"loadBalancer": {}},
        });
        assert_eq!(
            applicable(live, &kind),
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "a", "labels": {"x": "y"}},
                "spec": {"ports": [{"port": 80}]},
            })
        );
    }
}
