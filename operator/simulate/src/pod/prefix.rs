//! Prefixes of prompts whose keys and values a pod has kept: found by id, dropped least recently used first.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Running sequences that read it; while there is one it cannot be dropped.
    readers: u32,
    /// Of the moment when the last reader left.
    stamp: u64,
}

/// What is kept. Every id stands for the same number of tokens.
#[derive(Debug, Default)]
pub struct PrefixCache {
    entries: HashMap<u64, Entry, FixedState>,
    /// `(id, stamp)` in the order in which readers left; those whose stamp is no longer the entry's count for nothing.
    idle: VecDeque<(u64, u64)>,
    idle_count: u32,
    next_stamp: u64,
}

impl PrefixCache {
    /// Kept prefixes that somebody reads.
    pub fn held(&self) -> u32 {
        self.entries.len() as u32 - self.idle_count
    }

    /// Kept prefixes that nobody reads: they may be dropped.
    pub fn idle(&self) -> u32 {
        self.idle_count
    }

    /// How many of `ids`, from the first on, are kept, and how many of those nobody reads.
    pub fn look(&self, ids: &[u64]) -> (u32, u32) {
        let (mut found, mut idle) = (0, 0);
        for id in ids {
            let Some(entry) = self.entries.get(id) else {
                break;
            };
            found += 1;
            idle += u32::from(entry.readers == 0);
        }
        (found, idle)
    }

    /// A reader for each of `ids`, all of which are kept.
    pub fn hold(&mut self, ids: &[u64]) {
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                self.idle_count -= u32::from(entry.readers == 0);
                entry.readers += 1;
            }
        }
    }

    /// Keeps `id`, with one reader. False when it is kept already: nothing changes then.
    pub fn insert(&mut self, id: u64) -> bool {
        let entry = Entry {
            readers: 1,
            stamp: 0,
        };
        if self.entries.contains_key(&id) {
            return false;
        }
        self.entries.insert(id, entry);
        true
    }

    /// A reader of each of `ids` leaves. The end of a prefix is worth less than its beginning, so it goes first.
    pub fn release(&mut self, ids: &[u64]) {
        for id in ids.iter().rev() {
            let Some(entry) = self.entries.get_mut(id) else {
                continue;
            };
            entry.readers -= 1;
            if entry.readers == 0 {
                entry.stamp = self.next_stamp;
                self.idle.push_back((*id, self.next_stamp));
                self.next_stamp += 1;
                self.idle_count += 1;
            }
        }
        if self.idle.len() > 2 * self.entries.len() + 64 {
            let entries = &self.entries;
            self.idle
                .retain(|(id, stamp)| is_idle(entries, *id, *stamp));
        }
    }

    /// Drops the prefix that nobody has read for longest. False when every one has a reader.
    pub fn drop_oldest(&mut self) -> bool {
        while let Some((id, stamp)) = self.idle.pop_front() {
            if is_idle(&self.entries, id, stamp) {
                self.entries.remove(&id);
                self.idle_count -= 1;
                return true;
            }
        }
        false
    }
}

fn is_idle(entries: &HashMap<u64, Entry, FixedState>, id: u64, stamp: u64) -> bool {
    entries
        .get(&id)
        .is_some_and(|entry| entry.readers == 0 && entry.stamp == stamp)
}
