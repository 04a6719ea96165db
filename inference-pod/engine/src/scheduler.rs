//! Continuous batching with chunked prefill: what to compute in the next step.
//!
//! There is no prefill phase: every running sequence has known tokens that are not computed, one while it decodes and
//! many while its prompt is worked through. A step takes them in this order under one budget of tokens:
//!
//! 1. **Decodes**, one token each, oldest first. The budget always covers them all.
//! 2. **Prompts under way**, oldest first, in chunks of what the budget leaves.
//! 3. **Admission** of waiting sequences, oldest first, while there are blocks for all of their tokens.
//!
//! A decode that finds no free block takes those of the *newest* running sequence, which goes back to the queue and is
//! computed again later. Nothing is admitted in a step that did so. The oldest sequence is never a victim and every
//! sequence fits the pool alone, so the oldest always advances and nobody starves.
//!
//! A waiting sequence that is too large for the blocks now free lets smaller ones pass, but only [`MAX_PASSED_OVER`]
//! times: after that nobody passes until it runs.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::blocks::BlockPool;
use crate::sequence::{FinishReason, NewSequence, Sequence, SequenceId};

#[cfg(test)]
mod tests;

/// Later sequences that may be admitted before a waiting one that does not fit yet.
const MAX_PASSED_OVER: u32 = 16;

/// What the scheduler may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences computed in one step at most.
    pub max_sequences: usize,
    /// Sequences that may wait: new ones beyond it are refused. Preempted ones always find a place.
    pub max_waiting: usize,
    /// Tokens computed in one step at most; at least `max_sequences`, so that every decode fits.
    pub step_tokens: usize,
    /// Tokens in one block.
    pub block_tokens: usize,
    /// Blocks in the pool.
    pub block_count: u32,
    /// Tokens of the longest sequence the model can take.
    pub context_tokens: usize,
}

/// Limits that no scheduler can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// A limit is zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The budget is smaller than one token a sequence.
    #[error(
        "a step of {step_tokens} tokens cannot hold one token for each of {max_sequences} sequences: raise the step or lower the sequences"
    )]
    StepTooSmall {
        /// The budget.
        step_tokens: usize,
        /// The sequences.
        max_sequences: usize,
    },
}

impl Limits {
    /// Tokens of the longest sequence that can run: the context or the whole pool, whichever is less.
    pub fn longest_sequence(&self) -> usize {
        self.context_tokens
            .min(self.block_tokens * self.block_count as usize)
    }

    /// Whether a prompt of `prompt_tokens` tokens could ever run.
    pub fn check_prompt(&self, prompt_tokens: usize) -> Result<(), Refusal> {
        let longest = self.longest_sequence();
        if prompt_tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if prompt_tokens < longest {
            return Ok(());
        }
        let limit = if longest == self.context_tokens {
            LengthLimit::Context(longest)
        } else {
            LengthLimit::KvMemory(longest)
        };
        Err(Refusal::TooLong {
            prompt_tokens,
            longest_prompt: longest - 1,
            limit,
        })
    }

    fn check(self) -> Result<Self, LimitsError> {
        let positive = [
            ("max_sequences", self.max_sequences),
            ("block_tokens", self.block_tokens),
            ("block_count", self.block_count as usize),
            ("context_tokens", self.context_tokens),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(LimitsError::Zero(name));
        }
        let Self {
            step_tokens,
            max_sequences,
            ..
        } = self;
        if step_tokens < max_sequences {
            return Err(LimitsError::StepTooSmall {
                step_tokens,
                max_sequences,
            });
        }
        Ok(self)
    }
}

/// Why a sequence was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// It can never run, whoever else leaves: the prompt and one more token do not fit.
    #[error("the prompt has {prompt_tokens} tokens, but at most {longest_prompt} fit: {limit}")]
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the longest prompt that leaves room for one token of answer.
        longest_prompt: usize,
        /// What sets that length.
        limit: LengthLimit,
    },
    /// Too many wait already; later it may be accepted.
    #[error("{waiting} requests are waiting already")]
    QueueFull {
        /// Sequences that wait.
        waiting: usize,
    },
}

/// What limits the length of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthLimit {
    /// The model's context, in tokens.
    Context(usize),
    /// The KV memory, in tokens.
    KvMemory(usize),
}

