//! Sets of byte ranges, and who fetches which of them.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges, merged where they touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Extents(BTreeMap<u64, u64>);

impl Extents {
    /// Adds a range.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            (start, end) = (start.min(s), end.max(e));
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Where what begins at byte 0 ends.
    pub(crate) fn prefix_end(&self) -> u64 {
        self.0.get(&0).copied().unwrap_or(0)
    }

    /// The first stretch at or after `from` and before `end` that is not in the set.
    pub(crate) fn first_gap(&self, from: u64, end: u64) -> Option<Range<u64>> {
        let before = self.0.range(..=from).next_back();
        let start = before.map_or(from, |(_, &covered)| covered.max(from));
        let next = self.0.range(start..).next();
        let stop = next.map_or(end, |(&next, _)| next.min(end));
        (start < stop).then_some(start..stop)
    }
}

/// Which bytes are in place and which connection fetches which of the others.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    total: Option<u64>,
    piece_bytes: u64,
    done: Extents,
    claims: BTreeMap<usize, Range<u64>>,
}

impl Plan {
    /// A plan in which `done` is in place.
    pub(crate) fn new(total: Option<u64>, piece_bytes: u64, done: Extents) -> Self {
        Self {
            total,
            piece_bytes: piece_bytes.max(1),
            done,
            claims: BTreeMap::new(),
        }
    }

    pub(crate) fn total(&self) -> Option<u64> {
        self.total
    }

    pub(crate) fn prefix_end(&self) -> u64 {
        self.done.prefix_end()
    }

    /// Whether any byte is in place.
    pub(crate) fn has_done(&self) -> bool {
        self.done.bytes() > 0
    }

    /// The claim of a connection, if it has one.
    pub(crate) fn claimed_by(&self, connection: usize) -> Option<Range<u64>> {
        self.claims.get(&connection).cloned()
    }

    /// Gives a connection the first piece that nobody has; the whole rest while the length is not known.
    pub(crate) fn claim(&mut self, connection: usize) -> Option<Range<u64>> {
        self.claim_from(connection, 0)
    }

    /// Gives a connection the piece at `at`, where its stream is, unless somebody has that.
    pub(crate) fn extend(&mut self, connection: usize, at: u64) -> Option<Range<u64>> {
        let next = self.taken().first_gap(at, self.end());
        if next.is_none_or(|gap| gap.start != at) {
            return None;
        }
        self.claim_from(connection, at)
    }

    fn claim_from(&mut self, connection: usize, from: u64) -> Option<Range<u64>> {
        let mut piece = self.taken().first_gap(from, self.end())?;
        if self.total.is_some() {
            let boundary = (piece.start / self.piece_bytes + 1).saturating_mul(self.piece_bytes);
            piece.end = piece.end.min(boundary);
        }
        self.claims.insert(connection, piece.clone());
        Some(piece)
    }

    /// Whether there is work for one more connection.
    pub(crate) fn has_unclaimed(&self) -> bool {
        self.taken().first_gap(0, self.end()).is_some()
    }

    /// The connection has brought its claim up to `to` into place.
    pub(crate) fn advance(&mut self, connection: usize, to: u64) {
        if let Some(claim) = self.claims.get_mut(&connection) {
            let to = to.min(claim.end);
            self.done.insert(claim.start..to);
            claim.start = to.max(claim.start);
            if claim.is_empty() {
                self.claims.remove(&connection);
            }
        }
    }

    /// The connection gives up what it has not fetched.
    pub(crate) fn release(&mut self, connection: usize) {
        self.claims.remove(&connection);
    }

    /// The length is known now. A claim to the whole rest becomes one to a piece.
    pub(crate) fn set_total(&mut self, total: u64, piece_bytes: u64) {
        let piece_bytes = piece_bytes.max(1);
        (self.total, self.piece_bytes) = (Some(total), piece_bytes);
        for claim in self.claims.values_mut() {
            let boundary = (claim.start / piece_bytes + 1).saturating_mul(piece_bytes);
            claim.end = claim.end.min(total).min(boundary).max(claim.start);
        }
        self.claims.retain(|_, claim| !claim.is_empty());
    }

    fn end(&self) -> u64 {
        self.total.unwrap_or(u64::MAX)
    }

    fn taken(&self) -> Extents {
        let mut taken = self.done.clone();
        for claim in self.claims.values() {
            taken.insert(claim.clone());
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Extents, Plan};

    proptest! {
        #[test]
        fn extents_hold_exactly_the_bytes_that_were_put_in(
            ranges in prop::collection::vec((0_u64..60, 0_u64..12), 0..20),
            from in 0_u64..80,
        ) {
            let (mut extents, mut model) = (Extents::default(), [false; 80]);
            for (start, length) in ranges {
                extents.insert(start..start + length);
                (start..start + length).for_each(|byte| model[byte as usize] = true);
            }
            prop_assert_eq!(extents.bytes(), model.iter().filter(|set| **set).count() as u64);
            let prefix = model.iter().take_while(|set| **set).count() as u64;
            prop_assert_eq!(extents.prefix_end(), prefix);
            let start = (from..80).find(|byte| !model[*byte as usize]);
            let expected = start.map(|start| {
                start..(start..80).find(|byte| model[*byte as usize]).unwrap_or(80)
            });
            prop_assert_eq!(extents.first_gap(from, 80), expected);
        }

        #[test]
        fn no_byte_is_fetched_twice_and_none_is_left_out_whoever_fails(
            total in 0_u64..200,
            piece in 1_u64..40,
            steps in prop::collection::vec((0_usize..4, 0_u64..50, any::<bool>()), 0..200),
        ) {
            let mut plan = Plan::new(Some(total), piece, Extents::default());
            let mut fetched = vec![0_u32; total as usize];
            let finishing = (0..1000).map(|_| (0, u64::MAX, false));
            for (connection, bytes, fails) in steps.into_iter().chain(finishing) {
                let claim = plan.claimed_by(connection).or_else(|| plan.claim(connection));
                let Some(claim) = claim else {
                    // Whoever is left over gives back what it has.
                    (1..4).for_each(|other| plan.release(other));
                    continue;
                };
                prop_assert!(claim.start < claim.end && claim.end - claim.start <= piece);
                let to = claim.start.saturating_add(bytes).min(claim.end);
                (claim.start..to).for_each(|byte| fetched[byte as usize] += 1);
                plan.advance(connection, to);
                if fails {
                    plan.release(connection);
                }
            }
            prop_assert_eq!(plan.prefix_end(), total);
            prop_assert!(fetched.iter().all(|times| *times == 1), "{:?}", fetched);
        }
    }

    #[test]
    fn a_stream_goes_on_into_the_next_piece_only_while_that_is_free() {
        let mut plan = Plan::new(None, 10, Extents::default());
        assert_eq!(plan.claim(0), Some(0..u64::MAX));
        plan.set_total(35, 10);
        assert_eq!(plan.claimed_by(0), Some(0..10));
        assert_eq!(plan.claim(1), Some(10..20));
        plan.advance(0, 10);
        assert_eq!(plan.extend(0, 10), None);
        plan.release(1);
        assert_eq!(plan.extend(0, 10), Some(10..20));
        assert_eq!(plan.claim(1), Some(20..30));
        assert_eq!(plan.claim(2), Some(30..35));
        assert!(!plan.has_unclaimed());
    }
}
