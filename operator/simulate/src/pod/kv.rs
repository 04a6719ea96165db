//! A pod's KV blocks: those of sequences alone, and those of prefixes that several may read.

use super::prefix::PrefixCache;
use crate::trace::PREFIX_TOKENS;

/// The pool. What is taken never exceeds it.
#[derive(Debug)]
pub struct KvPool {
    total: u32,
    /// Taken by one sequence each.
    private: u32,
    /// Blocks of one prefix.
    prefix_blocks: u32,
    prefixes: PrefixCache,
}

impl KvPool {
    /// A pool of `total` blocks of `block_tokens` tokens.
    pub fn new(total: u32, block_tokens: u32) -> Self {
        Self {
            total,
            private: 0,
            prefix_blocks: PREFIX_TOKENS / block_tokens.max(1),
            prefixes: PrefixCache::default(),
        }
    }

    /// Blocks that running sequences need; kept prefixes that nobody reads can be dropped and do not count.
    pub fn used(&self) -> u32 {
        self.private + self.prefixes.held() * self.prefix_blocks
    }

    /// Blocks that could be taken.
    pub fn available(&self) -> u32 {
        self.total - self.used()
    }

    /// Blocks that hold anything.
    pub fn occupied(&self) -> u32 {
        self.used() + self.prefixes.idle() * self.prefix_blocks
    }

    /// All blocks.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Takes `blocks`, at most those available, and drops kept prefixes for them where it must.
    pub fn take(&mut self, blocks: u32) {
        debug_assert!(blocks <= self.available(), "took more than there is");
        self.private += blocks;
        while self.occupied() > self.total && self.prefixes.drop_oldest() {}
    }

    /// Takes what a sequence of `blocks` blocks needs whose prompt begins with `prefix`, if that leaves `spare` blocks.
    /// Returns how many of the prefix's ids were found; they are read until [`Self::give_back`].
    pub fn admit(&mut self, blocks: u32, prefix: &[u64], spare: u32) -> Option<u32> {
        let (found, idle) = self.prefixes.look(prefix);
        let private = blocks - found * self.prefix_blocks;
        let taken = u64::from(private) + u64::from(idle) * u64::from(self.prefix_blocks);
        if taken + u64::from(spare) > u64::from(self.available()) {
            return None;
        }
        self.prefixes.hold(&prefix[..found as usize]);
        self.take(private);
        Some(found)
    }

    /// Makes what a sequence has computed of `prefix` readable for others. Returns how many of the ids became shared: the
    /// rest somebody else keeps already, and this sequence's copy stays its own.
    pub fn share(&mut self, prefix: &[u64]) -> u32 {
        let shared = prefix
            .iter()
            .take_while(|id| self.prefixes.insert(**id))
            .count() as u32;
        self.private -= shared * self.prefix_blocks;
        shared
    }

    /// A sequence leaves that has `blocks` blocks in all, of which those of `prefix` may be read by others.
    pub fn give_back(&mut self, blocks: u32, prefix: &[u64]) {
        self.private -= blocks - prefix.len() as u32 * self.prefix_blocks;
        self.prefixes.release(prefix);
    }
}