impl std::fmt::Display for LengthLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Context(tokens) => write!(
                f,
                "the context is {tokens} tokens and the answer needs at least one"
            ),
            Self::KvMemory(tokens) => write!(
                f,
                "the KV memory holds {tokens} tokens and the answer needs at least one"
            ),
        }
    }
}

/// Tokens of one sequence to compute in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRow {
    /// Whose tokens: see [`Scheduler::tokens`] and [`Scheduler::block_table`].
    pub sequence: SequenceId,
    /// Position of the first token.
    pub start: usize,
    /// How many tokens; at least one.
    pub len: usize,
    /// How many of the row's last tokens want logits: none, or the last one when it is the last known one.
    pub logits: usize,
}

/// What to compute in one step. Rows are of distinct sequences, decodes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The work.
    pub rows: Vec<PlannedRow>,
    /// Sequences that left the queue in this step, with how long each had waited.
    pub admitted: Vec<(SequenceId, Duration)>,
    /// Sequences that lost their blocks in this step.
    pub preempted: Vec<SequenceId>,
}

impl StepPlan {
    /// Tokens of all rows.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.len).sum()
    }
}

/// What [`Scheduler::record`] made of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More is to come.
    Running,
    /// The sequence ended and its blocks are free.
    Finished(FinishReason),
    /// There is no such sequence (any more).
    Unknown,
}

/// How full a scheduler is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences that hold blocks.
    pub running: usize,
    /// Sequences that wait for blocks or a place.
    pub waiting: usize,
    /// Blocks in use.
    pub used_blocks: usize,
    /// Blocks in the pool.
    pub total_blocks: usize,
}

/// The state machine. See the module's text for its policy.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    next_id: u64,
    /// In order of arrival.
    running: Vec<SequenceId>,
    /// In order of arrival.
    waiting: VecDeque<SequenceId>,
    sequences: HashMap<SequenceId, Sequence>,
}

impl Scheduler {
    /// An empty scheduler.
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        let limits = limits.check()?;
        Ok(Self {
            pool: BlockPool::new(limits.block_count),
            limits,
            next_id: 0,
            running: Vec::new(),
            waiting: VecDeque::new(),
            sequences: HashMap::new(),
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
        let max_tokens = new
            .prompt
            .len()
            .saturating_add(new.max_new_tokens.max(1))
            .min(longest);
        self.waiting.push_back(id);
        self.sequences.insert(
            id,
            Sequence {
                id,
                tokens: new.prompt,
                computed: 0,
                blocks: crate::blocks::BlockTable::default(),
                max_tokens,
                stop_tokens: new.stop_tokens,
                waiting_since: now,
                passed_over: 0,
            },
        );
        Ok(id)
    }

    /// Plans the next step and takes the blocks it needs. Every planned row must be given to [`Self::record`], or its
    /// sequence ended, before the next call.
    pub fn schedule(&mut self, now: Duration) -> StepPlan {
        let mut plan = StepPlan::default();
        self.plan_decodes(now, &mut plan);
        self.plan_prompts(&mut plan);
        if plan.preempted.is_empty() {
            self.admit(now, &mut plan);
        }
        plan
    }

    /// Tells what came of a row: its tokens are computed and `sampled` are the tokens that follow: none where it wanted no
    /// logits, one for a plain row, up to one more than it had drafts.
    ///
    /// A sequence that this ends is forgotten at once.
    pub fn record(&mut self, row: &PlannedRow, sampled: &[u32]) -> Progress {
        let Some(sequence) = self.sequences.get_mut(&row.sequence) else {
            return Progress::Unknown;
        };
        sequence.computed = row.start + row.len;
        match sampled.iter().find_map(|token| sequence.append(*token)) {
            None => Progress::Running,
            Some(reason) => {
                self.finish(row.sequence);
                Progress::Finished(reason)
            }
        }
    }

    /// Ends a sequence from outside (a stop string, an error) and frees its blocks. Returns whether it existed.
    pub fn finish(&mut self, id: SequenceId) -> bool {
        if self.sequences.remove(&id).is_none() {
            return false;
        }
        self.running.retain(|other| *other != id);
        self.waiting.retain(|other| *other != id);
        true
    }

    /// Ends a sequence nobody wants any more. Returns whether it existed.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        self.finish(id)
    }

