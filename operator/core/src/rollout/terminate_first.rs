//! Old pods before new ones start, for clusters without room for both.

use pagoda_crds::api::{FailedRevision, RolloutPhase, RolloutStatus};

use super::{
    Numbers, PrefetchSeen, RevisionSeen,
    cast::Cast,
    olds::{Growth, distribute},
    seen::{count, seconds},
    surge,
};

/// The kubelet starts a container that ends again after 10, 20 and 40 seconds: three tries, and then some.
const FAILING_SECONDS: i64 = 90;

/// Begins with the prefetch where that makes the gap between old and new pods shorter.
pub(super) fn begin(cast: &Cast<'_>, status: &mut RolloutStatus) {
    surge::begin(cast, status);
    status.phase = if needs_prefetch(cast) {
        RolloutPhase::Prefetching
    } else {
        RolloutPhase::TerminatingFirst
    };
}

fn needs_prefetch(cast: &Cast<'_>) -> bool {
    let key = cast.seen.target_model_key;
    let old_key = cast.main.and_then(|main| main.model_key.as_deref());
    cast.seen.has_cache && key.is_some() && key != old_key && !cast.old_nodes().is_empty()
}

/// Goes on when the model is there; says why it cannot come.
pub(super) fn prefetched(cast: &Cast<'_>, status: &mut RolloutStatus) -> Option<FailedRevision> {
    match cast.seen.prefetch {
        PrefetchSeen::Failed { reason, message } => {
            return Some(FailedRevision {
                revision: cast.seen.target.to_owned(),
                reason: reason.clone(),
                message: message.clone(),
            });
        }
        PrefetchSeen::Done => {}
        // Old pods, or what they needed the model for, may be gone meanwhile.
        _ if !needs_prefetch(cast) => {}
        // The new pods can bring it themselves, which only takes longer.
        PrefetchSeen::Crowded { .. } if skipped_in(cast, status).is_some_and(|left| left <= 0) => {}
        PrefetchSeen::Absent | PrefetchSeen::Running | PrefetchSeen::Crowded { .. } => return None,
    }
    status.phase = RolloutPhase::TerminatingFirst;
    status.progressed = Some(cast.now.clone());
    None
}

/// Seconds until a prefetch that no node takes has waited long enough.
pub(super) fn skipped_in(cast: &Cast<'_>, status: &RolloutStatus) -> Option<i64> {
    match cast.seen.prefetch {
        PrefetchSeen::Crowded { since } if status.phase == RolloutPhase::Prefetching => {
            Some(surge::CROWDED_SECONDS - seconds(since, cast.now))
        }
        _ => None,
    }
}

/// Seconds until pods that fail have had their tries while nobody answers; `None` where somebody does, or none fails.
pub(super) fn given_up_in(cast: &Cast<'_>, status: &RolloutStatus) -> Option<i64> {
    let nobody = cast.target_ready == 0 && cast.olds.iter().all(|old| old.ready() == 0);
    let mut pods = cast.target.into_iter().flat_map(RevisionSeen::alive);
    let fails = pods.any(|p| p.failure().is_some());
    if status.phase != RolloutPhase::TerminatingFirst || !nobody || !fails {
        return None;
    }
    Some(FAILING_SECONDS - seconds(cast.waits_since(status)?, cast.now))
}

/// While the model is brought to the nodes, the old revision serves.
pub(super) fn before(cast: &Cast<'_>) -> Numbers {
    let target = cast.target_spec().min(cast.target_ready).min(cast.wanted);
    Numbers {
        target,
        old: cast.wanted - target,
        growth: Growth::Gap,
    }
}

/// Pods that answer may be fewer than wanted by the budget; new ones come only as old ones are gone for good.
pub(super) fn numbers(cast: &Cast<'_>) -> Numbers {
    let kept = kept(cast);
    if !cast.seen.fits {
        // The end of an old pod would make no room for a new one.
        return Numbers {
            target: kept,
            old: cast.wanted - kept,
            growth: Growth::Gap,
        };
    }
    let ready = cast.target_ready.min(cast.wanted);
    let old = (cast.wanted - ready).saturating_sub(cast.budget());
    let stay: u32 = distribute(cast, old, Growth::Never).iter().sum();
    // After a revert, pods of the target itself may still be on their way out.
    let leaving = cast
        .target
        .map_or(0, |t| t.existing().saturating_sub(count(t.alive())));
    let room = cast
        .wanted
        .saturating_sub(cast.old_existing().max(stay) + leaving);
    Numbers {
        target: kept.max(room),
        old,
        growth: Growth::Never,
    }
}

/// Pods of the target that have come so far that ending them helps nobody. One that no node takes yet holds nothing.
fn kept(cast: &Cast<'_>) -> u32 {
    let placed = |t: &RevisionSeen| t.without(|p| p.unschedulable_since.is_some());
    cast.target
        .map_or(0, placed)
        .max(cast.target_ready)
        .min(cast.wanted)
}
