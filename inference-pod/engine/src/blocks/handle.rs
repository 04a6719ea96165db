//! Handles on blocks, by state.

use super::{BlockPool, Content, Link};

/// A share in a block: dropping it gives the share back.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) id: u32,
    pub(super) pool: BlockPool,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.pool.lock().release(self.id);
    }
}

/// The block is one sequence's alone and is being filled.
#[derive(Debug)]
pub struct Mutable;

/// The block is full and its content has a name, which nobody else knows yet.
#[derive(Debug)]
pub struct Complete<'a> {
    content: Content<'a>,
}

/// The block is in the index: its content never changes while anybody owns it.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    pub(super) link: Link,
}

/// Ownership of a block in the state `S`.
#[derive(Debug)]
pub struct Block<S> {
    pub(super) owned: Owned,
    pub(super) state: S,
}

impl<S> Block<S> {
    /// The block's index in the KV store.
    pub fn id(&self) -> u32 {
        self.owned.id
    }
}

impl Block<Mutable> {
    /// Every position of the block is computed, and this is what they hold.
    pub fn complete(self, content: Content<'_>) -> Block<Complete<'_>> {
        Block {
            owned: self.owned,
            state: Complete { content },
        }
    }
}

impl Block<Complete<'_>> {
    /// Puts the block into the index. Where its content is there already, that block is taken instead and this one freed: the
    /// same tokens have the same keys and values, bit for bit. Where the key belongs to another content, the block is given
    /// back as it was: it cannot be shared.
    pub fn publish(self) -> Result<Block<Shared>, Block<Mutable>> {
        let content = self.state.content;
        let mut inner = self.owned.pool.lock();
        if let Some((id, link)) = inner.get(&content) {
            inner.share(id);
            drop(inner);
            return Ok(Block {
                owned: self.owned.pool.owned(id),
                state: Shared { link },
            });
        }
        if inner.collides(content.key) {
            drop(inner);
            return Err(Block {
                owned: self.owned,
                state: Mutable,
            });
        }
        let link = inner.insert(self.owned.id, &content);
        drop(inner);
        Ok(Block {
            owned: self.owned,
            state: Shared { link },
        })
    }
}

impl Block<Shared> {
    /// Its place in the index, which the next block of the chain names as its predecessor.
    pub fn link(&self) -> Link {
        self.state.link
    }

    /// Whether others own it too.
    pub fn is_alone(&self) -> bool {
        self.owned.pool.lock().owners(self.owned.id) == 1
    }
}
