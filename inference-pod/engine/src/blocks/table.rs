//! The blocks of one sequence.

use std::collections::VecDeque;

use super::{Block, BlockPool, Content, Link, Mutable, Shared};
use crate::keys::BlockKey;
use crate::scope::CacheScope;

/// The blocks of one sequence, in the order of its positions: first those that others may read too, then its own.
#[derive(Debug, Default)]
pub struct BlockTable {
    shared: Vec<Block<Shared>>,
    own: VecDeque<Block<Mutable>>,
    ids: Vec<u32>,
    /// A key of this chain belongs to another content, so no further block of it can be found.
    unfindable: bool,
}

impl BlockTable {
    /// Appends blocks until there are `count`. Takes all that are missing or, when the pool cannot give them, none.
    ///
    /// Returns whether the table now holds at least `count` blocks.
    pub fn grow_to(&mut self, count: usize, pool: &BlockPool) -> bool {
        let missing = count.saturating_sub(self.ids.len());
        if missing > pool.free() {
            return false;
        }
        for _ in 0..missing {
            let Some(block) = pool.allocate() else {
                return false;
            };
            self.ids.push(block.id());
            self.own.push_back(block);
        }
        true
    }

    /// Takes the kept blocks of a chain into an empty table: as many of `keys` as are found in a row. Returns how many.
    pub fn adopt(
        &mut self,
        pool: &BlockPool,
        scope: CacheScope,
        keys: &[BlockKey],
        tokens: &[u32],
        block_tokens: usize,
    ) -> usize {
        debug_assert!(
            self.ids.is_empty(),
            "only an empty table can begin with kept blocks"
        );
        for (key, tokens) in keys.iter().zip(tokens.chunks_exact(block_tokens)) {
            let content = Content {
                key: *key,
                scope,
                before: self.link(),
                tokens,
            };
            let Some(block) = pool.find(&content) else {
                break;
            };
            self.ids.push(block.id());
            self.shared.push(block);
        }
        self.shared.len()
    }

    /// Makes blocks that are full findable for others: those of `keys`, which are of the first full blocks of `tokens` and
    /// whose positions are all computed. Returns how many blocks of the sequence are shared.
    pub fn publish(
        &mut self,
        scope: CacheScope,
        keys: &[BlockKey],
        tokens: &[u32],
        block_tokens: usize,
    ) -> usize {
        for (place, key) in keys.iter().enumerate().skip(self.shared.len()) {
            if self.unfindable {
                break;
            }
            let Some(block) = self.own.pop_front() else {
                break;
            };
            let content = Content {
                key: *key,
                scope,
                before: self.link(),
                tokens: &tokens[place * block_tokens..][..block_tokens],
            };
            match block.complete(content).publish() {
                Ok(block) => {
                    self.ids[place] = block.id();
                    self.shared.push(block);
                }
                Err(block) => {
                    self.own.push_front(block);
                    self.unfindable = true;
                }
            }
        }
        self.shared.len()
    }

    /// The ids of the blocks: element `i` holds positions `i * block_tokens ..`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Blocks at the front that others may read.
    pub fn shared(&self) -> usize {
        self.shared.len()
    }

    /// Blocks that would be free if this table gave up all of its own.
    pub fn freeable(&self) -> usize {
        self.own.len() + self.shared.iter().filter(|block| block.is_alone()).count()
    }

    /// Gives all blocks back, the last one first: of a kept chain the tail is reused before what it builds on.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.unfindable = false;
        while self.own.pop_back().is_some() {}
        while self.shared.pop().is_some() {}
    }

    fn link(&self) -> Link {
        self.shared.last().map_or(Link::ROOT, Block::link)
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        // A vector would drop the first block first.
        self.clear();
    }
}
