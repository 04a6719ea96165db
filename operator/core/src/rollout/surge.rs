//! New pods before old ones leave.

use pagoda_crds::api::{RolloutPhase, RolloutStatus, RolloutStrategy};

use super::{
    Numbers, RevisionSeen,
    cast::Cast,
    olds::Growth,
    seen::{count, seconds},
};

/// A scheduler that finds no node for so long is waiting for one to become free.
pub(super) const CROWDED_SECONDS: i64 = 10;

pub(super) fn begin(cast: &Cast<'_>, status: &mut RolloutStatus) {
    status.phase = RolloutPhase::Surging;
    status.progressed = Some(cast.now.clone());
    status.step = None;
    status.traffic.clear();
}

/// Old pods make up for new ones that do not answer; at most the budget of new ones is on its way at a time.
pub(super) fn numbers(cast: &Cast<'_>) -> Numbers {
    let ready = cast.target_ready.min(cast.wanted);
    let old = cast.wanted - ready;
    let room = (cast.wanted + cast.budget()).saturating_sub(cast.old_alive().max(old));
    let most = cast.wanted.min(ready + cast.budget());
    Numbers {
        target: cast.target_spec().max(room).min(most),
        old,
        growth: Growth::Gap,
    }
}

/// Whether new pods wait for room that old ones hold.
pub(super) fn has_no_room(cast: &Cast<'_>) -> bool {
    waits_for_room(cast) && (is_refused(cast) || crowded_for(cast) >= Some(CROWDED_SECONDS))
}

/// Ending old pods helps only where a new one fits a node at all.
fn waits_for_room(cast: &Cast<'_>) -> bool {
    cast.service.rollout.strategy == RolloutStrategy::Auto
        && cast.seen.fits
        && cast.old_existing() > 0
}

fn is_refused(cast: &Cast<'_>) -> bool {
    cast.target
        .is_some_and(|t| t.is_refused && count(t.alive()) < t.spec_replicas)
}

/// For how long the scheduler has found no node for a new pod.
fn crowded_for(cast: &Cast<'_>) -> Option<i64> {
    let pods = cast.target.into_iter().flat_map(RevisionSeen::alive);
    let since = pods.filter_map(|p| p.unschedulable_since.as_ref()).min()?;
    Some(seconds(since, cast.now))
}

/// Seconds until a pod has waited long enough.
pub(super) fn crowded_in(cast: &Cast<'_>, status: &RolloutStatus) -> Option<i64> {
    let waits = status.phase == RolloutPhase::Surging && waits_for_room(cast);
    crowded_for(cast)
        .filter(|_| waits)
        .map(|so_far| CROWDED_SECONDS - so_far)
}
