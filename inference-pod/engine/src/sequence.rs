//! One sequence: its tokens, how many of them are computed, and when it must end.

use std::sync::Arc;
use std::time::Duration;

use crate::blocks::{BlockPool, BlockTable};
use crate::class::{Class, Rank};
use crate::drafts::Drafter;
use crate::keys::{BlockKey, KeySeed};
use crate::prediction::Prediction;
use crate::scope::CacheScope;

/// Tokens of a row of which all logits are wanted: a row of logits is as long as the vocabulary.
const PROMPT_LOGITS_CHUNK: usize = 32;

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

/// Of which tokens of a prompt the model's outputs are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptOutputs {
    /// Of the last, from which the answer goes on.
    #[default]
    Last,
    /// The logits of every token, so all of the prompt is computed, whatever is kept of it.
    Logits,
    /// The state of every token, which takes less room than its logits. All of the prompt is computed as well.
    States,
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
    /// What is wanted of the prompt besides its last token's logits.
    pub prompt_outputs: PromptOutputs,
}

/// A sequence in the scheduler. `computed` of its tokens have their keys and values in its blocks.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) rank: Rank,
    pub(crate) class: Class,
    pub(crate) scope: CacheScope,
    pub(crate) deadline: Option<Duration>,
    pub(crate) stop_tokens: Arc<[u32]>,
    /// Known tokens, then drafts of the step under way.
    tokens: Vec<u32>,
    drafts: usize,
    pub(crate) prompt_tokens: usize,
    /// Length at which it ends: prompt and answer together.
    pub(crate) max_tokens: usize,
    pub(crate) computed: usize,
    pub(crate) blocks: BlockTable,
    /// Of full blocks of known tokens; empty where nothing is kept.
    pub(crate) keys: Vec<BlockKey>,
    /// Positions of the prompt whose outputs were given already, where they are wanted.
    outputs_given: Option<usize>,
    /// Tokens of a row at most while they are wanted.
    outputs_chunk: usize,
    pub(crate) waiting_since: Duration,
    /// How many later sequences were admitted before it while it waited.
    pub(crate) passed_over: u32,
    /// In how many steps it waited for another to compute what both begin with.
    pub(crate) held_back: u32,
    /// The last step in which it had a row.
    pub(crate) planned: u64,
    /// Tokens of the prompt that were found when it was first admitted.
    pub(crate) cached: Option<usize>,
    /// Tokens that were computed when it was preempted.
    pub(crate) lost: usize,
    pub(crate) drafter: Drafter,
    pub(crate) prediction: Option<Prediction>,
}

impl Sequence {
    pub(crate) fn new(new: NewSequence, rank: Rank, max_tokens: usize, now: Duration) -> Self {
        Self {
            rank,
            class: new.class,
            scope: new.scope,
            deadline: new.deadline,
            stop_tokens: new.stop_tokens,
            prompt_tokens: new.prompt.len(),
            tokens: new.prompt,
            drafts: 0,
            max_tokens,
            computed: 0,
            blocks: BlockTable::default(),
            keys: Vec::new(),
            outputs_given: (new.prompt_outputs != PromptOutputs::Last).then_some(0),
            outputs_chunk: match new.prompt_outputs {
                PromptOutputs::Logits => PROMPT_LOGITS_CHUNK,
                PromptOutputs::Last | PromptOutputs::States => usize::MAX,
            },
            waiting_since: now,
            passed_over: 0,
            held_back: 0,
            planned: 0,
            cached: None,
            lost: 0,
            drafter: Drafter::default(),
            prediction: None,
        }
    }

    /// Prompt and answer so far.
    pub(crate) fn known(&self) -> &[u32] {
        &self.tokens[..self.tokens.len() - self.drafts]
    }

