//! The pool of KV blocks, the handles that own them, and the index of what is in them.
//!
//! A block is in one of four states, and a handle's type says which: [`Mutable`] is one sequence's and is being filled;
//! [`Complete`] is full and its content has a name; [`Shared`] is in the index and may be read by many, written by none. When
//! the last handle goes, the block is free: one that never was in the index is reused first, one that is goes to the back of
//! the free list and stays in the index as a *weak* entry, which [`BlockPool::find`] revives until the block is taken for
//! something else. Dropping a handle is what gives a block back: a leak or a double free cannot be written.
//!
//! **A hit is exact.** An entry is found by its key, a keyed hash, and counts only when its tokens, its scope and its
//! predecessor, named by a number that is never used twice, are those looked for. Colliding keys cost a hit, never an answer.

mod free_list;
mod handle;
mod inner;
mod table;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use handle::{Block, Complete, Mutable, Shared};
use inner::Inner;
pub use table::BlockTable;

use crate::keys::BlockKey;
use crate::scope::CacheScope;
use handle::Owned;

/// Where in the index a chain of shared blocks has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(u64);

impl Link {
    /// Before the first block.
    pub const ROOT: Self = Self(0);
}

/// What is in a full block.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// The hash of all that follows.
    pub key: BlockKey,
    /// What its keys and values depend on besides tokens.
    pub scope: CacheScope,
    /// The block before it.
    pub before: Link,
    /// Its tokens.
    pub tokens: &'a [u32],
}

/// Blocks that a prompt's beginning was found in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How many.
    pub blocks: usize,
    /// How many of them nobody owns: taking them uses free blocks up.
    pub idle: usize,
}

/// How full a pool is, and what has happened to what it kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolState {
    /// Blocks in the pool.
    pub total: usize,
    /// Blocks that nobody owns.
    pub free: usize,
    /// Those of them whose content could still be found.
    pub idle: usize,
    /// Blocks whose content was given up for another's, ever.
    pub evictions: u64,
}

/// Hands out blocks of KV memory. Cloning it makes another handle on the same pool.
#[derive(Clone, Debug)]
pub struct BlockPool {
    inner: Arc<Mutex<Inner>>,
}

impl BlockPool {
    /// A pool of the blocks `0..total`, all free and empty.
    pub fn new(total: u32) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner::new(total))),
        }
    }

    /// How full it is.
    pub fn state(&self) -> PoolState {
        self.lock().state()
    }

    /// Blocks in the pool, free or not.
    pub fn total(&self) -> usize {
        self.state().total
    }

    /// Blocks that nobody owns.
    pub fn free(&self) -> usize {
        self.lock().free()
    }

    /// One block to fill, or `None` when all are owned.
    pub fn allocate(&self) -> Option<Block<Mutable>> {
        let id = self.lock().allocate()?;
        Some(Block {
            owned: self.owned(id),
            state: Mutable,
        })
    }

    /// How many blocks of a chain are kept. `keys` are those of the first full blocks of `tokens`, and set how many are
    /// looked for. Takes nothing.
    pub fn look(
        &self,
        scope: CacheScope,
        keys: &[BlockKey],
        tokens: &[u32],
        block_tokens: usize,
    ) -> Found {
        let inner = self.lock();
        let mut found = Found::default();
        let mut before = Link::ROOT;
        for (key, tokens) in keys.iter().zip(tokens.chunks_exact(block_tokens)) {
            let content = Content {
                key: *key,
                scope,
                before,
                tokens,
            };
            let Some((id, link)) = inner.get(&content) else {
                break;
            };
            before = link;
            found.blocks += 1;
            found.idle += usize::from(inner.is_free(id));
        }
        found
    }

    /// The block with this content, if it is kept; revived where nobody owned it.
    pub fn find(&self, content: &Content<'_>) -> Option<Block<Shared>> {
        let mut inner = self.lock();
        let (id, link) = inner.get(content)?;
        inner.share(id);
        drop(inner);
        Some(Block {
            owned: self.owned(id),
            state: Shared { link },
        })
    }

    fn owned(&self, id: u32) -> Owned {
        Owned {
            id,
            pool: self.clone(),
        }
    }

    /// The state is consistent between any two operations, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks as they will be reused, and whether each can still be found: for tests of the order.
    #[cfg(test)]
    fn free_order(&self) -> Vec<u32> {
        self.lock().free_order()
    }
}
