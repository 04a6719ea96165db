//! What running sequences do in a step: decodes, prompts under way, drafts.

use std::time::Duration;

use super::{Scheduler, forget_under_way};
use crate::class::Rank;
use crate::drafts::guess;
use crate::plan::{PlannedRow, StepPlan};
use crate::policy::{MAX_DRAFT, Speculation};
use crate::sequence::SequenceId;

/// Guessed tokens in one step at most: each has a row of logits as long as the vocabulary.
const MAX_STEP_DRAFTS: usize = 16;

impl Scheduler {
    pub(super) fn plan_decodes(&mut self, now: Duration, plan: &mut StepPlan) {
        let decodes = self
            .running
            .iter()
            .filter(|rank| self.sequences[&rank.id].pending() == 1);
        for rank in decodes.collect::<Vec<_>>() {
            if self.secure_block(rank.id, now, plan) {
                self.push_row(rank.id, 1, plan);
            }
        }
    }

    /// Makes sure that a decoding sequence has a block for its next token, at the cost of the last of the order. Returns false
    /// when the sequence itself lost its blocks, now or earlier in this step.
    fn secure_block(&mut self, id: SequenceId, now: Duration, plan: &mut StepPlan) -> bool {
        loop {
            if plan.preempted.contains(&id) {
                return false;
            }
            let Some(sequence) = self.sequences.get_mut(&id) else {
                return false;
            };
            let needed = sequence.known().len().div_ceil(self.limits.block_tokens);
            if sequence.blocks.grow_to(needed, &self.pool) {
                return true;
            }
            let Some(victim) = self.running.last() else {
                return false;
            };
            // In order: rows planned so far are of earlier sequences, so the last has none in this plan yet.
            self.preempt(victim, now, plan);
        }
    }

    /// Sends a running sequence back to the queue, its row of this step with it.
    pub(super) fn preempt(&mut self, victim: Rank, now: Duration, plan: &mut StepPlan) {
        if let Some(sequence) = self.sequences.get_mut(&victim.id) {
            sequence.evict(now);
            forget_under_way(&mut self.under_way, &sequence.keys, victim.id);
        }
        plan.rows.retain(|row| row.sequence != victim.id);
        self.running.remove(victim);
        self.waiting.insert(victim);
        plan.preempted.push(victim.id);
    }

    pub(super) fn plan_prompts(&mut self, plan: &mut StepPlan) {
        let mut budget = self.budget(plan);
        for rank in self.running.iter().collect::<Vec<_>>() {
            let sequence = &self.sequences[&rank.id];
            if budget > 0 && sequence.planned != self.step && sequence.pending() > 1 {
                budget -= self.push_row(rank.id, budget, plan);
            }
        }
    }

    /// Plans the next tokens of a running sequence, at most `budget`, and returns how many.
    pub(super) fn push_row(&mut self, id: SequenceId, budget: usize, plan: &mut StepPlan) -> usize {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return 0;
        };
        sequence.set_draft(&[]);
        sequence.planned = self.step;
        let (len, logits) = sequence.next_row(budget);
        plan.rows.push(PlannedRow {
            sequence: id,
            start: sequence.computed,
            len,
            logits,
            draws: len == sequence.pending(),
            drafts: 0,
        });
        len
    }

    /// Guesses on for sequences that decode, in order, within what budget and blocks leave. Where steps are kept short for those who
    /// decode, a prompt has the time that guesses would take: it is work that somebody waits for.
    pub(super) fn add_drafts(&mut self, plan: &mut StepPlan) {
        let gives_way = self.policy.prompt_slowdown.is_some() && plan.prompt_tokens() > 0;
        if self.policy.speculation == Speculation::Off || gives_way {
            return;
        }
        let mut tokens = plan.tokens();
        let mut budget = (self.limits.step_tokens - tokens).min(MAX_STEP_DRAFTS);
        for row in plan.rows.iter_mut().filter(|row| row.draws && row.len == 1) {
            if budget == 0 {
                return;
            }
            let drafts = self.draft(row.sequence, budget.min(MAX_DRAFT), tokens);
            row.drafts = drafts;
            row.len += drafts;
            row.logits += drafts;
            budget -= drafts;
            tokens += drafts;
        }
    }

    /// Appends guesses to a sequence in a step of `tokens` tokens so far, and returns how many.
    fn draft(&mut self, id: SequenceId, most: usize, tokens: usize) -> usize {
        let spare = self.pool.free().saturating_sub(self.running.len());
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return 0;
        };
        let (known, places) = (
            sequence.known().len(),
            sequence.blocks.ids().len() * self.limits.block_tokens,
        );
        // The token after the last guess is known too when all guesses come true.
        let most = most.min(sequence.max_tokens - known - 1);
        // Guesses preempt nobody: they take a block only where every running sequence could have one as well.
        let room = if spare > 0 { most } else { places - known };
        let price = self.step_cost.price(tokens);
        let wanted = sequence
            .drafter
            .wanted(self.policy.speculation, price, most.min(room));
        if wanted == 0 {
            return 0;
        }
        let draft = guess(sequence.known(), wanted);
        let needed = (known + draft.len()).div_ceil(self.limits.block_tokens);
        if draft.is_empty() || !sequence.blocks.grow_to(needed, &self.pool) {
            return 0;
        }
        sequence.set_draft(&draft);
        draft.len()
    }
}
