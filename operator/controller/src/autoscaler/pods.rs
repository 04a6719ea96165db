//! The pods of a service, as a decision sees them.

use std::sync::Arc;

use pagoda_operator_core::autoscale::{PodReading, PodSeen};
use tokio::time::Instant;

use super::{pod_scraper::Question, signals::PodSignals};
use crate::{
    context::Context,
    key::Key,
    stores::{Nodes, PodRow},
};

/// Pods of a service that live and stay, ready or not.
pub fn living(context: &Context, service: &Key) -> Vec<Arc<PodRow>> {
    let mut rows = context.stores.pods.values_of(service);
    rows.retain(|row| !row.prefetches && !row.view.leaving);
    rows
}

/// Whether a pod is asked for its load.
pub fn is_asked(pod: &PodRow) -> bool {
    pod.view.ready && pod.server.is_some()
}

/// Questions to those pods that can be asked.
pub fn questions(
    pods: &[Arc<PodRow>],
    often: bool,
    is_ours: bool,
) -> impl Iterator<Item = Question> {
    let asked = pods.iter().filter(|pod| is_asked(pod));
    asked.filter_map(move |pod| {
        Some(Question {
            address: pod.server?,
            often,
            is_ours,
        })
    })
}

/// Pods with what they told. Answers come in the order of the questions.
pub fn seen(
    pods: &[Arc<PodRow>],
    answers: &mut impl Iterator<Item = Option<PodReading>>,
    nodes: &Nodes,
    now: Instant,
) -> Vec<PodSeen> {
    let see = |pod: &Arc<PodRow>| PodSeen {
        name: pod.name.clone(),
        revision: pod.revision.clone(),
        hardware: nodes.hardware(pod.view.node.as_deref().unwrap_or_default()),
        ready: pod.view.ready,
        age_millis: pod.made.at(now).as_millis() as u64,
        ready_age_millis: pod.ready.map(|ready| ready.at(now).as_millis() as u64),
        reading: if is_asked(pod) {
            answers.next().flatten()
        } else {
            None
        },
    };
    pods.iter().map(see).collect()
}

/// What pods told, for whoever serves it on.
pub fn signals(pods: &[PodSeen]) -> Vec<PodSignals> {
    let told = pods.iter().filter_map(|pod| {
        let reading = pod.reading.as_ref()?;
        Some(PodSignals {
            name: pod.name.clone(),
            running: reading.running,
            waiting: reading.waiting,
            kv_usage_milli: reading.kv_usage_milli.map(u64::from),
            cache_queries: reading.cache_queries,
            cache_hits: reading.cache_hits,
        })
    });
    told.collect()
}
