//! The objects that a checked service is made of. Cannot fail: whatever could is refused by
//! [`validate`](mod@crate::validate).
//!
//! Objects are JSON as server-side apply sends it: only the fields that the operator owns, keys in order, so that equal
//! services give equal bytes and nothing rolls out by accident.

mod config;
mod deployment;
mod hash;
mod overlay;
mod pod;
#[cfg(test)]
mod tests;

pub use hash::short_hash;

use pagoda_crds::names;
use serde_json::{Value, json};

use crate::validate::Service;

/// What building needs besides the service itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Image of the engine; its entry point is the engine's binary.
    pub engine: String,
    /// When the kubelet pulls it: `Always`, `IfNotPresent`, `Never`.
    pub pull_policy: String,
}

/// Kind of a child, in the order in which they are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// The engine's configuration.
    ConfigMap,
    /// Identity of the pods.
    ServiceAccount,
    /// Address of the pods.
    Service,
    /// Bound on voluntary evictions.
    PodDisruptionBudget,
    /// The pods. Last, because they mount the ConfigMap and run as the ServiceAccount.
    Deployment,
}

impl ChildKind {
    /// The kind's name, as in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::ServiceAccount => "ServiceAccount",
            Self::Service => "Service",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::Deployment => "Deployment",
        }
    }
}

/// One object to apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Its kind.
    pub kind: ChildKind,
    /// The whole object.
    pub object: Value,
}

/// All children, and what tells their pods apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Children {
    /// In the order to apply them.
    pub list: Vec<Child>,
    /// Revision of the pods, as their annotation carries it.
    pub revision: String,
}

/// Annotation on pods: hash of their whole template, so that pods of the current spec are known from older ones.
pub const ANNOTATION_REVISION: &str = "serving.pagoda.dev/revision";

/// Builds all children of a service.
pub fn build(service: &Service, images: &Images) -> Children {
    let config = config::engine_json(service);
    let template = pod::template(service, images, &hash::short_hash(&config));
    let revision = hash::short_hash(&template.to_string());
    let bodies = [
        (ChildKind::ConfigMap, config::config_map(service, &config)),
        (ChildKind::ServiceAccount, service_account(service)),
        (ChildKind::Service, pods_service(service)),
        (ChildKind::PodDisruptionBudget, disruption_budget(service)),
        (
            ChildKind::Deployment,
            deployment::deployment(service, template, &revision),
        ),
    ];
    let list = bodies
        .into_iter()
        .map(|(kind, object)| Child {
            kind,
            object: sign(object),
        })
        .collect();
    Children { list, revision }
}

/// Metadata of every child: the service's name, labels, and its owner.
fn metadata(service: &Service) -> Value {
    json!({
        "name": service.name,
        "namespace": service.namespace,
        "labels": labels(service),
        "ownerReferences": [{
            "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
            "kind": names::KIND,
            "name": service.name,
            "uid": service.uid,
            "controller": true,
            "blockOwnerDeletion": true
        }]
    })
}

fn labels(service: &Service) -> Value {
    json!({
        names::LABEL_APP: names::APP_ENGINE,
        names::LABEL_MANAGED_BY: names::MANAGED_BY_OPERATOR,
        names::LABEL_SERVICE: service.name
    })
}

/// The label alone that finds a service's pods; it never changes, for a Deployment's selector cannot.
fn selector(service: &Service) -> Value {
    json!({names::LABEL_SERVICE: service.name})
}

/// The selector as text, for the scale subresource.
pub fn selector_text(service: &Service) -> String {
    format!("{}={}", names::LABEL_SERVICE, service.name)
}

fn service_account(service: &Service) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(service),
        "automountServiceAccountToken": false
    })
}

fn pods_service(service: &Service) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(service),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(service),
            "ports": [{
                "name": names::PORT_HTTP,
                "port": names::SERVICE_PORT,
                "targetPort": names::PORT_HTTP,
                "protocol": "TCP"
            }]
        }
    })
}

fn disruption_budget(service: &Service) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(service),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(service)},
            // A pod that does not answer protects nobody from a drain of its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow"
        }
    })
}

/// Notes on the object the hash of what is applied, so that a later run sees whether it would apply the same.
fn sign(mut object: Value) -> Value {
    let hash = hash::short_hash(&object.to_string());
    object["metadata"]["annotations"] = json!({names::ANNOTATION_APPLIED_HASH: hash});
    object
}
