//! Conditions, and since when they hold.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

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
    /// An earlier condition once more, if its reason is one that comes of a look.
    pub(super) fn again(
        kind: &'static str,
        condition: &Condition,
        looked: &[&str],
    ) -> Option<Self> {
        let keep = looked.contains(&condition.reason.as_str());
        keep.then(|| {
            let (reason, message) = (&condition.reason, &condition.message);
            Self::new(kind, &condition.status, reason, message)
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
