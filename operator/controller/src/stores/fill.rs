//! Fills a table from a watch, and asks for reconciles of what changed.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use tokio::sync::watch as watch_channel;

use super::table::{Change, Kept, Table};
use crate::{key::Key, queue::Queue, watch::Sink};

/// What is gone may be a child that has to be made again.
const GONE: Duration = Duration::from_millis(50);

/// A watch that has not been read yet; it is once this is dropped.
pub struct Unread(Arc<watch_channel::Sender<usize>>);

impl Unread {
    /// Counts one more.
    pub fn expect(count: &Arc<watch_channel::Sender<usize>>) -> Self {
        count.send_modify(|watches| *watches += 1);
        Self(count.clone())
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.0.send_modify(|watches| *watches -= 1);
    }
}

/// Who else wants to know of changes: of a key, what was and what is.
pub type Observer<V> = Arc<dyn Fn(&Key, Option<&V>, Option<&V>) + Send + Sync>;

/// Fills one table with one namespace's objects, or with all.
pub struct Fill<K, V, F> {
    pub table: Arc<Table<V>>,
    pub scope: Option<String>,
    pub keep: Arc<F>,
    /// How soon a change matters to the service; never, when none.
    pub delay: fn(Option<&V>, &V) -> Option<Duration>,
    /// Told of what is, and of what is no more.
    pub observer: Observer<V>,
    pub queue: Arc<Queue>,
    pub unread: Option<Unread>,
    pub epoch: u32,
    pub object: PhantomData<fn(K)>,
}

impl<K, V, F> Fill<K, V, F> {
    fn ask(&self, service: Option<Key>, delay: Duration) {
        if let Some(service) = service {
            self.queue.add(service, delay);
        }
    }
}

impl<K, V, F> Sink for Fill<K, V, F>
where
    V: Clone + Send + Sync + 'static,
    F: Fn(K) -> Option<Kept<V>> + Send + Sync,
{
    type Object = K;

    fn begin(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    fn put(&mut self, object: K) {
        let Some(kept) = (self.keep)(object) else {
            return;
        };
        let (key, service) = (kept.key.clone(), kept.service.clone());
        let value = kept.value.clone();
        let before = match self.table.put(kept, self.epoch) {
            Change::Nothing => return,
            Change::New => None,
            Change::Replaced(value, earlier) => {
                // Its label was changed: whoever had it has it no longer.
                if earlier != service {
                    self.ask(earlier, GONE);
                }
                Some(value)
            }
        };
        (self.observer)(&key, before.as_ref(), Some(&value));
        if let Some(delay) = (self.delay)(before.as_ref(), &value) {
            self.ask(service, delay);
        }
    }

    fn remove(&mut self, object: K) {
        let Some(kept) = (self.keep)(object) else {
            return;
        };
        if let Some((value, service)) = self.table.remove(&kept.key) {
            (self.observer)(&kept.key, Some(&value), None);
            self.ask(service, GONE);
        }
    }

    fn complete(&mut self) {
        for (key, value, service) in self.table.sweep(self.scope.as_deref(), self.epoch) {
            (self.observer)(&key, Some(&value), None);
            self.ask(service, GONE);
        }
        self.unread = None;
    }
}
