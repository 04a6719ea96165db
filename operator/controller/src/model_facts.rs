//! What a ready pod tells of the model that it loaded: asked for beside the reconciles, which never wait for a pod.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagoda_crds::wire::ModelInfo;
use pagoda_operator_core::status::PodView;
use serde::Deserialize;
use tokio::{sync::Semaphore, time::Instant};

use crate::{context::Context, key::Key, pod_address, targets::Targets};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Questions at once.
const CONCURRENCY: usize = 64;
/// A pod that answers requests and never tells its model is asked this seldom in the end.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);
/// Of each text in the facts; a pod may be anything that a user put there.
const TEXT_BYTES: usize = 64;

/// Who was asked, and how many are being asked.
#[derive(Debug)]
pub struct Asker {
    targets: Mutex<Targets>,
    places: Semaphore,
}

impl Default for Asker {
    fn default() -> Self {
        Self {
            targets: Mutex::new(Targets::new(LONGEST_PAUSE)),
            places: Semaphore::new(CONCURRENCY),
        }
    }
}

impl Asker {
    fn targets(&self) -> MutexGuard<'_, Targets> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    pagoda: Option<ModelInfo>,
}

/// Facts of a revision's model, if a pod has told them. If not, one of the ready pods is asked, and the service is
/// reconciled again when it has answered or is to be asked again.
pub fn model_facts(
    context: &Arc<Context>,
    key: &Key,
    revision: &str,
    ready: Option<&PodView>,
) -> Option<ModelInfo> {
    if let Some((known, facts)) = context.recall(key).model
        && known == revision
    {
        return Some(facts);
    }
    let address = pod_address::server(ready?)?;
    let now = Instant::now();
    {
        let mut targets = context.asker.targets();
        if !targets.is_due(&address, now) {
            return None;
        }
        // Until it answers it counts as one that does not.
        targets.note(&address, false, now);
        targets.forget_old(now);
    }
    let (context, key, revision) = (context.clone(), key.clone(), revision.to_owned());
    tokio::spawn(async move { ask(&context, key, revision, &address).await });
    None
}

async fn ask(context: &Context, key: Key, revision: String, address: &str) {
    let Ok(_place) = context.asker.places.acquire().await else {
        return;
    };
    let url = format!("http://{address}/v1/models");
    let body = context.http.get_once(&url, TIMEOUT).await;
    let facts = body
        .ok()
        .and_then(|body| serde_json::from_slice::<Models>(&body).ok())
        .and_then(|models| models.data.into_iter().find_map(|entry| entry.pagoda))
        .filter(is_bounded);
    let mut targets = context.asker.targets();
    let Some(facts) = facts else {
        let wait = targets
            .due(address)
            .map_or(LONGEST_PAUSE, |due| due.duration_since(Instant::now()));
        context.queue.add(key, wait);
        return;
    };
    targets.note(address, true, Instant::now());
    drop(targets);
    context.remember(&key, |memory| memory.model = Some((revision, facts)));
    context.queue.add(key, Duration::ZERO);
}

fn is_bounded(facts: &ModelInfo) -> bool {
    [&facts.executor, &facts.architecture, &facts.quantization]
        .iter()
        .all(|text| text.len() <= TEXT_BYTES)
}
