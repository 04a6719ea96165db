//! The objects that a checked service is made of. Cannot fail: whatever could is refused by
//! [`validate`](mod@crate::validate).
//!
//! Objects are JSON as server-side apply sends it: only the fields that the operator owns, keys in order, so that equal
//! services give equal bytes and nothing rolls out by accident.
//!
//! Every revision of the pods has a Deployment and a ConfigMap of its own; how many pods each revision has is
//! [`rollout`](mod@crate::rollout)'s to say.

mod config;
mod deployment;
mod engine;
mod hardware;
mod hash;
mod model;
mod overlay;
mod pod;
mod prefetch;
#[cfg(test)]
mod tests;

pub use hash::short_hash;
pub use prefetch::{prefetch_job, prefetch_name};

use pagoda_crds::names;
use serde_json::{Value, json};

use crate::validate::{Service, Source};

/// What building needs besides the service itself: flags of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Images of containers of ours.
    pub images: Images,
    /// Where nodes keep models; none without.
    pub model_cache: Option<ModelCache>,
}

/// Images of containers of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Image of the engine; its entry point is the engine's binary.
    pub engine: String,
    /// When the kubelet pulls it: `Always`, `IfNotPresent`, `Never`.
    pub pull_policy: String,
}

/// Where nodes keep models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCache {
    /// Directory of each node that namespaces have their directories in.
    pub host_path: String,
    /// Bytes that the models of a namespace take on a node at most.
    pub bytes_per_namespace: u64,
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
    /// The pods. After the others, because they mount the ConfigMap and run as the ServiceAccount.
    Deployment,
    /// Pods that bring a model to nodes ahead of a rollout.
    Job,
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
            Self::Job => "Job",
        }
    }
}

/// One object to apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Its kind.
    pub kind: ChildKind,
    /// Its name; its namespace is the service's.
    pub name: String,
    /// The whole object.
    pub object: Value,
}

/// All children of one spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Children {
    /// Children named like the service, in the order to apply them: ServiceAccount, Service, PodDisruptionBudget.
    pub shared: Vec<Child>,
    /// Revision of the pods: ten hexadecimal digits.
    pub revision: String,
    /// Name of the revision's Deployment and ConfigMap.
    pub revision_name: String,
    /// Name of the model in a node's cache, when it is downloaded.
    pub model_key: Option<String>,
    /// The revision's ConfigMap, to apply before its Deployment; other servers than ours read none.
    pub config_map: Option<Child>,
    /// The revision's Deployment without its number of pods.
    deployment: Value,
    /// Hash of that.
    deployment_hash: String,
}

impl Children {
    /// The revision's Deployment with a number of pods.
    pub fn deployment_with(&self, replicas: u32) -> Child {
        let mut object = self.deployment.clone();
        object["spec"]["replicas"] = replicas.into();
        let hash = hash::short_hash(&format!("{} {replicas}", self.deployment_hash));
        object["metadata"]["annotations"][names::ANNOTATION_APPLIED_HASH] = hash.into();
        Child {
            kind: ChildKind::Deployment,
            name: self.revision_name.clone(),
            object,
        }
    }

    /// The pods' template.
    pub fn pod_template(&self) -> &Value {
        &self.deployment["spec"]["template"]
    }
}

/// Annotation on a Deployment: name of its model in a node's cache.
pub const ANNOTATION_MODEL_KEY: &str = "serving.pagoda.dev/model-key";

/// Builds all children of a service.
pub fn build(service: &Service, setup: &Setup) -> Children {
    let config = service
        .foreign
        .is_none()
        .then(|| config::engine_json(service, setup));
    let config_hash = config.as_deref().map(hash::short_hash);
    let mut template = pod::template(service, setup, config_hash.as_deref());
    let template_hash = hash::short_hash(&hash::canonical(&template));
    let revision = template_hash[..names::REVISION_DIGITS].to_owned();
    let revision_name = names::revision_name(&service.name, &revision);
    pod::name_revision(&mut template, &revision, &revision_name);
    let model_key = service.source.as_ref().and_then(Source::cache_key);
    let metadata = revision_metadata(service, &revision_name, &revision);
    let (deployment, deployment_hash) = deployment::deployment(
        service,
        metadata.clone(),
        template,
        model_key.as_deref(),
        &template_hash,
    );
    let config_map = config.map(|config| Child {
        kind: ChildKind::ConfigMap,
        name: revision_name.clone(),
        object: sign(config::config_map(&metadata, &config)),
    });
    Children {
        shared: shared(service),
        revision,
        revision_name,
        model_key,
        config_map,
        deployment,
        deployment_hash,
    }
}

fn shared(service: &Service) -> Vec<Child> {
    let bodies = [
        (ChildKind::ServiceAccount, service_account(service)),
        (ChildKind::Service, pods_service(service)),
        (ChildKind::PodDisruptionBudget, disruption_budget(service)),
    ];
    let child = |(kind, object)| Child {
        kind,
        name: service.name.clone(),
        object: sign(object),
    };
    bodies.into_iter().map(child).collect()
}

/// Metadata of a child: its name, labels, and its owner.
fn metadata(service: &Service, name: &str) -> Value {
    json!({
        "name": name,
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

fn revision_metadata(service: &Service, name: &str, revision: &str) -> Value {
    let mut metadata = metadata(service, name);
    metadata["labels"][names::LABEL_REVISION] = revision.into();
    metadata
}

fn labels(service: &Service) -> Value {
    json!({
        names::LABEL_APP: names::APP_ENGINE,
        names::LABEL_MANAGED_BY: names::MANAGED_BY_OPERATOR,
        names::LABEL_SERVICE: service.name
    })
}

/// The label alone that finds a service's pods, of all revisions.
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
        "metadata": metadata(service, &service.name),
        "automountServiceAccountToken": false
    })
}

fn pods_service(service: &Service) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(service, &service.name),
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
        "metadata": metadata(service, &service.name),
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
    let hash = hash::short_hash(&hash::canonical(&object));
    object["metadata"]["annotations"][names::ANNOTATION_APPLIED_HASH] = hash.into();
    object
}
