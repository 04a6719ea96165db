//! Watches of all that belongs to services, which show an observer each change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::task::JoinHandle;

use super::cluster::pods;
use super::observer::{Event, Observer};
use crate::bed::services::{child_resources, resource};

/// The watches, and what they have shown that may never be.
pub struct Eyes {
    shared: Arc<Mutex<(Observer, Vec<String>)>>,
    watches: Vec<JoinHandle<()>>,
}

impl Eyes {
    pub fn open(client: &Client) -> Self {
        let shared = Arc::default();
        let kinds = child_resources().into_iter().chain([resource(), pods()]);
        let watches = kinds
            .map(|kind| tokio::spawn(watch(client.clone(), kind, Arc::clone(&shared))))
            .collect();
        Self { shared, watches }
    }

    pub fn observer(&self) -> ObserverGuard<'_> {
        ObserverGuard(lock(&self.shared))
    }

    pub fn violations(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared).1)
    }
}

impl Drop for Eyes {
    fn drop(&mut self) {
        self.watches.iter().for_each(JoinHandle::abort);
    }
}

pub struct ObserverGuard<'a>(MutexGuard<'a, (Observer, Vec<String>)>);

impl std::ops::Deref for ObserverGuard<'_> {
    type Target = Observer;

    fn deref(&self) -> &Observer {
        &self.0.0
    }
}

impl std::ops::DerefMut for ObserverGuard<'_> {
    fn deref_mut(&mut self) -> &mut Observer {
        &mut self.0.0
    }
}

fn lock(shared: &Mutex<(Observer, Vec<String>)>) -> MutexGuard<'_, (Observer, Vec<String>)> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(client: Client, kind: ApiResource, shared: Arc<Mutex<(Observer, Vec<String>)>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &kind);
    let mut events = watcher(api, watcher::Config::default()).boxed();
    loop {
        let (object, deleted, listed) = match events.try_next().await {
            Ok(Some(watcher::Event::Apply(object))) => (object, false, false),
            Ok(Some(watcher::Event::InitApply(object))) => (object, false, true),
            Ok(Some(watcher::Event::Delete(object))) => (object, true, false),
            Ok(Some(_)) => continue,
            Ok(None) => return,
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let Ok(object) = serde_json::to_value(object) else {
            continue;
        };
        let mut shared = lock(&shared);
        let wrong = shared.0.see(&Event {
            kind: kind.kind.clone(),
            object,
            deleted,
            listed,
        });
        shared.1.extend(wrong);
    }
}
