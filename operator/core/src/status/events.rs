//! What is worth an event: changes, and of those the ones that people want to hear of.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use pagoda_crds::api::{InferenceServiceStatus, RolloutPhase, RolloutStatus};

use super::{AUTOSCALING, MODEL_LOADED, READY, ROUTES_READY, Standing, health::step_words};

/// A change worth an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Whether a person should look.
    pub warning: bool,
    /// CamelCase word.
    pub reason: String,
    /// Sentence.
    pub message: String,
}

/// Reasons of a service on its way to ready.
const ON_THE_WAY: [&str; 6] = [
    "Starting",
    "Fetching",
    "Loading",
    "Prefetching",
    "RollingOut",
    "Canary",
];

/// What changed from one status to the next. Steps on the way to ready are no events, but for those of a canary; reaching
/// it, failing and recovering are.
pub fn transitions(
    previous: &InferenceServiceStatus,
    next: &InferenceServiceStatus,
) -> Vec<Transition> {
    let changed = |kind: &str| {
        let find = |list: &'_ [Condition]| list.iter().find(|c| c.type_ == kind).cloned();
        let after = find(&next.conditions)?;
        let before = find(&previous.conditions);
        let same = before.is_some_and(|b| b.status == after.status && b.reason == after.reason);
        (!same).then_some(after)
    };
    let told = |c: Condition, warning: bool| Transition {
        warning,
        reason: c.reason,
        message: c.message,
    };
    let loaded = changed(MODEL_LOADED)
        .filter(|c| c.status == "True")
        .map(|c| told(c, false));
    let ready = changed(READY)
        .filter(|c| !ON_THE_WAY.contains(&c.reason.as_str()))
        .map(|c| {
            let warning = c.status != "True";
            told(c, warning)
        });
    let hindered = changed(AUTOSCALING)
        .filter(|c| Standing::is_bad(&c.reason))
        .map(|c| told(c, true));
    let contested = changed(ROUTES_READY)
        .filter(|c| c.reason == "NameContested")
        .map(|c| told(c, true));
    let rollout = next.rollout.as_ref();
    let moved = rollout.and_then(|next| moved(previous.rollout.as_ref(), next));
    let fetching = fetching(previous, next);
    let all = [loaded, ready, hindered, contested, moved, fetching];
    all.into_iter().flatten().collect()
}

/// A canary's next step, and the moment from which old pods end first.
fn moved(previous: Option<&RolloutStatus>, next: &RolloutStatus) -> Option<Transition> {
    let before = previous.map(|p| (p.phase, p.step));
    if before == Some((next.phase, next.step)) {
        return None;
    }
    let (reason, message) = match next.phase {
        RolloutPhase::Canary => ("CanaryStep", step_words(next, None)),
        RolloutPhase::TerminatingFirst => (
            "TerminatingFirst",
            "old pods end before new ones start".to_owned(),
        ),
        RolloutPhase::Prefetching => (
            "Prefetching",
            "the model is brought to the nodes while the old revision serves".to_owned(),
        ),
        RolloutPhase::Surging | RolloutPhase::RolledBack => return None,
    };
    Some(Transition {
        warning: false,
        reason: reason.to_owned(),
        message,
    })
}

fn fetching(
    previous: &InferenceServiceStatus,
    next: &InferenceServiceStatus,
) -> Option<Transition> {
    let fetch = next.fetch.as_ref().filter(|_| previous.fetch.is_none())?;
    Some(Transition {
        warning: false,
        reason: "Fetching".to_owned(),
        message: format!("the model is being fetched: {} bytes", fetch.total_bytes),
    })
}
