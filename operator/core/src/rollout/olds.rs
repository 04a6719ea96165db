//! How the pods that are left to older revisions are shared out among them.

use super::{RevisionSeen, cast::Cast};

/// Whether the revision that serves may get more pods than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// It gets no more.
    Never,
    /// It fills what the others leave.
    Gap,
    /// It gets all; the others stay as long as its pods are not ready.
    Whole,
}

/// Pods of each old revision, in the order of `cast.olds`: `need` in all. Revisions that do not serve go first, but not
/// their ready pods as long as nobody takes their place.
pub(super) fn distribute(cast: &Cast<'_>, need: u32, growth: Growth) -> Vec<u32> {
    let Some(main) = cast.main else {
        return vec![0; cast.olds.len()];
    };
    let others = || cast.olds.iter().filter(|old| !cast.is_main(old));
    let kept: u32 = others().map(|old| keepable(old)).sum();
    let gap = need.saturating_sub(kept);
    let of_main = match growth {
        Growth::Whole => need,
        Growth::Gap => main.usable().max(gap).min(need),
        Growth::Never => main.usable().min(need),
    };
    let mut left = match growth {
        Growth::Whole => need.saturating_sub(main.ready()),
        _ => need - of_main,
    };
    let each = |old: &&RevisionSeen| {
        if cast.is_main(old) {
            return of_main;
        }
        let wanted = keepable(old).min(left);
        left -= wanted;
        wanted
    };
    cast.olds.iter().map(each).collect()
}

/// Pods of a revision that is on its way out are worth keeping while they answer.
fn keepable(old: &RevisionSeen) -> u32 {
    old.ready().min(old.spec_replicas)
}
