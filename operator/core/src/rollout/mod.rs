//! How pods move from one revision to the next: a state machine over what is seen, and over what the status last said.
//!
//! # Guarantees
//! - Applying a plan twice changes nothing; a service at rest gets an empty one.
//! - A revision that does not become ready never takes the pods of the one before it: under Surge it gets
//!   `max(1, R/4)` pods beside them; under TerminateFirst and Canary it is given up, once its pods say that they cannot run, have
//!   failed a few times while nobody answers, or the deadline is over, and the one before is brought back whole.
//! - Under Surge there are never more than `R + max(1, R/4)` pods that stay, under TerminateFirst never more than `R` that
//!   hold anything, however late old ones end.
//! - The Deployment of a revision that served is kept until the next one serves as a whole, and deleted only when it has no pods:
//!   those on their way out finish their streams.
//!
//! What a rollout must remember stands in `status.rollout` and `status.revision`; nothing else does, so a restarted
//! operator goes on where the last one was.

mod canary;
mod cast;
mod gate;
mod olds;
mod seen;
mod surge;
mod terminate_first;
#[cfg(test)]
mod tests;

pub use gate::{GateReadings, GateWindow, RevisionReading, RevisionReadings};
pub use seen::{DeploymentView, PrefetchSeen, RevisionSeen, RolloutSeen};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pagoda_crds::api::{
    FailedRevision, InferenceServiceStatus, RolloutPhase, RolloutStatus, RolloutStrategy,
};

use crate::validate::Service;
use cast::Cast;
use olds::Growth;

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Pods of the current spec's revision.
    pub target_replicas: u32,
    /// Other revisions' Deployments whose number of pods changes.
    pub scale: Vec<(String, u32)>,
    /// Other revisions' Deployments to delete, with the ConfigMap of the same name.
    pub delete: Vec<String>,
    /// Nodes that a prefetch Job should bring the model to; without, there should be no such Job.
    pub prefetch_nodes: Option<Vec<String>>,
    /// What `status.rollout` says.
    pub status: Option<RolloutStatus>,
    /// The revision that serves.
    pub current: Option<String>,
    /// Whether the next pod of the new revision has taken longer than it may.
    pub overdue: bool,
    /// When to look again although nothing happens.
    pub look_again_seconds: Option<u32>,
}

/// Numbers of pods that a phase wants.
struct Numbers {
    target: u32,
    /// Pods that other revisions should have in all.
    old: u32,
    growth: Growth,
}

/// Where the rollout stands.
enum Stage {
    /// None is under way: the target has all pods.
    Settled,
    /// No pods are wanted, and the target has not shown yet that it can serve.
    Frozen(RolloutStatus),
    /// One is under way, or was given up.
    Under(RolloutStatus),
}

/// Plans the next move.
pub fn plan(
    service: &Service,
    seen: &RolloutSeen<'_>,
    previous: &InferenceServiceStatus,
    now: &Time,
) -> Plan {
    let cast = Cast::of(service, seen, previous, now);
    match stage(&cast, previous) {
        Stage::Settled => settled(&cast),
        Stage::Frozen(status) => {
            let none = Numbers {
                target: 0,
                old: 0,
                growth: Growth::Never,
            };
            carry_out(&cast, status, &none)
        }
        Stage::Under(status) => {
            let numbers = match status.phase {
                RolloutPhase::Surging => surge::numbers(&cast),
                RolloutPhase::TerminatingFirst => terminate_first::numbers(&cast),
                RolloutPhase::Canary => canary::numbers(&cast, &status),
                RolloutPhase::Prefetching => terminate_first::before(&cast),
                RolloutPhase::RolledBack => Numbers {
                    target: 0,
                    old: cast.wanted,
                    growth: Growth::Whole,
                },
            };
            carry_out(&cast, status, &numbers)
        }
    }
}

fn stage(cast: &Cast<'_>, previous: &InferenceServiceStatus) -> Stage {
    let going = previous
        .rollout
        .as_ref()
        .filter(|_| !cast.is_fresh && cast.main.is_some());
    let begins = cast.is_fresh && cast.olds.iter().any(|old| old.is_live());
    let Some(mut status) = going
        .map(|earlier| cast.continued(earlier))
        .or_else(|| begins.then(|| start(cast)))
    else {
        return Stage::Settled;
    };
    if status.phase == RolloutPhase::RolledBack {
        return Stage::Under(status);
    }
    if cast.wanted == 0 {
        return at_zero(cast, status);
    }
    if has_taken_over(cast, &status) {
        return Stage::Settled;
    }
    advance(cast, &mut status);
    if has_taken_over(cast, &status) {
        return Stage::Settled;
    }
    Stage::Under(status)
}

/// Pods enough do not end a canary: its share of a small service may be all of them.
fn has_taken_over(cast: &Cast<'_>, status: &RolloutStatus) -> bool {
    let ends = !matches!(
        status.phase,
        RolloutPhase::Canary | RolloutPhase::RolledBack
    );
    ends && cast.target_ready >= cast.wanted
}

