//! Who leaves the queue.

use std::time::Duration;

use super::{MAX_PASSED_OVER, Scheduler};
use crate::blocks::Found;
use crate::class::{Class, Rank};
use crate::plan::StepPlan;
use crate::sequence::SequenceId;

/// Waiting sequences without room that are looked at in one step: bounds the work of a step.
const MAX_LOOKED_AT: u32 = 64;

/// Steps that a sequence waits at most for another that computes what both begin with.
const MAX_HELD_BACK: u32 = 64;

/// What came of trying to admit a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Started,
    /// Another computes what it begins with: soon there is less to do.
    HeldBack,
    NoRoom,
}

impl Scheduler {
    /// Admits those that are more urgent than a prompt under way, before that takes the budget.
    pub(super) fn admit_urgent(&mut self, now: Duration, plan: &mut StepPlan) {
        let bound = self.last_prompt();
        if bound.is_some() {
            self.admit_before(bound, now, plan);
        }
    }

    /// The last prompt under way, and its class.
    fn last_prompt(&self) -> Option<(Rank, Class)> {
        let mut running = self.running.iter().rev();
        running.find_map(|rank| {
            let sequence = &self.sequences[&rank.id];
            (sequence.pending() > 1).then_some((rank, sequence.class))
        })
    }

    /// Admits whoever has room.
    pub(super) fn admit(&mut self, now: Duration, plan: &mut StepPlan) {
        self.admit_before(None, now, plan);
    }

    /// Admits in order; only those that go before `bound` and are more urgent, where there is one.
    fn admit_before(&mut self, bound: Option<(Rank, Class)>, now: Duration, plan: &mut StepPlan) {
        let (mut place, mut without_room) = (0, 0);
        while let Some(rank) = self.waiting.get(place) {
            let budget = self.budget(plan);
            let beyond = bound.is_some_and(|(bound, _)| rank > bound);
            if budget == 0 || beyond || without_room == MAX_LOOKED_AT {
                return;
            }
            let sequence = &self.sequences[&rank.id];
            let patient = bound.is_some_and(|(_, class)| sequence.class >= class);
            if patient || plan.preempted.contains(&rank.id) {
                place += 1;
                continue;
            }
            let passed_over = sequence.passed_over;
            match self.start(rank, now, plan) {
                Outcome::Started => {
                    // A preempted one may have come into the queue behind it, never before it.
                    self.count_passed_over(place);
                    let budget = self.budget(plan);
                    self.push_row(rank.id, budget, plan);
                }
                Outcome::NoRoom if passed_over >= MAX_PASSED_OVER => return,
                outcome => {
                    place += 1;
                    without_room += u32::from(outcome == Outcome::NoRoom);
                }
            }
        }
    }

    /// Takes blocks for all tokens of a waiting sequence, if that leaves every running one room to grow into: admitting what the
    /// next steps would preempt computes it twice.
    fn start(&mut self, rank: Rank, now: Duration, plan: &mut StepPlan) -> Outcome {
        let full = self.running.len() >= self.limits.max_sequences;
        if (full || self.pool.free() == 0) && !self.can_displace(rank) {
            return Outcome::NoRoom;
        }
        let found = self.look_up(rank.id);
        if self.is_under_way(rank.id, found.blocks) {
            return Outcome::HeldBack;
        }
        let total = self.sequences[&rank.id]
            .known()
            .len()
            .div_ceil(self.limits.block_tokens);
        let needed = total - found.blocks + found.idle + self.reserve(rank.id);
        if (full || needed > self.pool.free()) && !self.make_room(rank, total, now, plan) {
            return Outcome::NoRoom;
        }
        self.begin(rank, total, now, plan)
    }

    /// Whether a sequence runs that may be preempted for this one.
    fn can_displace(&self, rank: Rank) -> bool {
        let class = self.sequences[&rank.id].class;
        let mut later = self
            .running
            .iter()
            .rev()
            .take_while(|victim| *victim > rank);
        later.any(|victim| self.yields(victim, rank, class))
    }

    /// Whether `victim` is of a less urgent class and has not aged beyond `rank`.
    fn yields(&self, victim: Rank, rank: Rank, class: Class) -> bool {
        victim > rank && self.sequences[&victim.id].class > class
    }

