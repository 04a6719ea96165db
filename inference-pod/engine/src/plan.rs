//! What comes out of a scheduler: a step's work, what became of a row, and how full it is.

use std::time::Duration;

use crate::sequence::{FinishReason, SequenceId};

/// Tokens of one sequence to compute in a step: see [`crate::Scheduler::row_tokens`] and [`crate::Scheduler::block_table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRow {
    /// Whose tokens.
    pub sequence: SequenceId,
    /// Position of the first token.
    pub start: usize,
    /// How many tokens, drafts included; at least one.
    pub len: usize,
    /// How many of the row's last tokens want logits, or states where the caller takes those: all of a prompt where the
    /// sequence asked for them, the last known token and its drafts where `draws` says so.
    pub logits: usize,
    /// The row ends with the last known token and its drafts: the next token is to be drawn.
    pub draws: bool,
    /// How many of the row's last tokens are guesses. The logits before each say whether it is right: while the token drawn
    /// is the one guessed, drawing goes on with the next logits.
    pub drafts: usize,
}

impl PlannedRow {
    /// Whether it is one known token behind others, whatever is guessed behind it.
    pub fn is_decode(&self) -> bool {
        self.start > 0 && self.len - self.drafts == 1
    }
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
    /// Sequences whose deadline passed before they ended: they are forgotten.
    pub expired: Vec<SequenceId>,
}

impl StepPlan {
    /// Tokens of all rows.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.len).sum()
    }

    /// Tokens of rows that are no decodes.
    pub fn prompt_tokens(&self) -> usize {
        let prompts = self.rows.iter().filter(|row| !row.is_decode());
        prompts.map(|row| row.len).sum()
    }
}

/// What [`crate::Scheduler::record`] made of a row.
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
    /// Blocks that nobody uses and whose content could still be found.
    pub idle_blocks: usize,
    /// Places for tokens in blocks in use that hold none yet.
    pub unfilled_tokens: usize,
}

/// What has happened in a scheduler, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens of prompts that were looked for among kept blocks.
    pub prefix_queries: u64,
    /// Those of them that were found.
    pub prefix_hits: u64,
    /// Kept blocks that were given up for other content.
    pub evictions: u64,
    /// Tokens computed again because their sequence was preempted.
    pub recomputed_tokens: u64,
    /// Guessed tokens that were computed.
    pub drafted_tokens: u64,
    /// Those of them that came true.
    pub accepted_tokens: u64,
}
