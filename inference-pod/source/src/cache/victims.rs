//! Who has to go: a decision over values.

use std::time::Duration;

/// Why an entry may not go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nothing holds it.
    Free,
    /// Somebody brings it.
    Downloading,
    /// Somebody has it open to serve.
    Serving,
}

/// An entry of the cache as far as the decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tenant {
    /// What it takes or may take.
    pub(crate) bytes: u64,
    /// Time since somebody asked for it.
    pub(crate) idle: Duration,
    /// Whether it is a whole model, rather than a part that nobody goes on with.
    pub(crate) is_whole: bool,
    pub(crate) hold: Hold,
}

impl Tenant {
    /// A pod that has just fetched a model takes a moment until it holds it.
    fn is_fresh(&self, protect: Duration) -> bool {
        self.is_whole && self.idle < protect
    }

    fn may_go(&self, protect: Duration) -> bool {
        self.bytes > 0 && self.hold == Hold::Free && !self.is_fresh(protect)
    }
}

/// Why there is no room even if all go that may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shortfall {
    pub(crate) missing: u64,
    pub(crate) serving: u64,
    pub(crate) downloading: u64,
    pub(crate) fresh: u64,
}

/// The entries to remove, by index, so that `must_free` bytes become free: the longest unasked first, and none where
/// all together are not enough.
pub(crate) fn victims(
    tenants: &[Tenant],
    must_free: u64,
    protect: Duration,
) -> Result<Vec<usize>, Shortfall> {
    let mut order: Vec<usize> = (0..tenants.len())
        .filter(|&index| tenants[index].may_go(protect))
        .collect();
    order.sort_by_key(|&index| std::cmp::Reverse(tenants[index].idle));
    let (mut chosen, mut freed) = (Vec::new(), 0_u64);
    for index in order {
        if freed >= must_free {
            break;
        }
        freed = freed.saturating_add(tenants[index].bytes);
        chosen.push(index);
    }
    if freed >= must_free {
        return Ok(chosen);
    }
    let sum = |keep: &dyn Fn(&Tenant) -> bool| {
        let kept = tenants.iter().filter(|tenant| keep(tenant));
        kept.fold(0_u64, |sum, tenant| sum.saturating_add(tenant.bytes))
    };
    Err(Shortfall {
        missing: must_free - freed,
        serving: sum(&|tenant| tenant.hold == Hold::Serving),
        downloading: sum(&|tenant| tenant.hold == Hold::Downloading),
        fresh: sum(&|tenant| tenant.hold == Hold::Free && tenant.is_fresh(protect)),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{Hold, Tenant, victims};

    const PROTECT: Duration = Duration::from_mins(10);

    fn tenant() -> impl Strategy<Value = Tenant> {
        let hold = prop_oneof![
            4 => Just(Hold::Free),
            1 => Just(Hold::Downloading),
            1 => Just(Hold::Serving)
        ];
        (0_u64..100, 0_u64..2000, any::<bool>(), hold).prop_map(|(bytes, idle, is_whole, hold)| {
            Tenant {
                bytes,
                idle: Duration::from_secs(idle),
                is_whole,
                hold,
            }
        })
    }

    proptest! {
        #[test]
        fn enough_goes_never_more_than_needed_and_never_what_is_held(
            tenants in prop::collection::vec(tenant(), 0..12),
            must_free in 0_u64..400,
        ) {
            let may_go = |tenant: &Tenant| {
                tenant.hold == Hold::Free && (!tenant.is_whole || tenant.idle >= PROTECT)
            };
            let available: u64 = tenants.iter().filter(|t| may_go(t)).map(|t| t.bytes).sum();
            match victims(&tenants, must_free, PROTECT) {
                Ok(chosen) => {
                    let freed: u64 = chosen.iter().map(|&index| tenants[index].bytes).sum();
                    prop_assert!(freed >= must_free);
                    prop_assert!(chosen.iter().all(|&index| may_go(&tenants[index])));
                    if let Some((&last, others)) = chosen.split_last() {
                        prop_assert!(freed - tenants[last].bytes < must_free, "one too many");
                        prop_assert!(others.iter().all(|&i| tenants[i].idle >= tenants[last].idle));
                    }
                    let stays = |index: &usize| !chosen.contains(index);
                    let least = chosen.iter().map(|&index| tenants[index].idle).min();
                    for index in (0..tenants.len()).filter(stays) {
                        let tenant = &tenants[index];
                        let is_older = least.is_some_and(|least| tenant.idle > least);
                        prop_assert!(!may_go(tenant) || !is_older || tenant.bytes == 0);
                    }
                }
                Err(shortfall) => {
                    prop_assert!(available < must_free);
                    prop_assert_eq!(shortfall.missing, must_free - available);
                }
            }
        }
    }
}
