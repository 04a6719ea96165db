//! What a service's status says: computed from what was applied and what was seen, never from hope.
//!
//! `Ready` speaks of the pods of the current spec alone. It is true at zero replicas, because the gateway wakes a
//! service for its next request, and it stays true while the autoscaler adds pods to ones that answer. Messages hold
//! nothing that changes by itself, so that a service at rest is written by nobody.

mod autoscaling;
mod capacity;
mod conditions;
mod events;
mod health;
mod load;
mod routes;
#[cfg(test)]
mod tests;

pub use crate::pods::PodView;
pub use autoscaling::{Autoscaling, Standing};
pub use capacity::told as told_capacity;
pub use events::{Transition, transitions};
pub use load::{LoadMeter, LoadReading};
pub use routes::{Contested, NameIndex, RouteView};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pagoda_crds::{
    api::{FetchStatus, InferenceServiceStatus, ModelStatus, RevisionStatus},
    wire::{FetchProgress, ModelInfo},
};

use crate::{
    build::selector_text,
    placement::NoNodeFits,
    rollout::{DeploymentView, Plan},
    validate::Service,
};
use conditions::{Draft, settle};
use health::{Census, Health};

/// Condition that the pods of the current spec answer.
pub const READY: &str = "Ready";
/// Condition that a pod has loaded the model.
pub const MODEL_LOADED: &str = "ModelLoaded";
/// Condition that the number of pods follows its metrics.
pub const AUTOSCALING: &str = "Autoscaling";
/// Condition that the gateways know the service, and that its names are its own.
pub const ROUTES_READY: &str = "RoutesReady";
/// Condition, present while true, that the operator is at work.
pub const RECONCILING: &str = "Reconciling";
/// Condition, present while true, that only a change by somebody else helps.
pub const STALLED: &str = "Stalled";

/// What was seen of a service.
#[derive(Clone, Debug, Default)]
pub struct Observed<'a> {
    /// What its rollout does.
    pub plan: Option<&'a Plan>,
    /// The Deployment of the current spec's revision.
    pub deployment: Option<&'a DeploymentView>,
    /// Its pods, of all revisions.
    pub pods: &'a [PodView],
    /// Why no node could ever hold a pod, if that is so.
    pub placement: Option<&'a NoNodeFits>,
    /// What gateways know of it; none before they were asked.
    pub routes: Option<RouteView>,
    /// How far pods that fetch the model have come, as they told.
    pub fetching: &'a [FetchProgress],
    /// What pods carry, when a window of it was measured just now.
    pub load: Option<LoadReading>,
    /// Facts of the model, as a ready pod told them.
    pub model: Option<ModelInfo>,
    /// What the autoscaler thinks.
    pub autoscaling: Autoscaling,
    /// Base address of the gateway.
    pub gateway_url: &'a str,
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
    let census = Census::count(seen.pods, revision);
    let health = Health::of(service, seen, &census);
    let earlier = |kind: &str| previous.conditions.iter().find(|c| c.type_ == kind);
    let mut drafts = vec![
        health.ready.clone(),
        health.model_loaded(service, &census),
        autoscaling::autoscaling(service, seen, earlier(AUTOSCALING), now),
        routes::routes_ready(seen.routes.as_ref(), earlier(ROUTES_READY)),
    ];
    drafts.extend(health.progress());
    InferenceServiceStatus {
        revision: seen.plan.map_or_else(
            || previous.revision.clone(),
            |plan| {
                Some(RevisionStatus {
                    current: plan.current.clone(),
                    updated: revision.to_owned(),
                })
            },
        ),
        rollout: seen.plan.and_then(|plan| plan.status.clone()),
        load: load::load(service, seen.load, previous.load.as_ref()),
        fetch: fetch(seen, revision, previous),
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
        scaling: Some(autoscaling::scaling(
            service,
            &seen.autoscaling,
            previous.scaling.as_ref(),
        )),
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
    unapplied(STALLED, generation, refusal, pods, previous, now)
}

/// The same of a service whose children could not be applied for a while: that may pass by itself.
pub fn failing(
    generation: i64,
    refusal: &Refusal,
    pods: &[PodView],
    previous: &InferenceServiceStatus,
    now: &Time,
) -> InferenceServiceStatus {
    unapplied(RECONCILING, generation, refusal, pods, previous, now)
}

fn unapplied(
    progress: &'static str,
    generation: i64,
    refusal: &Refusal,
    pods: &[PodView],
    previous: &InferenceServiceStatus,
    now: &Time,
) -> InferenceServiceStatus {
    let census = Census::count(pods, "");
    let drafts = vec![
        Draft::new(READY, "False", refusal.reason, &refusal.message),
        Draft::new(progress, "True", refusal.reason, &refusal.message),
    ];
    let kept = previous
        .conditions
        .iter()
        .filter(|c| [MODEL_LOADED, AUTOSCALING, ROUTES_READY].contains(&c.type_.as_str()))
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

/// Percent between two words about a fetch.
const FETCH_STEP_PERCENT: u64 = 5;

/// How far the pod has come that is furthest behind. What was told before stands while pods fetch that did not answer.
fn fetch(
    seen: &Observed<'_>,
    revision: &str,
    previous: &InferenceServiceStatus,
) -> Option<FetchStatus> {
    let progress = |p: &FetchProgress| {
        let total = p.total_bytes.filter(|total| *total > 0)?;
        let percent = u128::from(p.bytes.min(total)) * 100 / u128::from(total);
        Some((percent as u64, total))
    };
    if let Some((percent, total)) = seen.fetching.iter().filter_map(progress).min() {
        let steps = percent / FETCH_STEP_PERCENT * FETCH_STEP_PERCENT;
        return Some(FetchStatus {
            percent: steps as i32,
            total_bytes: i64::try_from(total).unwrap_or(i64::MAX),
        });
    }
    let fetches = |p: &PodView| p.fetching && p.revision.as_deref() == Some(revision);
    previous
        .fetch
        .clone()
        .filter(|_| seen.pods.iter().any(fetches))
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
