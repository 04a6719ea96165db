//! Continuous batching with chunked prefill: what to compute in the next step.
//!
//! There is no prefill phase: every running sequence has known tokens that are not computed, one while it decodes and
//! many while its prompt is worked through. All sequences have one order, by class and arrival ([`crate::class`]); a step
//! takes them in it, under one budget of tokens:
//!
//! 1. **Expired** sequences are ended before they cost more.
//! 2. **Decodes**, one token each. The budget always covers them all.
//! 3. **Prompts under way**, in chunks of what the budget leaves, behind waiting sequences of a more urgent class. Where they are few
//!    beside those who decode, the budget is what makes a step little longer ([`crate::step_cost`]).
//! 4. **Admission** of waiting sequences, while there are blocks for all of their tokens; what is kept of a prompt that
//!    begins alike is not computed again.
//! 5. **Drafts**, where the budget leaves room and they pay ([`crate::drafts`]).
//!
//! A decode that finds no free block takes those of the *last* running sequence of the order, which goes back to the queue and
//! is computed again later. Nothing is admitted in a step that did so. The first of the order is never a victim and every
//! sequence fits the pool alone, so the first always advances and nobody starves.
//!
//! **Preemption loses little.** A victim's full blocks stay in the pool, reusable last, under their keys: what it computes again is
//! what others took meanwhile. Copying blocks elsewhere first ("swap") would use the very memory that a larger pool would have.
//!
//! A waiting sequence that is too large for the blocks now free lets smaller ones pass, but only [`MAX_PASSED_OVER`]
//! times: after that nobody passes until it runs. One of a more urgent class than a running one does not wait for it: neither for
//! its blocks nor for its place.

mod admission;
mod record;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::blocks::BlockPool;
use crate::class::{Rank, Ranked};
use crate::keys::BlockKey;
use crate::limits::{Limits, LimitsError, Refusal};
use crate::plan::{Counters, Load, PlannedRow, StepPlan};
use crate::policy::Policy;
use crate::prediction::{Features, LengthPredictor};
use crate::sequence::{NewSequence, Sequence, SequenceId};
use crate::step_cost::{StepCost, StepWork};

/// Later sequences that may be admitted before a waiting one that does not fit yet.
const MAX_PASSED_OVER: u32 = 16;

/// How much longer a step may take, as a part of its decodes alone, where nearly as many prompts wait as sequences decode.
const MANY_PROMPTS: f64 = 10.0;

/// Blocks by which two prompts must agree to be taken for the same kind of request.
const BEGINNING_BLOCKS: usize = 4;

/// The state machine. See the module's text for its policy.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    policy: Policy,
    pool: BlockPool,
    next_id: u64,
    step: u64,
    /// Tokens that the step under way may have, drafts aside.
    step_budget: usize,
    running: Ranked,
    waiting: Ranked,
    sequences: HashMap<SequenceId, Sequence>,
    deadlines: BTreeSet<(Duration, SequenceId)>,
    /// Blocks that a running sequence is about to compute.
    under_way: HashMap<BlockKey, SequenceId>,
    step_cost: StepCost,
    lengths: LengthPredictor,
    counters: Counters,
}

