//! How far pods that fetch their model have come: asked for every few seconds, beside the reconciles.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream};
use pagoda_crds::wire::FetchProgress;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{context::Context, key::Key, pod_address, targets::Targets};

const ROUND: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_secs(1);
const CONCURRENCY: usize = 64;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What a status tells of is a step of this many percent.
const STEP_PERCENT: u64 = 5;

/// Asks until the process ends.
pub async fn run(context: Arc<Context>) {
    if context.stores.wait_until_read().await.is_err() {
        return;
    }
    let mut every = interval(ROUND);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut targets = Targets::new(LONGEST_PAUSE);
    let mut told: HashMap<Key, u64> = HashMap::new();
    loop {
        every.tick().await;
        let answers = round(&context, &mut targets).await;
        told.retain(|key, _| answers.contains_key(key));
        for (key, progress) in answers {
            let step = behind(&progress) / STEP_PERCENT;
            context.remember(&key, |memory| memory.fetching = progress);
            if told.insert(key.clone(), step) != Some(step) {
                context.queue.add(key, Duration::ZERO);
            }
        }
    }
}

/// What pods told, by service.
async fn round(context: &Context, targets: &mut Targets) -> BTreeMap<Key, Vec<FetchProgress>> {
    let now = Instant::now();
    let fetching: Vec<(Key, String)> = context
        .stores
        .pods
        .entries_where(|row| row.view.fetching && !row.view.leaving && !row.prefetches)
        .into_iter()
        .filter_map(|(service, row)| Some((service?, pod_address::fetcher(&row.view)?)))
        .filter(|(_, address)| targets.is_due(address, now))
        .collect();
    let asked: Vec<_> = fetching
        .into_iter()
        .map(|(service, address)| ask(context, service, address).boxed())
        .collect();
    let answers: Vec<_> = stream::iter(asked)
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let mut by_service: BTreeMap<Key, Vec<FetchProgress>> = BTreeMap::new();
    for (service, address, answer) in answers {
        targets.note(&address, answer.is_some(), Instant::now());
        if let Some(progress) = answer {
            by_service.entry(service).or_default().push(progress);
        }
    }
    targets.forget_old(Instant::now());
    by_service
}

async fn ask(
    context: &Context,
    service: Key,
    address: String,
) -> (Key, String, Option<FetchProgress>) {
    let url = format!("http://{address}/progress");
    let body = context.http.get(&url, TIMEOUT).await;
    let progress = body.ok().and_then(|b| serde_json::from_slice(&b).ok());
    (service, address, progress)
}

/// Percent of the one that is furthest behind.
fn behind(all: &[FetchProgress]) -> u64 {
    let percent = |p: &FetchProgress| {
        let total = p.total_bytes.unwrap_or(0).max(1);
        p.bytes.saturating_mul(100) / total
    };
    all.iter().map(percent).min().unwrap_or(0)
}
