//! When pods of a service became ready, as a watch of the API server tells it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinHandle;

use crate::bed::services::{Key, SERVICE_LABEL};

const PAUSE: Duration = Duration::from_millis(200);

/// Watches when pods of one service become ready, until dropped.
pub(super) struct ReadyPods {
    seen: Arc<Mutex<HashMap<String, Instant>>>,
    watch: JoinHandle<()>,
}

impl ReadyPods {
    pub(super) fn watch(client: &Client, key: &Key) -> Self {
        let seen: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
        let watch = tokio::spawn(watch_pods(client.clone(), key.clone(), seen.clone()));
        Self { seen, watch }
    }

    /// Moments at which pods became ready after `since`, in order.
    pub(super) fn since(&self, since: Instant) -> Vec<Instant> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut moments: Vec<Instant> = seen.values().copied().filter(|at| *at >= since).collect();
        moments.sort_unstable();
        moments
    }
}

impl Drop for ReadyPods {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

async fn watch_pods(client: Client, key: Key, seen: Arc<Mutex<HashMap<String, Instant>>>) {
    let selector = format!("{SERVICE_LABEL}={}", key.1);
    let api: Api<Pod> = Api::namespaced(client, &key.0);
    let mut events = watcher(api, watcher::Config::default().labels(&selector)).boxed();
    loop {
        let pod = match events.try_next().await {
            Ok(Some(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod))) => pod,
            Ok(_) => continue,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if is_ready(&pod) {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.entry(pod.uid().unwrap_or_default())
                .or_insert_with(Instant::now);
        }
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
