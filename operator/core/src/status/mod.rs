//! What a service's status says: computed from what was applied and what was seen, never from hope.
//!
//! `Ready` speaks of the pods of the current spec alone. It is true at zero replicas, because the gateway wakes a
//! service for its next request, and it stays true while the autoscaler adds pods to ones that answer. Messages hold
//! nothing that changes by itself, so that a service at rest is written by nobody.

mod conditions;
mod pods;
#[cfg(test)]
mod tests;

pub use conditions::{Transition, transitions};
pub use pods::PodView;

use k8s_openapi::{
    api::apps::v1::Deployment,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use pagoda_crds::{
    api::{InferenceServiceStatus, LastDecision, ModelStatus, ScalingStatus},
    wire::ModelInfo,
};

use crate::{autoscale::Reason, build::selector_text, validate::Service};
use conditions::{Draft, settle};
use pods::Diagnosis;

/// Condition that the pods of the current spec answer.
pub const READY: &str = "Ready";
/// Condition that a pod has loaded the model.
pub const MODEL_LOADED: &str = "ModelLoaded";
/// Condition that the number of pods follows its metrics.
pub const AUTOSCALING: &str = "Autoscaling";
/// Condition, present while true, that the operator is at work.
pub const RECONCILING: &str = "Reconciling";
/// Condition, present while true, that only a change by somebody else helps.
pub const STALLED: &str = "Stalled";

/// What was seen of a service.
#[derive(Clone, Debug, Default)]
pub struct Observed<'a> {
    /// Its Deployment.
    pub deployment: Option<&'a Deployment>,
    /// Its pods.
    pub pods: Vec<PodView>,
    /// Facts of the model, as a ready pod told them.
    pub model: Option<ModelInfo>,
    /// What the autoscaler thinks.
    pub autoscaling: Autoscaling,
    /// Base address of the gateway.
    pub gateway_url: &'a str,
}

/// What the autoscaler thinks of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Autoscaling {
    /// Reason of its last decision; none before the first.
    pub reason: Option<Reason>,
    /// The last time that it changed the number of pods; none since the operator started.
    pub last_change: Option<LastDecision>,
}

/// Why nothing could be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// CamelCase word.
    pub reason: &'static str,
    /// What to change.
    pub message: String,
}

/// Status of a service whose children were applied.
pub fn status(
    service: &Service,
    revision: &str,
    seen: &Observed<'_>,
    previous: &InferenceServiceStatus,
    now: &Time,
) -> InferenceServiceStatus {
    let census = Census::count(&seen.pods, revision);
    let health = health(service, seen, &census);
    let autoscaled = previous.conditions.iter().find(|c| c.type_ == AUTOSCALING);
    let mut drafts = vec![
        health.ready.clone(),
        model_loaded(service, &census, &health),
        autoscaling(service, &seen.autoscaling, autoscaled),
    ];
    drafts.extend(progress(&health));
    InferenceServiceStatus {
        revision: None,
        rollout: None,
        load: None,
        fetch: None,
        observed_generation: Some(service.generation),
        url: Some(seen.gateway_url.to_owned()),
        replicas: census.alive as i32,
        ready_replicas: census.ready as i32,
        selector: Some(selector_text(service)),
        model: seen
            .model
            .as_ref()
            .map(model_status)
            .or_else(|| previous.model.clone()),
        scaling: Some(ScalingStatus {
            desired_replicas: service.replicas as i32,
            last_decision: seen
                .autoscaling
                .last_change
                .clone()
                .or_else(|| previous.scaling.as_ref()?.last_decision.clone()),
        }),
        conditions: settle(&previous.conditions, drafts, service.generation, now),
    }
}

/// Status of a service of which nothing was applied: what ran before goes on, and is counted.
pub fn refused(
    generation: i64,
    refusal: &Refusal,
    pods: &[PodView],
    previous: &InferenceServiceStatus,
    now: &Time,
) -> InferenceServiceStatus {
    let census = Census::count(pods, "");
    let drafts = vec![
        Draft::new(READY, "False", refusal.reason, &refusal.message),
        Draft::new(STALLED, "True", refusal.reason, &refusal.message),
    ];
    let kept = previous
        .conditions
        .iter()
        .filter(|c| [MODEL_LOADED, AUTOSCALING].contains(&c.type_.as_str()))
        .cloned();
    let mut conditions = settle(&previous.conditions, drafts, generation, now);
    conditions.extend(kept);
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    InferenceServiceStatus {
        observed_generation: Some(generation),
        replicas: census.alive as i32,
        ready_replicas: census.ready as i32,
        conditions,
        ..previous.clone()
    }
}

/// Pods by what they are.
struct Census {
    /// Not leaving.
    alive: usize,
    /// Not leaving, and answering.
    ready: usize,
    /// Of the current revision and answering.
    current_ready: usize,
    /// Of an older revision, not leaving.
    old: usize,
    old_ready: usize,
    diagnosis: Option<Diagnosis>,
}

