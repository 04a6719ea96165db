//! What a pool knows of its blocks: who owns them, in which order free ones are reused, and where content lies.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::free_list::FreeList;
use super::{Content, Link, PoolState};
use crate::keys::BlockKey;
use crate::scope::CacheScope;

/// The content of a block that is in the index.
#[derive(Debug)]
struct Node {
    key: BlockKey,
    scope: CacheScope,
    before: Link,
    link: Link,
    tokens: Box<[u32]>,
}

#[derive(Debug, Default)]
struct Slot {
    owners: u32,
    node: Option<Node>,
}

/// Keys are hashes already.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

#[derive(Debug)]
pub(super) struct Inner {
    free: FreeList,
    slots: Vec<Slot>,
    index: HashMap<BlockKey, u32, BuildHasherDefault<KeyHasher>>,
    last_link: u64,
    idle: usize,
    evictions: u64,
}

impl Inner {
    pub(super) fn new(total: u32) -> Self {
        Self {
            free: FreeList::full(total),
            slots: (0..total).map(|_| Slot::default()).collect(),
            index: HashMap::default(),
            last_link: 0,
            idle: 0,
            evictions: 0,
        }
    }

    pub(super) fn state(&self) -> PoolState {
        PoolState {
            total: self.slots.len(),
            free: self.free.len(),
            idle: self.idle,
            evictions: self.evictions,
        }
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// The next free block, whose content is forgotten.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let id = self.free.pop_front()?;
        let slot = &mut self.slots[id as usize];
        slot.owners = 1;
        if let Some(node) = slot.node.take() {
            self.index.remove(&node.key);
            self.idle -= 1;
            self.evictions += 1;
        }
        Some(id)
    }

    /// The block with this content.
    pub(super) fn get(&self, content: &Content<'_>) -> Option<(u32, Link)> {
        let id = *self.index.get(&content.key)?;
        let node = self.slots[id as usize].node.as_ref()?;
        let same = node.before == content.before
            && node.scope == content.scope
            && *node.tokens == *content.tokens;
        same.then_some((id, node.link))
    }

    /// Whether another content has the same key.
    pub(super) fn collides(&self, key: BlockKey) -> bool {
        self.index.contains_key(&key)
    }

    pub(super) fn is_free(&self, id: u32) -> bool {
        self.slots[id as usize].owners == 0
    }

    pub(super) fn owners(&self, id: u32) -> u32 {
        self.slots[id as usize].owners
    }

    /// One owner more, of a block in the index.
    pub(super) fn share(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        slot.owners += 1;
        if slot.owners == 1 {
            self.free.unlink(id);
            self.idle -= 1;
        }
    }

    /// Puts an owned block into the index, whose key must be new there.
    pub(super) fn insert(&mut self, id: u32, content: &Content<'_>) -> Link {
        self.last_link += 1;
        let link = Link(self.last_link);
        self.slots[id as usize].node = Some(Node {
            key: content.key,
            scope: content.scope,
            before: content.before,
            link,
            tokens: content.tokens.into(),
        });
        self.index.insert(content.key, id);
        link
    }

    /// One owner less. What can still be found is reused last.
    pub(super) fn release(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        assert!(slot.owners > 0, "block {id} was freed twice");
        slot.owners -= 1;
        if slot.owners > 0 {
            return;
        }
        if slot.node.is_some() {
            self.idle += 1;
            self.free.push_back(id);
        } else {
            self.free.push_front(id);
        }
    }

    #[cfg(test)]
    pub(super) fn free_order(&self) -> Vec<u32> {
        self.free.iter().collect()
    }
}
