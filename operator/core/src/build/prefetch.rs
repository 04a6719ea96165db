//! The Job that brings a model to nodes before a rollout ends the pods that run there.

use pagoda_crds::names;
use serde_json::{Map, Value, json};

use super::{Child, ChildKind, Children, revision_metadata, sign};
use crate::validate::Service;

/// Retries of a container on its node before the Job fails.
const RETRIES: u32 = 6;
/// Fields of the pods that a pod of the Job needs as well.
const KEPT_FIELDS: [&str; 7] = [
    "automountServiceAccountToken",
    "enableServiceLinks",
    "imagePullSecrets",
    "priorityClassName",
    "securityContext",
    "serviceAccountName",
    "tolerations",
];

/// Name of a revision's Job.
pub fn prefetch_name(revision_name: &str) -> String {
    format!("{revision_name}-prefetch")
}

/// A Job with one pod for each of these nodes, which runs the revision's container `model` into the node's cache. A Job
/// cannot be changed, so one that exists is to be left as it is.
///
/// `None` when the revision's pods have no such container.
pub fn prefetch_job(service: &Service, children: &Children, nodes: &[String]) -> Option<Child> {
    let template = &children.pod_template()["spec"];
    let fetches = template["initContainers"]
        .as_array()?
        .iter()
        .find(|c| c["name"] == names::CONTAINER_MODEL)?;
    let name = prefetch_name(&children.revision_name);
    let pod_labels = json!({
        names::LABEL_MANAGED_BY: names::MANAGED_BY_OPERATOR,
        names::LABEL_PREFETCH: service.name,
        names::LABEL_REVISION: children.revision
    });
    let object = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": revision_metadata(service, &name, &children.revision),
        "spec": {
            "completions": nodes.len(),
            "parallelism": nodes.len(),
            "backoffLimit": RETRIES,
            "template": {
                "metadata": {"labels": pod_labels},
                "spec": pod_spec(template, fetches, &pod_labels, nodes)
            }
        }
    });
    Some(Child {
        kind: ChildKind::Job,
        name,
        object: sign(object),
    })
}

fn pod_spec(template: &Value, fetches: &Value, labels: &Value, nodes: &[String]) -> Value {
    let kept = KEPT_FIELDS
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), template.get(*field)?.clone())));
    let mut spec: Map<String, Value> = kept.collect();
    spec.insert("affinity".into(), affinity(labels, nodes));
    spec.insert("containers".into(), json!([container(fetches)]));
    // A container that failed is tried again where it ran: a pod of its own could land on a node that is done.
    spec.insert("restartPolicy".into(), "OnFailure".into());
    spec.insert("terminationGracePeriodSeconds".into(), 10.into());
    spec.insert("volumes".into(), volumes(template, fetches).into());
    spec.into()
}

/// Beside the pods that serve there is little left on a node, and fetching needs little.
fn container(fetches: &Value) -> Value {
    let mut container = fetches.clone();
    container["resources"] = json!({"requests": {"cpu": "20m", "memory": "64Mi"}});
    container
}

fn volumes(template: &Value, fetches: &Value) -> Vec<Value> {
    let mounted = |volume: &Value| {
        let mounts = fetches["volumeMounts"].as_array();
        mounts.is_some_and(|m| m.iter().any(|mount| mount["name"] == volume["name"]))
    };
    let all = template["volumes"].as_array();
    let used = all.into_iter().flatten().filter(|volume| mounted(volume));
    used.cloned().collect()
}

/// One pod on each node.
fn affinity(labels: &Value, nodes: &[String]) -> Value {
    let terms: Vec<Value> = nodes
        .iter()
        .map(|node| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}))
        .collect();
    json!({
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": {"matchLabels": labels},
            "topologyKey": "kubernetes.io/hostname"
        }]}
    })
}