impl Census {
    fn count(pods: &[PodView], revision: &str) -> Self {
        let alive = || pods.iter().filter(|p| !p.leaving);
        let current = || alive().filter(|p| p.revision.as_deref() == Some(revision));
        let ready = alive().filter(|p| p.ready).count();
        let current_ready = current().filter(|p| p.ready).count();
        Self {
            alive: alive().count(),
            ready,
            current_ready,
            old: alive().count() - current().count(),
            old_ready: ready - current_ready,
            diagnosis: current()
                .filter(|p| !p.ready)
                .filter_map(PodView::diagnosis)
                .max(),
        }
    }
}

struct Health {
    ready: Draft,
    /// Only somebody else's change helps.
    stalled: bool,
    failure: Option<Diagnosis>,
}

fn health(service: &Service, seen: &Observed<'_>, census: &Census) -> Health {
    let sound = |ready: Draft| Health {
        ready,
        stalled: false,
        failure: None,
    };
    let draft =
        |status: &str, reason: &str, message: &str| Draft::new(READY, status, reason, message);
    if service.replicas == 0 {
        return sound(draft(
            "True",
            "ScaledToZero",
            "no pods run; the gateway starts one for the next request",
        ));
    }
    if census.current_ready == 0 {
        return unready(seen, census);
    }
    if census.old > 0 {
        return sound(draft(
            "False",
            "RollingOut",
            "pods of the new revision are taking over from the old one",
        ));
    }
    if census.current_ready < service.replicas as usize {
        return sound(draft(
            "True",
            "PodsReady",
            "some pods answer, and more are on their way",
        ));
    }
    sound(draft("True", "PodsReady", "all pods answer"))
}

fn unready(seen: &Observed<'_>, census: &Census) -> Health {
    let replica_failure = seen.deployment.and_then(pods::replica_failure);
    let failure = census.diagnosis.clone().max(replica_failure);
    let progress = Diagnosis::starting();
    let worst = failure.clone().unwrap_or(progress);
    let mut message = worst.message.clone();
    if census.old_ready > 0 {
        message.push_str("; pods of the previous revision go on serving");
    }
    let deadline = seen.deployment.is_some_and(pods::past_deadline);
    Health {
        ready: Draft::new(READY, "False", &worst.reason, &message),
        stalled: worst.is_permanent() || deadline,
        failure: failure.filter(Diagnosis::is_failure),
    }
}

fn model_loaded(service: &Service, census: &Census, health: &Health) -> Draft {
    if census.current_ready > 0 {
        return Draft::new(MODEL_LOADED, "True", "Loaded", "a pod has loaded the model");
    }
    match &health.failure {
        Some(failure) => Draft::new(MODEL_LOADED, "False", &failure.reason, &failure.message),
        None if service.replicas == 0 => Draft::new(
            MODEL_LOADED,
            "Unknown",
            "ScaledToZero",
            "no pod runs that could load it",
        ),
        None => Draft::new(
            MODEL_LOADED,
            "False",
            &health.ready.reason,
            "no pod of the current spec has loaded the model yet",
        ),
    }
}

fn autoscaling(service: &Service, view: &Autoscaling, previous: Option<&Condition>) -> Draft {
    let draft = |status: &str, reason: &str, message: &str| {
        Draft::new(AUTOSCALING, status, reason, message)
    };
    let scaling = &service.scaling;
    if !scaling.managed_by_pagoda {
        return draft(
            "False",
            "ManagedExternally",
            "scaling.managedBy is External: the scale subresource sets the number of pods",
        );
    }
    if scaling.min_replicas == scaling.max_replicas {
        return draft(
            "False",
            "FixedReplicas",
            "scaling.minReplicas equals scaling.maxReplicas",
        );
    }
    match view.reason {
        // An operator that just started has not looked yet; what its predecessor saw stands until it has.
        None => previous
            .and_then(Draft::again)
            .unwrap_or_else(|| draft("Unknown", "Starting", "no decision was made yet")),
        Some(Reason::NoMetrics) => draft(
            "False",
            "NoMetrics",
            "neither gateway nor pods tell their load: the number of pods is held",
        ),
        Some(Reason::PartialMetrics) => draft(
            "False",
            "PartialMetrics",
            "not every gateway and pod tells its load: pods may be added, none are removed",
        ),
        Some(Reason::AtMaximum(_)) => draft(
            "True",
            "AtMaximum",
            "the load asks for more pods than scaling.maxReplicas allows",
        ),
        Some(_) => draft(
            "True",
            "FollowsMetrics",
            "the number of pods follows its metrics",
        ),
    }
}

fn progress(health: &Health) -> Option<Draft> {
    if health.stalled {
        Some(Draft::new(
            STALLED,
            "True",
            &health.ready.reason,
            &health.ready.message,
        ))
    } else if health.ready.status != "True" {
        Some(Draft::new(
            RECONCILING,
            "True",
            &health.ready.reason,
            &health.ready.message,
        ))
    } else {
        None
    }
}

fn model_status(model: &ModelInfo) -> ModelStatus {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    ModelStatus {
        bytes: signed(model.bytes),
        architecture: model.architecture.clone(),
        quantization: model.quantization.clone(),
        load_milliseconds: signed(model.load_milliseconds),
        executor: if model.simulated {
            "simulated".into()
        } else {
            model.executor.clone()
        },
    }
}
