//! From a spec as it stands in the API server to values that cannot be wrong, so that everything after cannot fail.
//!
//! The schema and its rules refuse most of this at `kubectl apply` already. What comes here may still be
//! older than a rule, or break what no rule can say.

mod engine;
mod hardware;
mod model_uri;
mod rollout;
mod scaling;
mod schedule;
mod source;
#[cfg(test)]
mod tests;

pub use engine::{EngineSettings, ForeignEngine};
pub use hardware::Gpu;
pub use model_uri::{ModelUri, RemoteScheme, UriError};
pub use rollout::{CanarySettings, RolloutSettings};
pub use scaling::{
    BehaviorSettings, PanicSettings, PrometheusSettings, QuerySetting, QueryValue, RulesSettings,
    ScalingSettings, TargetSetting, TargetValue,
};
pub use schedule::ScheduleSetting;
pub use source::Source;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use pagoda_crds::{InferenceService, names, wire::ExecutorKind};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

use scaling::validate_scaling;

/// Why a spec cannot be served. Each message says what to change.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ValidateError {
    /// The API server always sets these; an object without them did not come from one.
    #[error("metadata.{0} is missing")]
    Metadata(&'static str),
    /// The name cannot be a Service's.
    #[error(
        "metadata.name {0:?} must be at most 63 lower-case letters, digits and hyphens, starting with a letter"
    )]
    Name(String),
    /// No source and no simulation.
    #[error(
        "model.source is required: say where the model lies, or set engine.executor to simulated"
    )]
    NoSource,
    /// The source cannot be read.
    #[error("model.source.uri: {0}")]
    Uri(#[from] UriError),
    /// The hash is no hash.
    #[error("model.source.sha256 must be 64 hexadecimal digits, as sha256sum prints them")]
    Sha256,
    /// A field that holds a quantity holds something else, or one out of bounds.
    #[error("{field} must be {expected}: {actual:?} is not")]
    Quantity {
        /// Path of the field.
        field: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What it holds.
        actual: String,
    },
    /// Bounds that cross.
    #[error(
        "scaling.minReplicas ({min}) is above scaling.maxReplicas ({max}): raise maxReplicas or lower minReplicas"
    )]
    Bounds {
        /// Fewest pods.
        min: u32,
        /// Most pods.
        max: u32,
    },
    /// A schedule that cannot be kept.
    #[error("scaling.schedules: {name}: {problem}")]
    Schedule {
        /// Its name.
        name: String,
        /// What is wrong with it, and what to write instead.
        problem: String,
    },
    /// A field holds what it cannot.
    #[error("{0}")]
    Field(&'static str),
    /// The overlay does not fit a PodSpec.
    #[error("podTemplate.spec does not fit a PodSpec: {0}")]
    PodTemplate(String),
    /// The overlay takes over what belongs to the operator.
    #[error("podTemplate may not set {0} of the container {1}: it belongs to the operator")]
    Owned(&'static str, String),
}

/// An InferenceService that can be built.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// `metadata.name`, a DNS label.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`, for owner references.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// Names that clients call the model by; at least one.
    pub model_names: Vec<String>,
    /// The model; none with the simulated executor, or with another server that brings its own.
    pub source: Option<Source>,
    /// GPUs, if any.
    pub gpu: Option<Gpu>,
    /// Requests and limits as the user wrote them.
    pub resources: Option<ResourceRequirements>,
    /// Class of the pods' runtime, if not the cluster's default.
    pub runtime_class_name: Option<String>,
    /// Label of nodes that names a domain of fast links, if pods are placed by one.
    pub domain_label: Option<String>,
    /// The engine's settings.
    pub engine: EngineSettings,
    /// Another server than Pagoda's engine.
    pub foreign: Option<ForeignEngine>,
    /// How many pods.
    pub scaling: ScalingSettings,
    /// Pods that the spec asks for now.
    pub replicas: u32,
    /// How a new revision takes over.
    pub rollout: RolloutSettings,
    /// Seconds that open requests get.
    pub drain_seconds: u32,
    /// What the user lays over the pods.
    pub overlay: Overlay,
}

/// What a user lays over the pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlay {
    /// Labels to add; none of the operator's.
    pub labels: BTreeMap<String, String>,
    /// Annotations to add; none of the operator's.
    pub annotations: BTreeMap<String, String>,
    /// Fields of the PodSpec.
    pub spec: Map<String, Value>,
}