    /// Prompt and answer so far; empty for an unknown sequence.
    pub fn tokens(&self, id: SequenceId) -> &[u32] {
        self.sequences
            .get(&id)
            .map_or(&[], |sequence| &sequence.tokens)
    }

    /// Block ids of a sequence; empty for one that does not run.
    pub fn block_table(&self, id: SequenceId) -> &[u32] {
        self.sequences
            .get(&id)
            .map_or(&[], |sequence| sequence.blocks.ids())
    }

    /// How full it is.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            used_blocks: self.pool.total() - self.pool.free(),
            total_blocks: self.pool.total(),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    fn plan_decodes(&mut self, now: Duration, plan: &mut StepPlan) {
        let decodes = self
            .running
            .iter()
            .copied()
            .filter(|id| self.sequences[id].pending() == 1);
        for id in decodes.collect::<Vec<_>>() {
            if self.secure_block(id, now, plan) {
                plan.rows.push(self.row(id, 1));
            }
        }
    }

    /// Makes sure that a decoding sequence has a block for its next token, at the cost of the newest. Returns false when
    /// the sequence itself lost its blocks, now or earlier in this step.
    fn secure_block(&mut self, id: SequenceId, now: Duration, plan: &mut StepPlan) -> bool {
        loop {
            if plan.preempted.contains(&id) {
                return false;
            }
            let Some(sequence) = self.sequences.get_mut(&id) else {
                return false;
            };
            let needed = sequence.tokens.len().div_ceil(self.limits.block_tokens);
            if sequence.blocks.grow_to(needed, &self.pool) {
                return true;
            }
            // Oldest first: rows planned so far are of older sequences, so the newest has none in this plan yet.
            self.preempt_newest(now, plan);
        }
    }

    fn preempt_newest(&mut self, now: Duration, plan: &mut StepPlan) {
        let Some(victim) = self.running.pop() else {
            return;
        };
        if let Some(sequence) = self.sequences.get_mut(&victim) {
            sequence.evict(now);
        }
        let place = self.waiting.partition_point(|other| *other < victim);
        self.waiting.insert(place, victim);
        plan.preempted.push(victim);
    }

    fn plan_prompts(&self, plan: &mut StepPlan) {
        let mut budget = self.limits.step_tokens - plan.tokens();
        for id in &self.running {
            let pending = self.sequences[id].pending();
            if pending > 1 && budget > 0 {
                let len = pending.min(budget);
                budget -= len;
                plan.rows.push(self.row(*id, len));
            }
        }
    }

    fn admit(&mut self, now: Duration, plan: &mut StepPlan) {
        let mut budget = self.limits.step_tokens - plan.tokens();
        let mut index = 0;
        while budget > 0
            && index < self.waiting.len()
            && self.running.len() < self.limits.max_sequences
        {
            let id = self.waiting[index];
            if self.start(id, now, plan) {
                self.waiting.remove(index);
                self.count_passed_over(index);
                let len = self.sequences[&id].pending().min(budget);
                budget -= len;
                plan.rows.push(self.row(id, len));
            } else if self.sequences[&id].passed_over >= MAX_PASSED_OVER {
                return;
            } else {
                index += 1;
            }
        }
    }

    /// Takes blocks for all tokens of a waiting sequence, if that leaves every running one a block to grow into:
    /// admitting what the next steps would preempt computes it twice.
    fn start(&mut self, id: SequenceId, now: Duration, plan: &mut StepPlan) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return false;
        };
        let needed = sequence.tokens.len().div_ceil(self.limits.block_tokens);
        if needed + self.running.len() > self.pool.free()
            || !sequence.blocks.grow_to(needed, &self.pool)
        {
            return false;
        }
        plan.admitted
            .push((sequence.id, now.saturating_sub(sequence.waiting_since)));
        let place = self.running.partition_point(|other| *other < id);
        self.running.insert(place, id);
        true
    }

    fn count_passed_over(&mut self, ahead: usize) {
        for id in self.waiting.iter().take(ahead) {
            if let Some(sequence) = self.sequences.get_mut(id) {
                sequence.passed_over += 1;
            }
        }
    }

    fn row(&self, id: SequenceId, len: usize) -> PlannedRow {
        let sequence = &self.sequences[&id];
        PlannedRow {
            sequence: id,
            start: sequence.computed,
            len,
            logits: usize::from(len == sequence.pending()),
        }
    }
}