    fn look_up(&self, id: SequenceId) -> Found {
        let sequence = &self.sequences[&id];
        let block_tokens = self.limits.block_tokens;
        let keys = sequence.reusable_keys(block_tokens);
        if keys.is_empty() {
            return Found::default();
        }
        self.pool
            .look(sequence.scope, keys, sequence.known(), block_tokens)
    }

    /// Whether running sequences are about to compute at least half of what is missing. Only for so long, so that a sequence
    /// that advances slowly holds nobody up.
    fn is_under_way(&mut self, id: SequenceId, found: usize) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return false;
        };
        let keys = &sequence.reusable_keys(self.limits.block_tokens)[found..];
        let coming = keys
            .iter()
            .take_while(|key| self.under_way.contains_key(key))
            .count();
        let missing = sequence.known().len().div_ceil(self.limits.block_tokens) - found;
        let waits = coming * 2 >= missing && coming > 0 && sequence.held_back < MAX_HELD_BACK;
        sequence.held_back += u32::from(waits);
        waits
    }

    /// Free blocks to leave for sequences that run, and for the answer of the one that is to: one each, or half of what they are
    /// predicted to need, for they do not all need it at once.
    fn reserve(&self, id: SequenceId) -> usize {
        if self.running.len() == 0 {
            return 0;
        }
        let all = self.running.iter().map(|rank| rank.id).chain([id]);
        let expected: usize = all.map(|id| self.sequences[&id].expected_tokens()).sum();
        self.running
            .len()
            .max(expected / self.limits.block_tokens / 2)
    }

    /// Preempts sequences of less urgent classes, last first, until one of `total` blocks fits: all that it takes or, where
    /// that is not enough, none.
    fn make_room(&mut self, rank: Rank, total: usize, now: Duration, plan: &mut StepPlan) -> bool {
        let Some(victims) = self.victims(rank, total) else {
            return false;
        };
        for victim in victims {
            self.preempt(victim, now, plan);
        }
        true
    }

    fn victims(&self, rank: Rank, total: usize) -> Option<Vec<Rank>> {
        let class = self.sequences[&rank.id].class;
        let (mut free, mut left) = (self.pool.free(), self.running.len());
        let mut victims = Vec::new();
        let later = self.running.iter().rev();
        for victim in later.filter(|victim| self.yields(*victim, rank, class)) {
            victims.push(victim);
            free += self.sequences[&victim.id].blocks.freeable();
            left -= 1;
            // What is found may be the victims' own: reckon as if nothing were.
            if left < self.limits.max_sequences && total + left <= free {
                return Some(victims);
            }
        }
        None
    }

    fn begin(&mut self, rank: Rank, total: usize, now: Duration, plan: &mut StepPlan) -> Outcome {
        let block_tokens = self.limits.block_tokens;
        let Some(sequence) = self.sequences.get_mut(&rank.id) else {
            return Outcome::NoRoom;
        };
        let found = sequence.adopt_blocks(&self.pool, block_tokens) / block_tokens;
        if !sequence.blocks.grow_to(total, &self.pool) {
            sequence.blocks.clear();
            sequence.computed = 0;
            return Outcome::NoRoom;
        }
        for key in sequence.keys.iter().skip(found) {
            self.under_way.entry(*key).or_insert(rank.id);
        }
        plan.admitted
            .push((rank.id, now.saturating_sub(sequence.waiting_since)));
        self.waiting.remove(rank);
        self.running.insert(rank);
        self.count_found(rank.id);
        Outcome::Started
    }

    fn count_found(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let lost = std::mem::take(&mut sequence.lost);
        self.counters.recomputed_tokens += lost.saturating_sub(sequence.computed) as u64;
        if sequence.cached.is_some() || self.policy.prefix_cache.is_none() {
            return;
        }
        sequence.cached = Some(sequence.computed);
        self.counters.prefix_queries += sequence.prompt_tokens as u64;
        self.counters.prefix_hits += sequence.computed as u64;
    }

    fn count_passed_over(&mut self, ahead: usize) {
        for rank in self.waiting.iter().take(ahead) {
            if let Some(sequence) = self.sequences.get_mut(&rank.id) {
                sequence.passed_over += 1;
            }
        }
    }
}
