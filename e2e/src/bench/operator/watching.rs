//! Watches every service and its children until all are there: when, and what came last.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{StreamExt, TryStreamExt};
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::core::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use pagoda_e2e::progress::Progress;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::bed::services::{Key, SERVICE_LABEL, child_resources, resource};

/// What has been seen of the services of one run.
#[derive(Debug, Default)]
struct Seen {
    /// Kinds of children, by service.
    children: HashMap<Key, HashSet<String>>,
    complete: usize,
    /// Services whose status speaks of their spec.
    told: HashSet<Key>,
    /// Of those, services that are Ready.
    ready: HashSet<Key>,
}

/// When what was first true of all services, in seconds since the first creation.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Milestones {
    pub(super) children: Option<f64>,
    pub(super) told: Option<f64>,
    pub(super) ready: Option<f64>,
}

impl Milestones {
    /// All children applied and every status written.
    pub(super) fn converged(&self) -> Option<f64> {
        Some(self.children?.max(self.told?))
    }
}

/// Watches until dropped.
pub(super) struct Watching {
    seen: Arc<Mutex<Seen>>,
    watches: Vec<JoinHandle<()>>,
}

impl Watching {
    pub(super) fn start(client: &Client) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let mut watches: Vec<JoinHandle<()>> = child_resources()
            .into_iter()
            .map(|kind| tokio::spawn(watch_children(client.clone(), kind, seen.clone())))
            .collect();
        watches.push(tokio::spawn(watch_services(client.clone(), seen.clone())));
        Self { seen, watches }
    }

    /// Waits until all of `count` services are complete, told and, when `until_ready`, Ready.
    pub(super) async fn wait(
        &self,
        count: usize,
        began: Instant,
        until_ready: bool,
        patience: Duration,
        progress: &Progress,
    ) -> Result<Milestones> {
        let mut milestones = Milestones::default();
        let mut said = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(25)).await;
            let (children, told, ready) = self.counts();
            let now = began.elapsed().as_secs_f64();
            let mark = |milestone: &mut Option<f64>, seen: usize| {
                if seen >= count && milestone.is_none() {
                    *milestone = Some(now);
                }
            };
            mark(&mut milestones.children, children);
            mark(&mut milestones.told, told);
            mark(&mut milestones.ready, ready);
            if milestones.converged().is_some() && (milestones.ready.is_some() || !until_ready) {
                return Ok(milestones);
            }
            if began.elapsed() > patience {
                bail!(
                    "after {} s only {children} of {count} services had all their children, {told} a status, {ready} were Ready",
                    patience.as_secs()
                );
            }
            if said.elapsed() > Duration::from_secs(5) {
                progress.step(format!(
                    "of {count}: {children} with all children, {told} with status, {ready} Ready"
                ));
                said = Instant::now();
            }
        }
    }

    fn counts(&self) -> (usize, usize, usize) {
        let seen = lock(&self.seen);
        (seen.complete, seen.told.len(), seen.ready.len())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watches.iter().for_each(JoinHandle::abort);
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch_children(client: Client, kind: ApiResource, seen: Arc<Mutex<Seen>>) {
    let kinds = child_resources().len();
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &kind);
    let config = watcher::Config::default().labels(SERVICE_LABEL);
    let mut events = watcher(api, config).boxed();
    loop {
        let Ok(Some(event)) = events.try_next().await else {
            continue;
        };
        let (watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else {
            continue;
        };
        if let Some(key) = service_of(&object) {
            let mut seen = lock(&seen);
            let children = seen.children.entry(key).or_default();
            let is_new = children.insert(kind.kind.clone());
            let is_complete = children.len() == kinds;
            seen.complete += usize::from(is_new && is_complete);
        }
    }
}

fn service_of(object: &PartialObjectMeta<DynamicObject>) -> Option<Key> {
    let service = object.labels().get(SERVICE_LABEL)?;
    Some((object.namespace()?, service.clone()))
}

async fn watch_services(client: Client, seen: Arc<Mutex<Seen>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &resource());
    let mut events = watcher(api, watcher::Config::default()).boxed();
    loop {
        let Ok(Some(event)) = events.try_next().await else {
            continue;
        };
        let (watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else {
            continue;
        };
        let key = (object.namespace().unwrap_or_default(), object.name_any());
        let status = &object.data["status"];
        if !is_told(status, object.metadata.generation) {
            continue;
        }
        let is_ready = condition(status, "Ready") == Some("True");
        let mut seen = lock(&seen);
        if is_ready {
            seen.ready.insert(key.clone());
        }
        seen.told.insert(key);
    }
}

/// A status that was written for this very spec, with the number of pods and what the conditions are.
fn is_told(status: &Value, generation: Option<i64>) -> bool {
    generation.is_some()
        && status["observedGeneration"].as_i64() == generation
        && status["replicas"].is_i64()
        && condition(status, "Ready").is_some()
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a str> {
    let conditions = status["conditions"].as_array()?;
    let found = conditions
        .iter()
        .find(|condition| condition["type"] == kind)?;
    found["status"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_of_an_earlier_spec_or_without_conditions_is_none_yet() {
        let status = json!({"observedGeneration": 1, "replicas": 0, "conditions": [{"type": "Ready", "status": "False"}]});
        assert!(is_told(&status, Some(1)));
        assert!(!is_told(&status, Some(2)));
        assert!(!is_told(
            &json!({"observedGeneration": 1, "replicas": 0}),
            Some(1)
        ));
        assert!(!is_told(&Value::Null, None));
    }

    #[test]
    fn converged_is_when_the_later_of_children_and_statuses_was_there() {
        let milestones = Milestones {
            children: Some(3.0),
            told: Some(2.0),
            ready: None,
        };
        assert_eq!(milestones.converged(), Some(3.0));
        assert_eq!(
            Milestones {
                children: None,
                ..milestones
            }
            .converged(),
            None
        );
    }
}