/// The autoscaler took all pods in the middle of a rollout, or the spec changed while there were none.
fn at_zero(cast: &Cast<'_>, status: RolloutStatus) -> Stage {
    if cast.is_fresh || cast.target_ready > 0 {
        return Stage::Settled;
    }
    match cast.failure(&status) {
        Some(failed) => Stage::Under(rolled_back(&status, failed)),
        // What has slept is not late when it wakes.
        None => Stage::Frozen(RolloutStatus {
            progressed: None,
            ..status
        }),
    }
}

/// The first status of a rollout.
fn start(cast: &Cast<'_>) -> RolloutStatus {
    let strategy = cast.service.rollout.strategy;
    let mut status = RolloutStatus {
        phase: RolloutPhase::Surging,
        started: Some(cast.now.clone()),
        progressed: Some(cast.now.clone()),
        step: None,
        traffic: Vec::new(),
        failed: None,
    };
    match strategy {
        RolloutStrategy::TerminateFirst => terminate_first::begin(cast, &mut status),
        RolloutStrategy::Canary if canary::makes_sense(cast) => canary::begin(cast, &mut status),
        _ => {}
    }
    status
}

/// Takes the steps that are due.
fn advance(cast: &Cast<'_>, status: &mut RolloutStatus) {
    follow_strategy(cast, status);
    match (status.phase, cast.failure(status)) {
        // The old revision goes on beside it, and pods are not ended for one that cannot run.
        (RolloutPhase::Surging, Some(_)) => return,
        (_, Some(failed)) => {
            *status = rolled_back(status, failed);
            return;
        }
        (_, None) => {}
    }
    match status.phase {
        RolloutPhase::Surging if surge::has_no_room(cast) => {
            terminate_first::begin(cast, status);
        }
        RolloutPhase::Prefetching => {
            if let Some(failed) = terminate_first::prefetched(cast, status) {
                *status = rolled_back(status, failed);
            }
        }
        RolloutPhase::Canary => {
            if let Some(failed) = canary::advance(cast, status) {
                *status = rolled_back(status, failed);
            }
        }
        _ => {}
    }
}

/// A user may change the strategy while a rollout is stuck.
fn follow_strategy(cast: &Cast<'_>, status: &mut RolloutStatus) {
    use RolloutPhase::{Canary, Prefetching, Surging, TerminatingFirst};
    let ends_first = matches!(status.phase, Prefetching | TerminatingFirst);
    match cast.service.rollout.strategy {
        RolloutStrategy::TerminateFirst if !ends_first => terminate_first::begin(cast, status),
        RolloutStrategy::Surge if status.phase != Surging => surge::begin(cast, status),
        RolloutStrategy::Auto if status.phase == Canary => surge::begin(cast, status),
        RolloutStrategy::Canary if ends_first => surge::begin(cast, status),
        _ => {}
    }
}

fn rolled_back(status: &RolloutStatus, failed: FailedRevision) -> RolloutStatus {
    RolloutStatus {
        phase: RolloutPhase::RolledBack,
        started: status.started.clone(),
        progressed: status.progressed.clone(),
        step: status.step,
        traffic: Vec::new(),
        failed: Some(failed),
    }
}

/// The target has all pods, and what is left of others goes.
fn settled(cast: &Cast<'_>) -> Plan {
    let mut plan = Plan {
        target_replicas: cast.wanted,
        current: Some(cast.seen.target.to_owned()),
        ..Plan::default()
    };
    for old in &cast.olds {
        move_old(&mut plan, old, 0, false);
    }
    plan
}

fn carry_out(cast: &Cast<'_>, status: RolloutStatus, numbers: &Numbers) -> Plan {
    let prefetches = status.phase == RolloutPhase::Prefetching && cast.wanted > 0;
    let rolled_back = status.phase == RolloutPhase::RolledBack;
    let mut plan = Plan {
        target_replicas: numbers.target,
        prefetch_nodes: prefetches.then(|| cast.old_nodes()),
        current: cast.main.map(|main| main.revision.clone()),
        overdue: !rolled_back && cast.is_overdue(&status),
        look_again_seconds: cast.look_again(&status),
        status: Some(status),
        ..Plan::default()
    };
    let wanted = olds::distribute(cast, numbers.old, numbers.growth);
    for (old, wanted) in cast.olds.iter().zip(wanted) {
        move_old(&mut plan, old, wanted, cast.is_main(old));
    }
    plan
}

fn move_old(plan: &mut Plan, old: &RevisionSeen, wanted: u32, keep: bool) {
    if old.spec_replicas != wanted {
        plan.scale.push((old.deployment_name.clone(), wanted));
    } else if wanted == 0 && old.existing() == 0 && !keep {
        plan.delete.push(old.deployment_name.clone());
    }
}
