//! What happens next: a pure function of the seed and the number of the step, so that a failure can be played again.
//!
//! A plan knows nothing of what came of earlier steps. Its actions are therefore such that they make sense in any state: to
//! create what is there changes it, to delete what is not there does nothing.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// After so many steps all faults stop, and everything has to come right.
pub const CALM_EVERY: u64 = 60;
/// Child kinds that bear the service's own name, under which somebody else's object can lie.
pub const FOREIGN_KINDS: usize = 2;
/// Kinds of children in all.
pub const CHILD_KINDS: usize = 5;

/// One of the two operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The first.
    A,
    /// The second.
    B,
}

/// One thing that is done to the cluster or to the operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Faults end, and everything converges.
    Calm,
    /// A service is made, or gets another spec of the same kind.
    Create { slot: usize },
    /// Its pods get another annotation, its engine another setting.
    Change { slot: usize, mark: u32 },
    /// Its number of pods moves within what one node holds.
    Resize { slot: usize, pods: u32 },
    /// Deleted; its children follow by garbage collection.
    Delete { slot: usize },
    /// Deleted, and made anew under the same name before its children have gone.
    Recreate { slot: usize },
    /// One of its children is deleted.
    DeleteChild { slot: usize, kind: usize },
    /// One of its children is edited by somebody else.
    EditChild { slot: usize, kind: usize },
    /// A pod of it is deleted.
    DeletePod { slot: usize },
    /// Somebody else's object lies where a child would, and a service comes.
    Foreign { slot: usize, kind: usize },
    /// That object is removed by its owner.
    ForeignGone { slot: usize },
    /// A node disappears with its pods, and another comes.
    LoseNode { node: usize },
    /// A namespace may hold no new objects.
    Quota { namespace: usize },
    /// It may again.
    QuotaGone { namespace: usize },
    /// SIGKILL.
    Kill(Which),
    /// SIGTERM.
    Stop(Which),
    /// SIGSTOP for so long: shorter or longer than a lease lasts.
    Pause(Which, Duration),
    /// Every write but the lease's is answered so, for a while.
    Refuse(Which, u16, Duration),
    /// All watches are ended in one of four ways.
    StrikeWatches(Which, Strike),
    /// Requests are taken and never answered, for a while.
    Silence(Which, Duration),
    /// No connection is taken, for a while.
    Unreachable(Which, Duration),
    /// Requests reach the API server late, for a while.
    Slow(Which, Duration),
    /// Writes are done, and their answers lost, for a while.
    LoseAnswers(Which, Duration),
    /// The API server itself is killed and started again.
    KillApiServer,
}

/// How watches end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// In the middle of the stream.
    Cut,
    /// As one whose time is over.
    Close,
    /// With 410 Gone.
    Gone,
    /// Not at all: nothing comes any more.
    Freeze,
}

/// The sizes that a plan draws from.
#[derive(Debug, Clone, Copy)]
pub struct World {
    /// Services, of which each twentieth has its name contested.
    pub slots: usize,
    pub namespaces: usize,
    pub nodes: usize,
}

impl World {
    /// Whether somebody else's objects may lie under this service's name.
    pub fn is_contested(slot: usize) -> bool {
        slot % 20 == 19
    }
}

/// The `number`-th step of the plan of `seed`, and how long to wait after it.
pub fn step(seed: u64, number: u64, world: World) -> (Action, Duration) {
    let mut random = StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number);
    let wait = Duration::from_millis(random.random_range(20..400));
    if number % CALM_EVERY == CALM_EVERY - 1 {
        return (Action::Calm, wait);
    }
    let action = match random.random_range(0..100) {
        0..70 => on_service(&mut random, world),
        70..76 => on_surroundings(&mut random, world),
        _ => on_operator(&mut random),
    };
    (action, wait)
}

