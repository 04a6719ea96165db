//! Every number of pods that anybody asked for, and when, as a watch of the API server tells it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinHandle;

const PAUSE: Duration = Duration::from_millis(200);

/// Namespace and name of a service.
type Key = (String, String);

/// Changes of `spec.replicas`, in the order in which they came; the first is what there was when the watch began.
pub type Changes = Vec<(Instant, i64)>;

/// Watches `spec.replicas` of all InferenceServices until dropped.
pub struct ReplicasSeen {
    seen: Arc<Mutex<HashMap<Key, Changes>>>,
    watch: JoinHandle<()>,
}

impl ReplicasSeen {
    /// Begins to watch.
    pub fn watch(client: &Client) -> Self {
        let seen: Arc<Mutex<HashMap<Key, Changes>>> = Arc::default();
        let watch = tokio::spawn(follow(client.clone(), seen.clone()));
        Self { seen, watch }
    }

    /// What was seen of one service.
    pub fn of(&self, key: &Key) -> Changes {
        lock(&self.seen).get(key).cloned().unwrap_or_default()
    }

    /// When the number rose first after `since`.
    pub fn rise_after(&self, key: &Key, since: Instant) -> Option<Instant> {
        let seen = lock(&self.seen);
        let mut pairs = seen.get(key)?.windows(2);
        pairs.find_map(|pair| (pair[1].0 >= since && pair[1].1 > pair[0].1).then_some(pair[1].0))
    }

    /// The number now; none before it was seen.
    pub fn now(&self, key: &Key) -> Option<i64> {
        Some(lock(&self.seen).get(key)?.last()?.1)
    }
}

impl Drop for ReplicasSeen {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

async fn follow(client: Client, seen: Arc<Mutex<HashMap<Key, Changes>>>) {
    let kind = GroupVersionKind::gvk("serving.pagoda.dev", "v1alpha1", "InferenceService");
    let resource = ApiResource::from_gvk_with_plural(&kind, "inferenceservices");
    let api: Api<DynamicObject> = Api::all_with(client, &resource);
    let mut events = watcher(api, watcher::Config::default()).boxed();
    loop {
        let object = match events.try_next().await {
            Ok(Some(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => object,
            Ok(_) => continue,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(replicas) = object.data["spec"]["replicas"].as_i64() else {
            continue;
        };
        let key = (object.namespace().unwrap_or_default(), object.name_any());
        let mut seen = lock(&seen);
        let changes = seen.entry(key).or_default();
        if changes.last().is_none_or(|(_, last)| *last != replicas) {
            changes.push((Instant::now(), replicas));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often the number changed its direction.
pub fn reversals(changes: &[(Instant, i64)]) -> usize {
    let signs: Vec<i64> = changes
        .windows(2)
        .map(|pair| (pair[1].1 - pair[0].1).signum())
        .filter(|sign| *sign != 0)
        .collect();
    signs.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_in_one_direction_are_no_reversal_and_each_turn_is_one() {
        let of = |numbers: &[i64]| {
            let now = Instant::now();
            let changes: Changes = numbers.iter().map(|number| (now, *number)).collect();
            reversals(&changes)
        };
        assert_eq!(of(&[1, 3, 7]), 0);
        assert_eq!(of(&[1, 7, 6, 5]), 1);
        assert_eq!(of(&[1, 7, 6, 7, 6]), 3);
        assert_eq!(of(&[]), 0);
    }
}
