//! The pool of KV blocks and the handles that own them.
//!
//! A block is owned by exactly one [`Block`] handle, and dropping the handle gives it back: a leak or a double free
//! cannot be written. A sequence holds its blocks in a [`BlockTable`].
//!
//! A prefix index will share full blocks between sequences by a key, and put keyed blocks at the *back* of the free list,
//! tail of a chain first. The order in which [`BlockTable`] frees is made for that already.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::free_list::FreeList;

/// Hands out blocks of KV memory. Cloning it makes another handle on the same pool.
#[derive(Clone, Debug)]
pub struct BlockPool {
    free: Arc<Mutex<FreeList>>,
    total: u32,
}

impl BlockPool {
    /// A pool of the blocks `0..total`, all free.
    pub fn new(total: u32) -> Self {
        Self {
            free: Arc::new(Mutex::new(FreeList::full(total))),
            total,
        }
    }

    /// Blocks in the pool, free or not.
    pub fn total(&self) -> usize {
        self.total as usize
    }

    /// Blocks that nobody owns.
    pub fn free(&self) -> usize {
        self.list().len()
    }

    /// One block, or `None` when all are owned.
    pub fn allocate(&self) -> Option<Block> {
        let id = self.list().pop_front()?;
        Some(Block {
            id,
            pool: self.clone(),
        })
    }

    /// The list is consistent between any two operations, so a panic elsewhere does not spoil it.
    fn list(&self) -> MutexGuard<'_, FreeList> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ownership of one block. Dropping it frees the block, to be reused first.
#[derive(Debug)]
pub struct Block {
    id: u32,
    pool: BlockPool,
}

impl Block {
    /// The block's index in the KV store.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.list().push_front(self.id);
    }
}

/// The blocks of one sequence, in the order of its positions.
#[derive(Debug, Default)]
pub struct BlockTable {
    blocks: Vec<Block>,
    ids: Vec<u32>,
}

impl BlockTable {
    /// Appends blocks until there are `count`. Takes all that are missing or, when the pool cannot give them, none.
    ///
    /// Returns whether the table now holds at least `count` blocks.
    pub fn grow_to(&mut self, count: usize, pool: &BlockPool) -> bool {
        let missing = count.saturating_sub(self.blocks.len());
        if missing > pool.free() {
            return false;
        }
        for _ in 0..missing {
            let Some(block) = pool.allocate() else {
                return false;
            };
            self.ids.push(block.id());
            self.blocks.push(block);
        }
        true
    }

    /// The ids of the blocks: element `i` holds positions `i * block_tokens ..`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Gives all blocks back, the last one first.
    pub fn clear(&mut self) {
        self.ids.clear();
        while self.blocks.pop().is_some() {}
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        // A vector would drop the first block first.
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dropping_a_table_returns_its_blocks() {
        let pool = BlockPool::new(10);
        let mut table = BlockTable::default();
        assert!(table.grow_to(4, &pool));
        assert_eq!((table.ids(), pool.free()), ([0, 1, 2, 3].as_slice(), 6));
        drop(table);
        assert_eq!(pool.free(), 10);
    }

    #[test]
    fn a_table_that_cannot_grow_takes_nothing() {
        let pool = BlockPool::new(3);
        let (mut first, mut second) = (BlockTable::default(), BlockTable::default());
        assert!(first.grow_to(2, &pool));
        assert!(!second.grow_to(2, &pool));
        assert_eq!((second.ids().len(), pool.free()), (0, 1));
    }

    #[test]
    fn a_chain_frees_its_tail_first_so_its_head_is_reused_first() {
        let pool = BlockPool::new(6);
        let mut table = BlockTable::default();
        assert!(table.grow_to(3, &pool));
        drop(table);
        let reused: Vec<Block> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(
            reused.iter().map(Block::id).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5]
        );
    }

    proptest! {
        #[test]
        fn every_block_is_either_free_or_owned_by_one_table(operations in prop::collection::vec((0usize..6, 0usize..9), 1..200)) {
            let pool = BlockPool::new(20);
            let mut tables: Vec<BlockTable> = (0..6).map(|_| BlockTable::default()).collect();
            for (table, count) in operations {
                if count == 0 {
                    tables[table] = BlockTable::default();
                } else {
                    tables[table].grow_to(count, &pool);
                }
                let mut owned: Vec<u32> = tables.iter().flat_map(|table| table.ids().iter().copied()).collect();
                prop_assert_eq!(pool.free() + owned.len(), pool.total());
                owned.sort_unstable();
                owned.dedup();
                prop_assert_eq!(pool.free() + owned.len(), pool.total());
            }
        }
    }
}
