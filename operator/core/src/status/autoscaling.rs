//! What the autoscaler does for a service.
//!
//! The condition speaks of what holds for a while: its words hold no figure that moves by itself, and the autoscaler tells a new
//! standing only when it lasts. The figures of single decisions stand in `status.scaling.history` and in Events.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use pagoda_crds::api::{CapacityStatus, LastDecision, ScalingStatus};

use super::{AUTOSCALING, Observed, capacity::told as told_capacity, conditions::Draft};
use crate::{
    autoscale::{Decision, Reason},
    pods::{Diagnosis, PodView, Severity},
    validate::Service,
};

/// Changes that a status remembers.
const CHANGES: usize = 5;

/// Reasons that come of a look at metrics.
const LOOKED: [&str; 11] = [
    "FollowsMetrics",
    "AtMaximum",
    "NoMetrics",
    "PartialMetrics",
    "Panic",
    "Scheduled",
    "Forecast",
    "PodsNotReady",
    "TargetUnreachable",
    "WaitsForColdStart",
    "ConflictingScaler",
];

/// What the autoscaler thinks of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Autoscaling {
    /// What its looks come to; none before the first.
    pub standing: Option<Standing>,
    /// Its latest changes of the number of pods since the operator started, newest first.
    pub changes: Vec<LastDecision>,
    /// What pods were seen to carry; none before anything was learned.
    pub capacity: Option<Vec<CapacityStatus>>,
}

/// What looks at a service come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The number of pods follows its metrics.
    Follows,
    /// They ask for more than the maximum.
    AtMaximum,
    /// Nobody tells anything.
    NoMetrics,
    /// Somebody does not tell his part.
    PartialMetrics,
    /// A burst is answered.
    Panic,
    /// A schedule's minimum holds.
    Scheduled {
        /// Its name.
        schedule: Arc<str>,
        /// Its minimum.
        min_replicas: u32,
    },
    /// Pods are there for what is foreseen.
    Forecast,
    /// Pods that were asked for do not get ready.
    PodsNotReady,
    /// No number of pods meets the target.
    Unreachable,
    /// Others start from zero first.
    WaitsForColdStart {
        /// How many may at once.
        most: usize,
    },
    /// Another scaler's doing, or a source of metrics at fault, in the words of whoever found it.
    Told {
        /// CamelCase word.
        reason: &'static str,
        /// Sentence.
        message: String,
    },
}

impl Standing {
    /// What a decision says of how things stand.
    pub fn of(decision: &Decision) -> Self {
        let inputs = &decision.inputs;
        match decision.reason {
            Reason::NoMetrics => Self::NoMetrics,
            Reason::PartialMetrics => Self::PartialMetrics,
            Reason::AtMaximum => Self::AtMaximum,
            Reason::Panic => Self::Panic,
            Reason::PodsNotReady => Self::PodsNotReady,
            Reason::Unreachable => Self::Unreachable,
            Reason::Forecast => Self::Forecast,
            Reason::Scheduled => Self::Scheduled {
                schedule: inputs.schedule.clone().unwrap_or_default(),
                min_replicas: inputs.min_replicas,
            },
            _ => Self::Follows,
        }
    }

    /// Whether a person should hear of it in an Event when it begins.
    pub(super) fn is_bad(reason: &str) -> bool {
        let fine = [
            "FollowsMetrics",
            "Panic",
            "Scheduled",
            "Forecast",
            "AtMaximum",
            "Starting",
            "ManagedExternally",
            "FixedReplicas",
            "WaitsForColdStart",
        ];
        !fine.contains(&reason)
    }
}

pub(super) fn autoscaling(
    service: &Service,
    seen: &Observed<'_>,
    previous: Option<&Condition>,
    now: &Time,
) -> Draft {
    let draft = |status: &str, reason: &str, message: &str| {
        Draft::new(AUTOSCALING, status, reason, message)
    };
    let scaling = &service.scaling;
    if let Some(Standing::Told { reason, message }) = &seen.autoscaling.standing
        && (!scaling.managed_by_pagoda || scaling.is_fixed())
    {
        return draft("False", reason, message);
    }
    if !scaling.managed_by_pagoda {
        return draft(
            "False",
            "ManagedExternally",
            "scaling.managedBy is External: the scale subresource sets the number of pods",
        );
    }
    if scaling.is_fixed() {
        return draft(
            "False",
            "FixedReplicas",
            "scaling.minReplicas equals scaling.maxReplicas",
        );
    }
    match &seen.autoscaling.standing {
        // An operator that just started has not looked yet; what its predecessor saw stands until it has.
        None => previous
            .and_then(|c| Draft::again(AUTOSCALING, c, &LOOKED))
            .unwrap_or_else(|| draft("Unknown", "Starting", "no decision was made yet")),
        Some(standing) => {
            let (status, reason, message) = words(standing, service, seen, now);
            draft(status, reason, &message)
        }
    }
}

