//! What is kept of each kind: enough to decide, and no more.

#![expect(
    clippy::needless_pass_by_value,
    reason = "whatever is read is taken over, so that nothing of it is left in memory"
)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

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
use crate::{key::Key, pod_address, scalers::ScalerRow};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        autoscaling::v2::HorizontalPodAutoscaler,
        batch::v1::Job,
        core::v1::{Node, Pod},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time},
    jiff::Timestamp,
};
use tokio::time::Instant;

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
    pub scaled: Option<Arc<ScaledSpec>>,
    /// Names that it claims for its model, and since when.
    pub claim: Option<Claim>,
    /// Who last wrote its number of pods, as a field manager; none where the API server does not tell.
    pub replicas_by: Option<Arc<str>>,
}

/// What the autoscaler needs of a spec that passes every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaledSpec {
    /// Pods that it asks for now.
    pub replicas: u32,
    /// How many it may ask for.
    pub scaling: ScalingSettings,
    /// Whether its pods run our own engine.
    pub is_ours: bool,
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
    /// Its name, shared with whoever remembers the pod.
    pub name: Arc<str>,
    /// Its revision, the same.
    pub revision: Arc<str>,
    /// Where its server answers, once it has an address.
    pub server: Option<SocketAddr>,
    /// How old it was when it was first seen.
    pub made: Age,
    /// Since when it answers, if it does.
    pub ready: Option<Age>,
}

/// An age on the monotonic clock: the wall clock is asked once at most, for what was there before this process.
#[derive(Clone, Copy, Debug)]
pub struct Age {
    seen: Instant,
    age_then: Duration,
}

impl Age {
    /// The age of what is seen now and came at that time; of what just came, when its coming was seen.
    fn first_seen(came: Option<&Time>, was_seen_coming: bool) -> Self {
        let age = || {
            let seconds = Timestamp::now().duration_since(came?.0).as_secs();
            // A clock that is behind makes it new.
            Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
        };
        let age_then = if was_seen_coming { None } else { age() };
        Self {
            seen: Instant::now(),
            age_then: age_then.unwrap_or_default(),
        }
    }

    /// The age at a moment.
    pub fn at(&self, now: Instant) -> Duration {
        self.age_then + now.saturating_duration_since(self.seen)
    }
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
    let replicas_by = replicas_by(object.meta());
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
            replicas_by,
        }),
    })
}

/// Field manager of `spec.replicas`. Of several that agree the autoscaler is named, or else whoever wrote last.
fn replicas_by(metadata: &ObjectMeta) -> Option<Arc<str>> {
    let entries = metadata.managed_fields.iter().flatten();
    let owners = entries.filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        fields.is_some_and(|fields| fields.pointer("/f:spec/f:replicas").is_some())
    });
    let rank = |entry: &&ManagedFieldsEntry| {
        let ours = entry.manager.as_deref() == Some(names::MANAGER_AUTOSCALER);
        (ours, entry.time.as_ref().map(|time| time.0))
    };
    owners.max_by_key(rank)?.manager.as_deref().map(Arc::from)
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

/// A number of pods that somebody else sets is looked at as well, for it is from these figures that he sets it.
fn scaled(object: &InferenceService) -> Option<Arc<ScaledSpec>> {
    let service = validate(object).ok()?;
    let fixed = service.scaling.managed_by_pagoda && service.scaling.is_fixed();
    (!fixed).then(|| {
        Arc::new(ScaledSpec {
            replicas: service.replicas,
            is_ours: service.foreign.is_none(),
            scaling: service.scaling,
        })
    })
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

/// A pod of a service. `before` is what was kept of it; `settled` says that all there was has been read, so that a new one
/// has just come.
pub fn pod(object: Pod, before: Option<Arc<PodRow>>, settled: bool) -> Option<Kept<Arc<PodRow>>> {
    let prefetched = named_by(&object, names::LABEL_PREFETCH);
    let view = PodView::of(&object);
    let before = before.filter(|row| row.view.created == view.created);
    let made = || Age::first_seen(view.created.as_ref(), settled);
    let was_ready = before.as_ref().and_then(|row| row.ready);
    let turned = settled || before.is_some();
    let row = PodRow {
        prefetches: prefetched.is_some(),
        name: view.name.as_str().into(),
        revision: view.revision.as_deref().unwrap_or_default().into(),
        server: pod_address::server(&view).and_then(|address| address.parse().ok()),
        made: before.as_ref().map_or_else(made, |row| row.made),
        ready: view.ready.then(|| {
            was_ready.unwrap_or_else(|| Age::first_seen(view.ready_since.as_ref(), turned))
        }),
        view,
    };
    let service = prefetched.or_else(|| named_by(&object, names::LABEL_SERVICE));
    kept(&object, service, Arc::new(row))
}

/// A node.
pub fn node(object: Node) -> Option<Kept<Arc<NodeView>>> {
    let view = Arc::new(NodeView::of(&object));
    kept(&object, None, view)
}

/// An autoscaler of somebody else's. One that scales something else is kept as well, so that it is known when it changes.
pub fn scaler(object: HorizontalPodAutoscaler) -> Option<Kept<Arc<ScalerRow>>> {
    let row = Arc::new(ScalerRow::of(&object));
    kept(&object, None, row)
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
