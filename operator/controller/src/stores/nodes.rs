//! Nodes, and the services that none of them could hold.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagoda_operator_core::placement::NodeView;

use super::table::Table;
use crate::{key::Key, queue::Queue};

/// A node that joins is seldom alone.
const BURST: Duration = Duration::from_secs(1);

/// Nodes; none when they may not be read.
#[derive(Debug, Default)]
pub struct Nodes {
    pub(super) table: Arc<Table<Arc<NodeView>>>,
    /// All of them, until one changes.
    snapshot: Mutex<Option<Arc<Vec<NodeView>>>>,
    /// What each computes with, until one changes.
    hardware: Mutex<HashMap<String, Arc<str>>>,
    unplaced: Mutex<HashSet<Key>>,
}

impl Nodes {
    /// All nodes.
    pub fn all(&self) -> Arc<Vec<NodeView>> {
        let mut snapshot = lock(&self.snapshot);
        let read = || {
            let mut all: Vec<NodeView> = self.table.all().iter().map(|n| (**n).clone()).collect();
            all.sort_by(|a, b| a.name.cmp(&b.name));
            Arc::new(all)
        };
        snapshot.get_or_insert_with(read).clone()
    }

    /// What a node computes with; `cpu` for one that is not known.
    pub fn hardware(&self, node: &str) -> Arc<str> {
        let mut known = lock(&self.hardware);
        if let Some(hardware) = known.get(node) {
            return hardware.clone();
        }
        let row = self.table.get(&Key::new("", node));
        let hardware: Arc<str> = row.as_ref().map_or("cpu", |node| node.hardware()).into();
        // Only nodes of pods are asked for; names that mean nothing must not pile up all the same.
        if row.is_some() {
            known.insert(node.to_owned(), hardware.clone());
        }
        hardware
    }

    /// Notes whether a service has a node that could hold it: if not, it is looked at again when nodes change.
    pub fn note(&self, service: &Key, fits: bool) {
        let mut unplaced = lock(&self.unplaced);
        if fits {
            unplaced.remove(service);
        } else {
            unplaced.insert(service.clone());
        }
    }

    /// A node tells its health every few minutes; what counts here changes seldom.
    pub(super) fn take(
        &self,
        queue: &Queue,
        before: Option<&Arc<NodeView>>,
        after: Option<&Arc<NodeView>>,
    ) {
        if before == after {
            return;
        }
        *lock(&self.snapshot) = None;
        lock(&self.hardware).clear();
        for service in lock(&self.unplaced).iter() {
            queue.add(service.clone(), BURST);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