fn words<'s>(
    standing: &'s Standing,
    service: &Service,
    seen: &Observed<'_>,
    now: &Time,
) -> (&'static str, &'s str, String) {
    let told = |status, reason, message: &str| (status, reason, message.to_owned());
    match standing {
        Standing::Follows => told(
            "True",
            "FollowsMetrics",
            "the number of pods follows its metrics",
        ),
        Standing::AtMaximum => told(
            "True",
            "AtMaximum",
            "the load asks for more pods than scaling.maxReplicas allows",
        ),
        Standing::NoMetrics => told(
            "False",
            "NoMetrics",
            "neither gateway nor pods tell their load: the number of pods is held",
        ),
        Standing::PartialMetrics => told(
            "False",
            "PartialMetrics",
            "not every gateway and pod tells its load: pods may be added, none are removed",
        ),
        Standing::Panic => told(
            "True",
            "Panic",
            "a burst asks for pods faster than scaling.behavior adds them: they are added at once, and none is removed until it is over",
        ),
        Standing::Scheduled {
            schedule,
            min_replicas,
        } => (
            "True",
            "Scheduled",
            format!("schedule {schedule} asks for at least {min_replicas} pods at this time"),
        ),
        Standing::Forecast => told(
            "True",
            "Forecast",
            "pods are started for the load that is foreseen of the time when they will have loaded",
        ),
        Standing::PodsNotReady => ("False", "PodsNotReady", not_ready(service, seen, now)),
        Standing::Unreachable => told(
            "False",
            "TargetUnreachable",
            "the latency target cannot be met by any number of pods: even an idle one takes longer; raise scaling.targets.milliseconds, or use faster hardware",
        ),
        Standing::WaitsForColdStart { most } => (
            "True",
            "WaitsForColdStart",
            format!(
                "requests wait, and the service with them: at most {most} services start from zero at once in this cluster (chart value operator.maxColdStarts), and others came first"
            ),
        ),
        Standing::Told { reason, message } => ("False", reason, message.clone()),
    }
}

/// How many pods do not get ready, since when, and why, as quota, scheduler or the pods themselves say.
fn not_ready(service: &Service, seen: &Observed<'_>, now: &Time) -> String {
    let alive = || seen.pods.iter().filter(|pod| !pod.leaving);
    let late: Vec<&PodView> = alive().filter(|pod| !pod.ready).collect();
    let ready = alive().count() - late.len();
    let wanted = (service.replicas as usize).max(alive().count());
    let since = late.iter().filter_map(|pod| pod.created.as_ref()).min();
    let since = since
        .filter(|since| *since <= now)
        .map_or_else(String::new, |since| {
            format!(", the first of them since {}", since.0)
        });
    let deadline = service.rollout.progress_deadline_seconds;
    let mut message = format!(
        "{} of {wanted} pods do not get ready{since}, which is longer than rollout.progressDeadlineSeconds ({deadline}) allows: no more are added for them, and none are removed",
        wanted - ready,
    );
    if let Some(why) = obstacle(seen, &late) {
        message.push_str("; ");
        message.push_str(&why);
    }
    message
}

fn obstacle(seen: &Observed<'_>, late: &[&PodView]) -> Option<String> {
    let told = late.iter().filter_map(|pod| pod.diagnosis.as_ref()).max();
    let told = told.filter(|diagnosis| diagnosis.is_obstacle()).cloned();
    let refused = seen.deployment.and_then(|d| d.refused.as_ref());
    let refused = refused.map(|words| {
        Diagnosis::new(
            Severity::Waiting,
            "PodsRefused",
            format!("pods are refused: {words}"),
        )
    });
    told.max(refused).map(|diagnosis| diagnosis.message)
}

/// What the status says of the number of pods.
pub(super) fn scaling(
    service: &Service,
    seen: &Autoscaling,
    previous: Option<&ScalingStatus>,
) -> ScalingStatus {
    let earlier = previous.map_or(&[][..], |p| &p.history[..]);
    // Statuses of releases before the history have the last one alone.
    let last = previous.and_then(|p| p.last_decision.as_ref());
    let before = previous.map_or(&[][..], |p| &p.capacity[..]);
    let mut history = seen.changes.clone();
    for change in earlier.iter().chain(last) {
        if !history.contains(change) {
            history.push(change.clone());
        }
    }
    history.sort_by(|a, b| b.time.cmp(&a.time));
    history.truncate(CHANGES);
    ScalingStatus {
        desired_replicas: service.replicas as i32,
        last_decision: history.first().cloned(),
        history,
        capacity: match &seen.capacity {
            Some(now) => told_capacity(before, now.clone()),
            None => before.to_vec(),
        },
    }
}
