//! What is kept of each kind: enough to decide, and no more.

#![expect(
    clippy::needless_pass_by_value,
    reason = "whatever is read is taken over, so that nothing of it is left in memory"
)]

use std::sync::Arc;

use kube::{Resource, ResourceExt, core::DeserializeGuard};
use pagoda_crds::{InferenceService, names};
use pagoda_operator_core::{
    compare,
    placement::NodeView,
    rollout::DeploymentView,
    status::PodView,
    validate::{ScalingSettings, validate},
};
use serde::Serialize;

use super::{
    packed::{Packed, Packer},
    table::Kept,
};
use crate::key::Key;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        core::v1::{Node, Pod},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// An InferenceService, or what was wrong with it: one malformed object must not hide the others.
pub type Guarded = DeserializeGuard<InferenceService>;

/// What `kubectl apply` notes on an object: a second copy of it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An InferenceService.
#[derive(Debug)]
pub struct ServiceRow {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// What stands in it.
    pub content: Content,
    /// What the autoscaler needs of it, when it has to look after it.
    pub scaled: Option<ScaledSpec>,
    /// Names that it claims for its model, and since when.
    pub claim: Option<Claim>,
}

/// What the autoscaler needs of a spec that passes every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaledSpec {
    /// Pods that it asks for now.
    pub replicas: u32,
    /// How many it may ask for.
    pub scaling: ScalingSettings,
}

/// Names of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// When the service was made.
    pub created_seconds: i64,
    /// The names.
    pub names: Vec<String>,
}

/// A Deployment of a service.
#[derive(Debug)]
pub struct DeploymentRow {
    /// What counts of it.
    pub view: DeploymentView,
    /// Name of the service that controls it.
    pub owner: Option<String>,
    /// Whether it is being deleted.
    pub leaving: bool,
    /// All of it but its status.
    pub object: Packed,
}

/// A pod of a service.
#[derive(Debug)]
pub struct PodRow {
    /// What counts of it.
    pub view: PodView,
    /// Whether it only brings a model to its node.
    pub prefetches: bool,
}

/// What stands in an InferenceService.
#[derive(Debug)]
pub enum Content {
    /// An object that fits its type.
    Readable(Packed),
    /// One that does not.
    Unreadable {
        /// Its metadata.
        metadata: Box<ObjectMeta>,
        /// What is wrong with it.
        error: String,
    },
}

impl ServiceRow {
    /// The object, if it fits its type.
    pub fn object(&self) -> Option<InferenceService> {
        match &self.content {
            Content::Readable(packed) => packed.read(),
            Content::Unreadable { .. } => None,
        }
    }
}

fn key_of(metadata: &ObjectMeta) -> Option<Key> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    Some(Key::new(namespace, metadata.name.as_deref()?))
}

/// The service that the label names.
fn named_by<K: Resource<DynamicType = ()>>(object: &K, label: &str) -> Option<Key> {
    let service = object.labels().get(label)?;
    Some(Key::new(&object.namespace()?, service))
}

fn kept<K: Resource<DynamicType = ()>, V>(
    object: &K,
    service: Option<Key>,
    value: V,
) -> Option<Kept<V>> {
    Some(Kept {
        key: key_of(object.meta())?,
        service,
        version: object.resource_version().unwrap_or_default(),
        value,
    })
}

/// An InferenceService. `before` spares checking a spec again that is the same.
pub fn service(
    object: Guarded,
    before: Option<Arc<ServiceRow>>,
    packer: &Packer,
) -> Option<Kept<Arc<ServiceRow>>> {
    let key = key_of(object.meta())?;
    let version = object.resource_version().unwrap_or_default();
    let uid = object.meta().uid.clone().unwrap_or_default();
    let generation = object.meta().generation.unwrap_or_default();
    let claim = object.0.as_ref().ok().map(claim);
    let (content, scaled) = match object.0 {
        Ok(mut object) => {
            object.metadata.managed_fields = None;
            if let Some(annotations) = &mut object.metadata.annotations {
                annotations.remove(LAST_APPLIED);
            }
            let same = before.filter(|b| b.uid == uid && b.generation == generation);
            let scaled = if object.metadata.deletion_timestamp.is_some() {
                None
            } else {
                same.map_or_else(|| scaled(&object), |b| b.scaled.clone())
            };
            (Content::Readable(packer.pack(&object)?), scaled)
        }
        Err(invalid) => {
            let content = Content::Unreadable {
                metadata: Box::new(ObjectMeta {
                    managed_fields: None,
                    annotations: None,
                    ..invalid.metadata
                }),
                error: invalid.error,
            };
            (content, None)
        }
    };
    Some(Kept {
        service: Some(key.clone()),
        key,
        version,
        value: Arc::new(ServiceRow {
            uid,
            generation,
            content,
            scaled,
            claim,
        }),
    })
}