/// Checks a whole object.
pub fn validate(object: &InferenceService) -> Result<Service, ValidateError> {
    let name = object
        .metadata
        .name
        .clone()
        .ok_or(ValidateError::Metadata("name"))?;
    check_name(&name)?;
    let spec = &object.spec;
    let simulated = spec.engine.executor == ExecutorKind::Simulated;
    let scaling = validate_scaling(&spec.scaling, spec.rollout.progress_deadline_seconds)?;
    Ok(Service {
        namespace: object
            .metadata
            .namespace
            .clone()
            .ok_or(ValidateError::Metadata("namespace"))?,
        uid: object
            .metadata
            .uid
            .clone()
            .ok_or(ValidateError::Metadata("uid"))?,
        generation: object.metadata.generation.unwrap_or_default(),
        model_names: if spec.model.names.is_empty() {
            vec![name.clone()]
        } else {
            spec.model.names.clone()
        },
        source: match &spec.model.source {
            _ if simulated => None,
            Some(source) => Some(source::validate(source)?),
            None if spec.engine.image.is_some() => None,
            None => return Err(ValidateError::NoSource),
        },
        gpu: hardware::gpu(&spec.hardware.accelerator)?,
        resources: hardware::resources(spec.hardware.resources.as_ref())?,
        runtime_class_name: hardware::runtime_class(&spec.hardware)?,
        domain_label: hardware::domain_label(&spec.hardware)?,
        engine: engine::settings(&spec.engine)?,
        foreign: engine::foreign(&spec.engine)?,
        replicas: replicas(spec.replicas, &scaling),
        scaling,
        rollout: rollout::validate(&spec.rollout)?,
        drain_seconds: spec.rollout.drain_seconds,
        overlay: validate_overlay(object)?,
        name,
    })
}

fn check_name(name: &str) -> Result<(), ValidateError> {
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    let ends = name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let holds = name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if starts && ends && holds && name.len() <= 63 {
        Ok(())
    } else {
        Err(ValidateError::Name(name.chars().take(80).collect()))
    }
}

/// The number of pods that the spec asks for. A service that nobody scaled yet starts with a pod even when it may go
/// to zero, so that its first status says whether the model loads.
fn replicas(asked: Option<i32>, scaling: &ScalingSettings) -> u32 {
    let asked = asked.map(|replicas| u32::try_from(replicas).unwrap_or(0));
    let wanted = asked.unwrap_or_else(|| scaling.min_replicas.max(1));
    if scaling.managed_by_pagoda {
        wanted.clamp(scaling.min_replicas, scaling.max_replicas)
    } else {
        wanted
    }
}

fn validate_overlay(object: &InferenceService) -> Result<Overlay, ValidateError> {
    let Some(template) = &object.spec.pod_template else {
        return Ok(Overlay::default());
    };
    let metadata = template.metadata.clone().unwrap_or_default();
    let spec = template.spec.clone().unwrap_or_default();
    let typed: PodSpec = serde_json::from_value(Value::Object(spec.clone()))
        .map_err(|e| ValidateError::PodTemplate(e.to_string()))?;
    let ours = [
        names::CONTAINER_ENGINE,
        names::CONTAINER_MODEL,
        names::CONTAINER_BINARY,
        names::CONTAINER_MODEL_LOCK,
    ];
    let all = typed
        .containers
        .iter()
        .chain(typed.init_containers.iter().flatten());
    for container in all.filter(|c| ours.contains(&c.name.as_str())) {
        let set = [
            ("image", container.image.is_some()),
            ("command", container.command.is_some()),
            ("args", container.args.is_some()),
        ];
        if let Some((field, _)) = set.into_iter().find(|(_, set)| *set) {
            return Err(ValidateError::Owned(field, container.name.clone()));
        }
    }
    let free =
        |map: BTreeMap<String, String>| map.into_iter().filter(|(key, _)| !reserved(key)).collect();
    Ok(Overlay {
        labels: free(metadata.labels),
        annotations: free(metadata.annotations),
        spec,
    })
}

fn reserved(key: &str) -> bool {
    key.starts_with(names::RESERVED_PREFIX)
        || [
            names::LABEL_APP,
            names::LABEL_MANAGED_BY,
            "pod-template-hash",
        ]
        .contains(&key)
}

/// The name of a Kubernetes object, or a domain.
fn is_object_name(name: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= 253
        && name.bytes().next().is_some_and(lower)
        && name.bytes().last().is_some_and(lower)
        && name.bytes().all(|b| lower(b) || b".-".contains(&b))
}