impl Scheduler {
    /// An empty scheduler that keeps and guesses nothing.
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        Self::with_policy(limits, Policy::plain())
    }

    /// An empty scheduler.
    pub fn with_policy(limits: Limits, policy: Policy) -> Result<Self, LimitsError> {
        let limits = limits.check()?;
        Ok(Self {
            pool: BlockPool::new(limits.block_count),
            limits,
            policy,
            next_id: 0,
            step: 0,
            step_budget: limits.step_tokens,
            running: Ranked::default(),
            waiting: Ranked::default(),
            sequences: HashMap::new(),
            deadlines: BTreeSet::new(),
            under_way: HashMap::new(),
            step_cost: StepCost::default(),
            lengths: LengthPredictor::default(),
            counters: Counters::default(),
        })
    }

    /// What it works within.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Queues a sequence. `max_new_tokens` is cut to what the context leaves.
    pub fn submit(&mut self, new: NewSequence, now: Duration) -> Result<SequenceId, Refusal> {
        self.limits.check_prompt(new.prompt.len())?;
        let waiting = self.waiting.len();
        if waiting >= self.limits.max_waiting {
            return Err(Refusal::QueueFull { waiting });
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        let longest = self.limits.longest_sequence();
        let max_tokens = new.prompt.len().saturating_add(new.max_new_tokens.max(1));
        let rank = Rank::new(now, new.class, self.policy.ageing, Duration::ZERO, id);
        let mut sequence = Sequence::new(new, rank, max_tokens.min(longest), now);
        if let Some(seed) = self.policy.prefix_cache {
            sequence.extend_keys(seed, self.limits.block_tokens);
        }
        self.predict(&mut sequence, now);
        self.waiting.insert(sequence.rank);
        self.deadlines
            .extend(sequence.deadline.map(|deadline| (deadline, id)));
        self.sequences.insert(id, sequence);
        Ok(id)
    }

    /// Lets a sequence whose answer will be long compete as if it had come later, by at most one class.
    fn predict(&self, sequence: &mut Sequence, now: Duration) {
        if !self.policy.predict_lengths {
            return;
        }
        sequence.prediction = self.lengths.predict(features(sequence));
        let Some(prediction) = sequence.prediction else {
            return;
        };
        let median = prediction.median.min(sequence.max_tokens) as f64;
        let share = median / self.limits.context_tokens as f64;
        let handicap = self.policy.ageing.mul_f64(share.min(1.0));
        let id = sequence.rank.id;
        sequence.rank = Rank::new(now, sequence.class, self.policy.ageing, handicap, id);
    }

    /// Plans the next step and takes the blocks it needs. Every planned row must be given to [`Self::record`], or its
    /// sequence ended, before the next call.
    pub fn schedule(&mut self, now: Duration) -> StepPlan {
        self.step += 1;
        let mut plan = StepPlan::default();
        self.expire(now, &mut plan);
        self.plan_decodes(now, &mut plan);
        self.step_budget = self.limits.step_tokens.min(self.smooth_budget(&plan));
        let calm = plan.preempted.is_empty();
        if calm {
            self.admit_urgent(now, &mut plan);
        }
        self.plan_prompts(&mut plan);
        if calm {
            self.admit(now, &mut plan);
            self.add_drafts(&mut plan);
        }
        plan
    }

    /// Ends a sequence from outside (a stop string, an error) and frees its blocks. Returns whether it existed.
    pub fn finish(&mut self, id: SequenceId) -> bool {
        let Some(sequence) = self.sequences.remove(&id) else {
            return false;
        };
        if !self.running.remove(sequence.rank) {
            self.waiting.remove(sequence.rank);
        }
        if let Some(deadline) = sequence.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        forget_under_way(&mut self.under_way, &sequence.keys, id);
        true
    }

    /// Ends a sequence nobody wants any more. Returns whether it existed.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        self.finish(id)
    }

    /// Prompt and answer so far; empty for an unknown sequence.
    pub fn tokens(&self, id: SequenceId) -> &[u32] {
        self.sequences.get(&id).map_or(&[], Sequence::known)
    }

    /// The tokens of a planned row, drafts included; empty for an unknown sequence.
    pub fn row_tokens(&self, row: &PlannedRow) -> &[u32] {
        let tokens = self
            .sequences
            .get(&row.sequence)
            .map_or(&[][..], Sequence::tokens);
        tokens.get(row.start..row.start + row.len).unwrap_or(&[])
    }

    /// Block ids of a sequence; empty for one that does not run. They may change when a row is recorded: a block that was computed
    /// twice is kept once.
    pub fn block_table(&self, id: SequenceId) -> &[u32] {
        self.sequences
            .get(&id)
            .map_or(&[], |sequence| sequence.blocks.ids())
    }

    /// Tokens of a sequence's prompt that were found among kept blocks when it was first admitted.
    pub fn cached_tokens(&self, id: SequenceId) -> usize {
        self.sequences
            .get(&id)
            .and_then(|sequence| sequence.cached)
            .unwrap_or(0)
    }

    /// How full it is.
    pub fn load(&self) -> Load {
        let pool = self.pool.state();
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            used_blocks: pool.total - pool.free,
            total_blocks: pool.total,
            idle_blocks: pool.idle,
            unfilled_tokens: self.running.iter().map(|rank| self.unfilled(rank.id)).sum(),
        }
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        Counters {
            evictions: self.pool.state().evictions,
            ..self.counters
        }
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The step of this plan took so long to compute. What guesses and prompts cost those who decode is learned from that.
    pub fn note_step(&mut self, plan: &StepPlan, took: Duration) {
        self.step_cost.learn(plan, took);
    }

    /// Tokens of a step that lets those who decode go on about as fast as before. Prompts that are many beside them get more: the
    /// sooner they decode too, the more one reading of the weights serves.
    fn smooth_budget(&self, plan: &StepPlan) -> usize {
        let decodes = plan.rows.len();
        let Some(slowdown) = self.policy.prompt_slowdown.filter(|_| decodes > 0) else {
            return usize::MAX;
        };
        let places = self.limits.max_sequences - self.running.len();
        let prompts = self.running.len() - decodes + places.min(self.waiting.len());
        if prompts >= decodes {
            return usize::MAX;
        }
        let share = prompts as f64 / decodes as f64;
        let slowdown = slowdown.max(MANY_PROMPTS * share * share);
        let work = StepWork::of(&plan.rows);
        let position = self.next_prompt_position();
        let affordable = self.step_cost.affordable(work, slowdown, position);
        affordable.map_or(usize::MAX, |tokens| decodes + tokens)
    }

    /// How far the prompt has come that goes on first.
    fn next_prompt_position(&self) -> usize {
        let mut running = self.running.iter().map(|rank| &self.sequences[&rank.id]);
        let prompt = running.find(|sequence| sequence.pending() > 1);
        prompt.map_or(0, |sequence| sequence.computed)
    }

    /// What is left of the step's tokens.
    fn budget(&self, plan: &StepPlan) -> usize {
        self.step_budget.saturating_sub(plan.tokens())
    }

    fn unfilled(&self, id: SequenceId) -> usize {
        let sequence = &self.sequences[&id];
        let places = sequence.blocks.ids().len() * self.limits.block_tokens;
        places.saturating_sub(sequence.computed)
    }

    fn expire(&mut self, now: Duration, plan: &mut StepPlan) {
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.finish(id);
            // Also where the sequence is gone: what is looked at again for ever ends no loop.
            self.deadlines.remove(&(deadline, id));
            plan.expired.push(id);
        }
    }
}

/// What is known of a sequence before its answer begins.
fn features(sequence: &Sequence) -> Features {
    Features {
        beginning: sequence.keys.get(BEGINNING_BLOCKS - 1).map(|key| key.0),
        prompt_tokens: sequence.prompt_tokens,
    }
}

fn forget_under_way(
    under_way: &mut HashMap<BlockKey, SequenceId>,
    keys: &[BlockKey],
    id: SequenceId,
) {
    if under_way.is_empty() {
        return;
    }
    for key in keys {
        if under_way.get(key) == Some(&id) {
            under_way.remove(key);
        }
    }
}