/// By the rule of `validate`, whether or not the rest of the spec passes it: gateways route to what runs.
fn claim(object: &InferenceService) -> Claim {
    let names = &object.spec.model.names;
    let created = object.metadata.creation_timestamp.as_ref();
    Claim {
        created_seconds: created.map_or(0, |time| time.0.as_second()),
        names: if names.is_empty() {
            vec![object.name_any()]
        } else {
            names.clone()
        },
    }
}

fn scaled(object: &InferenceService) -> Option<ScaledSpec> {
    let service = validate(object).ok()?;
    let (replicas, scaling) = (service.replicas, service.scaling);
    (scaling.managed_by_pagoda && scaling.min_replicas != scaling.max_replicas)
        .then_some(ScaledSpec { replicas, scaling })
}

/// A child, without its status: knowing it saves writing it.
pub fn child<K>(object: K, packer: &Packer) -> Option<Kept<Packed>>
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let service = named_by(&object, names::LABEL_SERVICE);
    let packed = reduced(&object, packer)?;
    kept(&object, service, packed)
}

/// A Job, with its status.
pub fn job(mut object: Job, packer: &Packer) -> Option<Kept<Packed>> {
    object.metadata.managed_fields = None;
    let service = named_by(&object, names::LABEL_SERVICE);
    let packed = packer.pack(&object)?;
    kept(&object, service, packed)
}

/// A Deployment.
pub fn deployment(object: Deployment, packer: &Packer) -> Option<Kept<Arc<DeploymentRow>>> {
    let service = named_by(&object, names::LABEL_SERVICE);
    let row = DeploymentRow {
        view: DeploymentView::of(&object),
        owner: owner(&object.metadata).map(str::to_owned),
        leaving: object.metadata.deletion_timestamp.is_some(),
        object: reduced(&object, packer)?,
    };
    kept(&object, service, Arc::new(row))
}

/// Name of the InferenceService that controls an object: of the one that is there, or of an earlier one of the same name, whose
/// children the garbage collector should have taken, and sometimes never does.
pub fn owner(metadata: &ObjectMeta) -> Option<&str> {
    let owners = metadata.owner_references.iter().flatten();
    let mut ours =
        owners.filter(|owner| owner.controller == Some(true) && owner.kind == names::KIND);
    ours.next().map(|owner| owner.name.as_str())
}

fn reduced<T: Serialize>(object: &T, packer: &Packer) -> Option<Packed> {
    let mut value = serde_json::to_value(object).ok()?;
    compare::reduce(&mut value);
    packer.pack(&value)
}

/// A pod of a service.
pub fn pod(object: Pod) -> Option<Kept<Arc<PodRow>>> {
    let prefetched = named_by(&object, names::LABEL_PREFETCH);
    let row = PodRow {
        view: PodView::of(&object),
        prefetches: prefetched.is_some(),
    };
    let service = prefetched.or_else(|| named_by(&object, names::LABEL_SERVICE));
    kept(&object, service, Arc::new(row))
}

/// A node.
pub fn node(object: Node) -> Option<Kept<Arc<NodeView>>> {
    let view = Arc::new(NodeView::of(&object));
    kept(&object, None, view)
}

/// Where gateways are.
pub fn gateway(mut object: EndpointSlice) -> Option<Kept<Arc<EndpointSlice>>> {
    object.metadata.managed_fields = None;
    let kept = kept(&object, None, ())?;
    Some(Kept {
        key: kept.key,
        service: None,
        version: kept.version,
        value: Arc::new(object),
    })
}
