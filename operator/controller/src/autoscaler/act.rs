//! Carries decisions out: what is in their way, what is written, and what people hear of it.

use std::sync::Arc;

use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use pagoda_crds::api::LastDecision;
use pagoda_operator_core::autoscale::Decision;

use crate::{context::Context, events, key::Key, replicas::write_replicas, request::RequestError};

/// Numbers of pods that are written at once.
const WRITES: usize = 32;
/// Changes that a status remembers.
const CHANGES: usize = 5;

/// A number of pods that is to be written.
#[derive(Debug)]
pub struct Change {
    /// Whose.
    pub service: Key,
    /// Its UID.
    pub uid: Arc<str>,
    /// Generation of the spec that the decision was made on.
    pub generation: i64,
    /// Pods before.
    pub from: u32,
    /// Why, and how many from now on.
    pub decision: Decision,
}

/// Writes numbers of pods, several at once, and tells people of those that were written. Returns them, and who was refused.
pub async fn carry_out(context: &Context, changes: Vec<Change>) -> Vec<Change> {
    if changes.is_empty() || context.leadership.check().is_err() {
        return Vec::new();
    }
    let writes = changes.into_iter().map(|change| write(context, change));
    let written: Vec<Option<Change>> = stream::iter(writes)
        .buffer_unordered(WRITES)
        .collect()
        .await;
    written.into_iter().flatten().collect()
}

async fn write(context: &Context, change: Change) -> Option<Change> {
    let (key, to) = (&change.service, change.decision.replicas);
    let (namespace, name) = (key.namespace(), key.name());
    if context.leadership.check().is_err() {
        return None;
    }
    match write_replicas(context, key, to).await {
        Ok(()) => {
            let (from, why) = (change.from, change.decision.to_string());
            tracing::info!(namespace, name, from, to, why, "scaled");
            note(context, &change, &why);
            Some(change)
        }
        // Deleted in this moment.
        Err(error) if error.code() == 404 => None,
        Err(error) => {
            failed(&change, &error);
            None
        }
    }
}

fn failed(change: &Change, error: &RequestError) {
    let (namespace, name) = (change.service.namespace(), change.service.name());
    tracing::warn!(%error, namespace, name, "failed to scale; the next round tries again");
}

/// For the status, which the change of the spec brings about.
fn note(context: &Context, change: &Change, why: &str) {
    let time = Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default());
    let change_told = LastDecision {
        time,
        from: change.from as i32,
        to: change.decision.replicas as i32,
        reason: why.to_owned(),
    };
    context.remember(&change.service, |memory| {
        let changes = &mut memory.autoscaling.changes;
        changes.insert(0, change_told);
        changes.truncate(CHANGES);
    });
}

/// Tells people of changes. Nobody waits for it but the next round.
pub async fn tell(context: &Context, changes: &[Change]) {
    let mut events = Vec::new();
    for change in changes {
        let (from, to) = (change.from, change.decision.replicas);
        let key = &change.service;
        let about = events::reference(key.namespace(), key.name(), &change.uid);
        let news = events::News {
            warning: false,
            reason: "Scaled".into(),
            action: format!("ScaleFrom{from}To{to}"),
            message: format!("from {from} to {to} pods: {}", change.decision),
        };
        events.push(async move { events::publish(context, &about, news).await }.boxed());
    }
    stream::iter(events)
        .buffer_unordered(WRITES)
        .collect::<()>()
        .await;
}
