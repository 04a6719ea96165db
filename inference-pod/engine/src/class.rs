//! How urgent a sequence is, and the one order that everything else follows.

use std::time::Duration;

use crate::sequence::SequenceId;

/// An SLA class: 0 is the most urgent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(pub u8);

/// A sequence's place among all others, smallest first: to run, and last to be preempted.
///
/// A sequence of class `c` competes as if it had arrived `c` times the ageing time later in class 0. So within that time
/// an urgent sequence goes first, and a patient one is overtaken only by those that arrive before its moment has come:
/// finitely many. The place never changes, so a queue stays sorted without anybody looking at the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    moment: Duration,
    /// Ids grow in order of arrival.
    pub(crate) id: SequenceId,
}

impl Rank {
    /// The place of a sequence that arrived at `arrived`; `handicap` is time that is added to its moment.
    pub(crate) fn new(
        arrived: Duration,
        class: Class,
        ageing: Duration,
        handicap: Duration,
        id: SequenceId,
    ) -> Self {
        let patience = ageing.saturating_mul(class.0.into());
        Self {
            moment: arrived.saturating_add(patience).saturating_add(handicap),
            id,
        }
    }
}

/// Sequences by [`Rank`].
#[derive(Debug, Default)]
pub(crate) struct Ranked(Vec<Rank>);

impl Ranked {
    pub(crate) fn insert(&mut self, rank: Rank) {
        let place = self.0.partition_point(|other| *other < rank);
        self.0.insert(place, rank);
    }

    pub(crate) fn remove(&mut self, rank: Rank) -> bool {
        let found = self.0.binary_search(&rank);
        if let Ok(place) = found {
            self.0.remove(place);
        }
        found.is_ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, place: usize) -> Option<Rank> {
        self.0.get(place).copied()
    }

    /// The one that is preempted first.
    pub(crate) fn last(&self) -> Option<Rank> {
        self.0.last().copied()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Rank> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AGEING: Duration = Duration::from_secs(10);

    fn rank(arrived: u64, class: u8, id: u64) -> Rank {
        Rank::new(
            Duration::from_secs(arrived),
            Class(class),
            AGEING,
            Duration::ZERO,
            SequenceId(id),
        )
    }

    #[test]
    fn an_urgent_sequence_overtakes_a_patient_one_until_that_has_aged() {
        assert!(rank(9, 0, 2) < rank(0, 1, 1));
        assert!(rank(11, 0, 2) > rank(0, 1, 1));
        assert!(rank(5, 3, 1) < rank(5, 3, 2), "first come, first served");
    }

    proptest! {
        #[test]
        fn whoever_arrives_after_a_sequence_has_aged_never_overtakes_it(
            arrived in 0u64..1000, class in 0u8..=255, later in 0u64..1000, other in 0u8..=255,
        ) {
            let aged = arrived + 10 * u64::from(class);
            prop_assert!(rank(aged + later, other, 2) > rank(arrived, class, 1));
        }

        #[test]
        fn a_queue_is_sorted_whatever_enters_and_leaves(ranks in prop::collection::vec((0u64..20, 0u8..4, any::<bool>()), 0..60)) {
            let mut queue = Ranked::default();
            let mut all = Vec::new();
            for (id, (arrived, class, leaves)) in (0..).zip(ranks) {
                let rank = rank(arrived, class, id);
                queue.insert(rank);
                all.push(rank);
                if leaves {
                    let gone = all.remove(all.len() / 2);
                    prop_assert!(queue.remove(gone) && !queue.remove(gone));
                }
                all.sort_unstable();
                prop_assert_eq!(queue.iter().collect::<Vec<_>>(), all.clone());
            }
        }
    }
}
