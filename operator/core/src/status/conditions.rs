//! Conditions, and the transitions between them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{AUTOSCALING, MODEL_LOADED, READY};

/// A condition before it knows since when it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Draft {
    kind: &'static str,
    pub(super) status: String,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Draft {
    pub(super) fn new(kind: &'static str, status: &str, reason: &str, message: &str) -> Self {
        Self {
            kind,
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }
}

impl Draft {
    /// An earlier condition of the autoscaler once more, if it came of a look at metrics.
    pub(super) fn again(condition: &Condition) -> Option<Self> {
        let looked = ["FollowsMetrics", "AtMaximum", "NoMetrics", "PartialMetrics"];
        let keep = looked.contains(&condition.reason.as_str());
        keep.then(|| {
            Self::new(
                AUTOSCALING,
                &condition.status,
                &condition.reason,
                &condition.message,
            )
        })
    }
}

/// Gives each draft the time since when its status holds: an earlier condition's as long as the status is the same.
pub(super) fn settle(
    previous: &[Condition],
    drafts: Vec<Draft>,
    generation: i64,
    now: &Time,
) -> Vec<Condition> {
    let since = |draft: &Draft| {
        let earlier = previous
            .iter()
            .find(|c| c.type_ == draft.kind && c.status == draft.status);
        earlier.map_or_else(|| now.clone(), |c| c.last_transition_time.clone())
    };
    let mut conditions: Vec<Condition> = drafts
        .into_iter()
        .map(|draft| Condition {
            last_transition_time: since(&draft),
            type_: draft.kind.to_owned(),
            status: draft.status,
            reason: draft.reason,
            message: draft.message,
            observed_generation: Some(generation),
        })
        .collect();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    conditions
}

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

/// What changed between two lists of conditions. Steps on the way to ready are no events; reaching it, failing and
/// recovering are.
pub fn transitions(previous: &[Condition], next: &[Condition]) -> Vec<Transition> {
    let find = |list: &'_ [Condition], kind: &str| list.iter().find(|c| c.type_ == kind).cloned();
    let changed = |kind: &str| {
        let after = find(next, kind)?;
        let before = find(previous, kind);
        let same = before.is_some_and(|b| b.status == after.status && b.reason == after.reason);
        (!same).then_some(after)
    };
    let on_the_way = ["Starting", "Fetching", "Loading", "RollingOut"];
    let ready = changed(READY)
        .filter(|c| !on_the_way.contains(&c.reason.as_str()))
        .map(|c| (c.status != "True", c));
    let loaded = changed(MODEL_LOADED)
        .filter(|c| c.status == "True")
        .map(|c| (false, c));
    let blind = ["NoMetrics", "PartialMetrics"];
    let scaling = changed(AUTOSCALING)
        .filter(|c| blind.contains(&c.reason.as_str()))
        .map(|c| (true, c));
    let all = [loaded, ready, scaling].into_iter().flatten();
    all.map(|(warning, c)| Transition {
        warning,
        reason: c.reason,
        message: c.message,
    })
    .collect()
}
