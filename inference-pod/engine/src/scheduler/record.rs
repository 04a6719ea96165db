//! What comes of a step.

use super::{Scheduler, features, forget_under_way};
use crate::plan::{PlannedRow, Progress};
use crate::sequence::{FinishReason, SequenceId};

impl Scheduler {
    /// Tells what came of a row: its tokens are computed and `sampled` are the tokens that follow: none where it does not draw,
    /// one for a plain row, up to one more than it had drafts. Only the last of them may differ from the draft at its place;
    /// what comes after one that does is not looked at.
    ///
    /// A sequence that this ends is forgotten at once.
    pub fn record(&mut self, row: &PlannedRow, sampled: &[u32]) -> Progress {
        let Some(sequence) = self.sequences.get_mut(&row.sequence) else {
            return Progress::Unknown;
        };
        let draft = sequence.draft();
        let true_guesses = draft
            .iter()
            .zip(sampled)
            .take_while(|(guess, token)| guess == token)
            .count();
        let sampled = &sampled[..sampled.len().min(true_guesses + 1)];
        // Of a guess that came true and was drawn last, keys and values are there, but nobody drew what follows.
        let accepted = true_guesses.min(sampled.len().saturating_sub(1));
        let drafts = draft.len();
        sequence.set_draft(&[]);
        sequence.advance(row.start + row.len - drafts);
        // Guesses that came true are known tokens, and computed.
        let ended = sampled.iter().find_map(|token| sequence.append(*token));
        sequence.computed = (sequence.computed + accepted).min(sequence.known().len());
        if drafts > 0 {
            sequence.drafter.learn(drafts, accepted);
            self.counters.drafted_tokens += drafts as u64;
            self.counters.accepted_tokens += accepted as u64;
        }
        self.publish(row.sequence);
        match ended {
            None => Progress::Running,
            Some(reason) => {
                self.end(row.sequence, reason);
                Progress::Finished(reason)
            }
        }
    }

    /// Makes the blocks that are full now findable.
    fn publish(&mut self, id: SequenceId) {
        let (Some(seed), Some(sequence)) = (self.policy.prefix_cache, self.sequences.get_mut(&id))
        else {
            return;
        };
        let published = sequence.publish_blocks(seed, self.limits.block_tokens);
        forget_under_way(&mut self.under_way, &sequence.keys[published], id);
    }

    fn end(&mut self, id: SequenceId, reason: FinishReason) {
        if self.policy.predict_lengths
            && let Some(sequence) = self.sequences.get(&id)
        {
            let (features, tokens) = (features(sequence), sequence.answered());
            // An answer that was cut off would have been longer: it tells how long at least.
            let least = match reason {
                FinishReason::Stop => tokens,
                FinishReason::Length => tokens + 1,
            };
            self.lengths.learn(features, least);
        }
        self.finish(id);
    }
}