fn on_service(random: &mut StdRng, world: World) -> Action {
    let slot = random.random_range(0..world.slots);
    if World::is_contested(slot) {
        return if random.random_bool(0.6) {
            Action::Foreign {
                slot,
                kind: random.random_range(0..FOREIGN_KINDS),
            }
        } else {
            Action::ForeignGone { slot }
        };
    }
    let kind = random.random_range(0..CHILD_KINDS);
    match random.random_range(0..100) {
        0..20 => Action::Create { slot },
        20..45 => Action::Change {
            slot,
            mark: random.random_range(0..1000),
        },
        45..57 => Action::Resize {
            slot,
            pods: random.random_range(0..4),
        },
        57..65 => Action::Delete { slot },
        65..73 => Action::Recreate { slot },
        73..83 => Action::DeleteChild { slot, kind },
        83..95 => Action::EditChild { slot, kind },
        _ => Action::DeletePod { slot },
    }
}

fn on_surroundings(random: &mut StdRng, world: World) -> Action {
    let namespace = random.random_range(0..world.namespaces);
    match random.random_range(0..10) {
        0..4 => Action::Quota { namespace },
        4..8 => Action::QuotaGone { namespace },
        _ => Action::LoseNode {
            node: random.random_range(0..world.nodes),
        },
    }
}

fn on_operator(random: &mut StdRng) -> Action {
    let which = if random.random_bool(0.5) {
        Which::A
    } else {
        Which::B
    };
    let strike =
        [Strike::Cut, Strike::Close, Strike::Gone, Strike::Freeze][random.random_range(0..4)];
    let status = [409, 429, 500, 503][random.random_range(0..4)];
    let short = Duration::from_millis(random.random_range(500..6000));
    match random.random_range(0..100) {
        0..10 => Action::Kill(which),
        10..18 => Action::Stop(which),
        18..28 => Action::Pause(which, Duration::from_secs(random.random_range(1..25))),
        28..48 => Action::Refuse(which, status, short),
        48..68 => Action::StrikeWatches(which, strike),
        68..76 => Action::Silence(which, short),
        76..84 => Action::Unreachable(which, short),
        84..92 => Action::Slow(which, short),
        92..98 => Action::LoseAnswers(which, short),
        _ => Action::KillApiServer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::mem::discriminant;

    const WORLD: World = World {
        slots: 200,
        namespaces: 4,
        nodes: 6,
    };

    proptest! {
        #[test]
        fn a_step_is_the_same_whenever_it_is_asked_for(seed: u64, number: u64) {
            prop_assert_eq!(step(seed, number, WORLD), step(seed, number, WORLD));
        }

        #[test]
        fn every_plan_comes_to_calm_again_and_again(seed: u64, from in 0_u64..1_000_000) {
            let calms = (from..from + CALM_EVERY).filter(|n| step(seed, *n, WORLD).0 == Action::Calm);
            prop_assert_eq!(calms.count(), 1);
        }

        #[test]
        fn only_contested_names_meet_foreign_objects_and_nothing_else(seed: u64, number: u64) {
            let contested = match step(seed, number, WORLD).0 {
                Action::Foreign { slot, .. } | Action::ForeignGone { slot } => Some((slot, true)),
                Action::Create { slot } | Action::Delete { slot } | Action::Recreate { slot }
                | Action::EditChild { slot, .. } | Action::DeleteChild { slot, .. } => Some((slot, false)),
                _ => None,
            };
            if let Some((slot, expected)) = contested {
                prop_assert_eq!(World::is_contested(slot), expected);
            }
        }
    }

    #[test]
    fn other_seeds_make_other_plans_and_a_long_plan_has_every_kind_of_action() {
        let plan = |seed| {
            (0..3000)
                .map(|n| step(seed, n, WORLD).0)
                .collect::<Vec<_>>()
        };
        assert_ne!(plan(1), plan(2));
        let kinds: HashSet<_> = plan(1).iter().map(discriminant).collect();
        assert_eq!(kinds.len(), 24);
    }
}
