//! A growing share of the requests for the new revision.

use pagoda_crds::api::{FailedRevision, RolloutPhase, RolloutStatus, TrafficShare};

use super::{
    Numbers,
    cast::Cast,
    gate::{Verdict, judge},
    olds::Growth,
    seen::seconds,
    surge,
};

/// Gateways are asked this often for what decides a step.
const LOOK_SECONDS: i64 = 5;

/// Without an old pod that answers there is nothing to compare with, and a revision that serves already is no canary.
pub(super) fn makes_sense(cast: &Cast<'_>) -> bool {
    cast.main.is_some_and(|main| main.ready() > 0) && cast.current != Some(cast.seen.target)
}

pub(super) fn begin(cast: &Cast<'_>, status: &mut RolloutStatus) {
    status.phase = RolloutPhase::Canary;
    enter(cast, status, 0);
}

fn enter(cast: &Cast<'_>, status: &mut RolloutStatus, step: usize) {
    status.step = i32::try_from(step).ok();
    status.progressed = Some(cast.now.clone());
    status.traffic = traffic(cast, percent(cast, step));
}

fn percent(cast: &Cast<'_>, step: usize) -> u32 {
    let steps = &cast.service.rollout.canary.steps;
    steps.get(step).or(steps.last()).copied().unwrap_or(1)
}

fn step(status: &RolloutStatus) -> usize {
    status
        .step
        .and_then(|step| usize::try_from(step).ok())
        .unwrap_or(0)
}

fn traffic(cast: &Cast<'_>, percent: u32) -> Vec<TrafficShare> {
    let target = TrafficShare {
        revision: cast.seen.target.to_owned(),
        pod_prefix: format!("{}-", cast.seen.target_name),
        percent: percent as i32,
    };
    let main = cast.main.map(|main| TrafficShare {
        revision: main.revision.clone(),
        pod_prefix: main.pod_prefix(),
        percent: 100 - percent as i32,
    });
    main.into_iter().chain([target]).collect()
}

/// The new revision gets its share of pods beside all of the old one's.
pub(super) fn numbers(cast: &Cast<'_>, status: &RolloutStatus) -> Numbers {
    Numbers {
        target: share(cast, status),
        old: cast.wanted,
        growth: Growth::Whole,
    }
}

fn share(cast: &Cast<'_>, status: &RolloutStatus) -> u32 {
    let percent = percent(cast, step(status));
    (cast.wanted * percent).div_ceil(100).max(1)
}

/// Passes the step when its time is over and its gate opens; says what the gate has against the revision.
pub(super) fn advance(cast: &Cast<'_>, status: &mut RolloutStatus) -> Option<FailedRevision> {
    let at = step(status);
    let gate = cast.seen.gate.filter(|gate| Some(gate.step) == status.step);
    let verdict = gate.map_or(Verdict::Open, |gate| {
        judge(&cast.service.rollout.canary, gate)
    });
    match verdict {
        Verdict::Fail(reason, message) => {
            return Some(FailedRevision {
                revision: cast.seen.target.to_owned(),
                reason: reason.to_owned(),
                message,
            });
        }
        Verdict::Pass if is_over(cast, status) => {
            if at + 1 < cast.service.rollout.canary.steps.len() {
                enter(cast, status, at + 1);
            } else {
                surge::begin(cast, status);
            }
        }
        Verdict::Pass | Verdict::Open => {}
    }
    None
}

/// A step lasts its time from when all of its pods are ready.
fn is_over(cast: &Cast<'_>, status: &RolloutStatus) -> bool {
    cast.target_ready >= share(cast, status) && left(cast, status) <= 0
}

fn left(cast: &Cast<'_>, status: &RolloutStatus) -> i64 {
    let so_far = status
        .progressed
        .as_ref()
        .map_or(0, |since| seconds(since, cast.now));
    i64::from(cast.service.rollout.canary.step_seconds) - so_far
}

/// A gate may fail at any moment of its step, so it is looked at again and again.
pub(super) fn due_in(cast: &Cast<'_>, status: &RolloutStatus) -> Option<i64> {
    let runs = status.phase == RolloutPhase::Canary && cast.wanted > 0;
    runs.then(|| match left(cast, status) {
        left if left > 0 => left.min(LOOK_SECONDS),
        _ => LOOK_SECONDS,
    })
}