    /// Known tokens and drafts.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(crate) fn draft(&self) -> &[u32] {
        &self.tokens[self.tokens.len() - self.drafts..]
    }

    /// Replaces the drafts.
    pub(crate) fn set_draft(&mut self, draft: &[u32]) {
        self.tokens.truncate(self.tokens.len() - self.drafts);
        self.tokens.extend_from_slice(draft);
        self.drafts = draft.len();
    }

    /// Known tokens that are not computed yet: 1 while decoding, more while the prompt is worked through.
    pub(crate) fn pending(&self) -> usize {
        self.known().len() - self.computed
    }

    /// Tokens of the answer.
    pub(crate) fn answered(&self) -> usize {
        self.known().len() - self.prompt_tokens
    }

    /// Brings the keys up to the known tokens.
    pub(crate) fn extend_keys(&mut self, seed: KeySeed, block_tokens: usize) {
        let known = self.tokens.len() - self.drafts;
        seed.extend(
            &mut self.keys,
            self.scope,
            &self.tokens[..known],
            block_tokens,
        );
    }

    /// Keys of the blocks that may be taken from what is kept: at least the last token is always computed, for its logits,
    /// and all of a prompt whose outputs are wanted.
    pub(crate) fn reusable_keys(&self, block_tokens: usize) -> &[BlockKey] {
        let whole = (self.known().len() - 1) / block_tokens;
        let most = if self.prompt_outputs_missing() {
            0
        } else {
            whole
        };
        &self.keys[..most.min(self.keys.len())]
    }

    /// Takes kept blocks into the empty table, and returns how many tokens are computed by that.
    pub(crate) fn adopt_blocks(&mut self, pool: &BlockPool, block_tokens: usize) -> usize {
        let most = self.reusable_keys(block_tokens).len();
        let found = self.blocks.adopt(
            pool,
            self.scope,
            &self.keys[..most],
            &self.tokens,
            block_tokens,
        );
        self.computed = found * block_tokens;
        self.computed
    }

    /// Makes blocks findable whose positions are all computed, and returns their places.
    pub(crate) fn publish_blocks(
        &mut self,
        seed: KeySeed,
        block_tokens: usize,
    ) -> std::ops::Range<usize> {
        let (before, full) = (self.blocks.shared(), self.computed / block_tokens);
        if full <= before {
            return 0..0;
        }
        self.extend_keys(seed, block_tokens);
        self.blocks
            .publish(self.scope, &self.keys[..full], &self.tokens, block_tokens);
        before..full
    }

    fn prompt_outputs_missing(&self) -> bool {
        self.outputs_given
            .is_some_and(|given| given < self.prompt_tokens)
    }

    /// The next tokens to compute, at most `budget`: how many, and of how many at their end outputs are wanted.
    pub(crate) fn next_row(&self, budget: usize) -> (usize, usize) {
        let pending = self.pending();
        if let Some(given) = self.outputs_given
            && given < self.prompt_tokens
        {
            let most = budget.min(self.outputs_chunk);
            let len = most.min(self.prompt_tokens - self.computed);
            let end = self.computed + len;
            return (len, end.saturating_sub(given.max(self.computed)));
        }
        let len = budget.min(pending);
        (len, usize::from(len == pending))
    }

    /// Positions before `computed` are computed, and their outputs given where wanted.
    pub(crate) fn advance(&mut self, computed: usize) {
        self.computed = computed;
        if let Some(given) = &mut self.outputs_given {
            *given = (*given).max(computed.min(self.prompt_tokens));
        }
    }

    /// Forgets what is computed and gives the blocks back; the tokens stay, so that all can be computed again.
    pub(crate) fn evict(&mut self, now: Duration) {
        self.set_draft(&[]);
        self.lost = self.computed;
        self.blocks.clear();
        self.computed = 0;
        self.waiting_since = now;
        self.passed_over = 0;
        self.held_back = 0;
    }

    /// Appends a sampled token and says whether it ends the sequence. A stop token is not appended.
    pub(crate) fn append(&mut self, token: u32) -> Option<FinishReason> {
        debug_assert_eq!(
            self.drafts, 0,
            "drafts are dropped before tokens are appended"
        );
        if self.stop_tokens.contains(&token) {
            return Some(FinishReason::Stop);
        }
        self.tokens.push(token);
        (self.tokens.len() >= self.max_tokens).then_some(FinishReason::Length)
    }

    /// Tokens it will still generate, by what was predicted; 0 without.
    pub(crate) fn expected_tokens(&self) -> usize {
        let most = self.max_tokens - self.known().len();
        let upper = self.prediction.map_or(0, |prediction| prediction.upper);
        upper.saturating_sub(self.answered()).min(most)
    }
}
