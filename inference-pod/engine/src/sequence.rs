//! One sequence: its tokens, how many of them are computed, and when it must end.

use std::sync::Arc;
use std::time::Duration;

use crate::blocks::BlockTable;
use crate::class::Class;
use crate::scope::CacheScope;

/// Names a sequence for as long as its scheduler lives. Ids grow in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// Why a sequence ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn (a stop token), or a stop string appeared.
    Stop,
    /// The asked number of tokens, or the end of the context, was reached.
    Length,
}

/// What a caller submits.
#[derive(Clone, Debug, Default)]
pub struct NewSequence {
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; at least one. The end of the context ends a sequence earlier.
    pub max_new_tokens: usize,
    /// Tokens that end the sequence when sampled, such as end of turn. Not part of the answer.
    pub stop_tokens: Arc<[u32]>,
    /// How urgent it is.
    pub class: Class,
    /// When it is worth nothing any more, on the scheduler's clock; never when `None`.
    pub deadline: Option<Duration>,
    /// Whose KV blocks it may read, and who may read its own.
    pub scope: CacheScope,
    /// The logits of every token of the prompt are wanted, so all of it is computed, whatever is kept of it.
    pub prompt_logits: bool,
}

/// A sequence in the scheduler. `computed` of its tokens have their keys and values in its blocks.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) tokens: Vec<u32>,
    pub(crate) computed: usize,
    pub(crate) blocks: BlockTable,
    /// Length at which it ends: prompt and answer together.
    pub(crate) max_tokens: usize,
    pub(crate) stop_tokens: Arc<[u32]>,
    pub(crate) waiting_since: Duration,
    /// How many later sequences were admitted before it while it waited.
    pub(crate) passed_over: u32,
}

impl Sequence {
    /// Known tokens that are not computed yet: 1 while decoding, more while the prompt is worked through.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Forgets what is computed and gives the blocks back; the tokens stay, so that all can be computed again.
    pub(crate) fn evict(&mut self, now: Duration) {
        self.blocks.clear();
        self.computed = 0;
        self.waiting_since = now;
        self.passed_over = 0;
    }

    /// Appends a sampled token and says whether it ends the sequence. A stop token is not appended.
    pub(crate) fn append(&mut self, token: u32) -> Option<FinishReason> {
        if self.stop_tokens.contains(&token) {
            return Some(FinishReason::Stop);
        }
        self.tokens.push(token);
        (self.tokens.len() >= self.max_tokens).then_some(FinishReason::Length)
    }
}
