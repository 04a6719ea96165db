//! Step 5, client required: tells what is, unless it was told already.

use std::time::Duration;

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use pagoda_crds::{InferenceService, InferenceServiceStatus, names};
use pagoda_operator_core::status::transitions;
use serde_json::json;

use tokio::time::Instant;

use crate::{
    context::Context,
    events::{self, News},
    key::Key,
    reconcile::ReconcileError,
    request::{RequestError, bounded},
};

/// A status that was just written is left alone for this long, so that steps that follow each other closely are told at
/// once. A new generation and a rollout are never kept waiting.
const PAUSE: Duration = Duration::from_secs(1);

/// Whose status it is.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Namespace and name.
    pub key: &'a Key,
    /// UID.
    pub uid: &'a str,
}

/// What came of telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It stands in the API server.
    Yes,
    /// To be told after this long.
    Later(Duration),
}

impl Told {
    /// How long to wait before telling.
    pub fn delay(self) -> Option<Duration> {
        match self {
            Self::Yes => None,
            Self::Later(delay) => Some(delay),
        }
    }
}

/// Writes a status that differs from the one there is, and publishes what changed for people.
pub async fn update_status(
    context: &Context,
    subject: Subject<'_>,
    previous: &InferenceServiceStatus,
    next: &InferenceServiceStatus,
) -> Result<Told, ReconcileError> {
    if previous == next {
        return Ok(Told::Yes);
    }
    if let Some(delay) = pause(context, subject.key, previous, next) {
        return Ok(Told::Later(delay));
    }
    context.leadership.check()?;
    let (namespace, name) = (subject.key.namespace(), subject.key.name());
    let api: Api<InferenceService> = Api::namespaced(context.client.clone(), namespace);
    let patch = json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": names::KIND,
        // With the UID, a service that was deleted and made again keeps its own status.
        "metadata": {"name": name, "uid": subject.uid},
        "status": next
    });
    let parameters = PatchParams::apply(names::MANAGER_STATUS).force();
    let patch = Patch::Apply(&patch);
    match bounded(api.patch_status(name, &parameters, &patch)).await {
        Ok(_) => context.metrics.status_writes.inc(),
        // Deleted meanwhile, or made anew: there is nobody to tell.
        Err(error) if error.code() == 404 || is_of_another(&error) => return Ok(Told::Yes),
        Err(error) => return Err(ReconcileError::Status(error)),
    };
    context.remember(subject.key, |memory| memory.told = Some(Instant::now()));
    let about = events::reference(namespace, name, subject.uid);
    for transition in transitions(previous, next) {
        let news = News {
            warning: transition.warning,
            reason: transition.reason,
            action: "Reconcile".into(),
            message: transition.message,
        };
        events::publish(context, &about, news).await;
    }
    Ok(Told::Yes)
}

fn pause(
    context: &Context,
    key: &Key,
    previous: &InferenceServiceStatus,
    next: &InferenceServiceStatus,
) -> Option<Duration> {
    // A rollout goes on from what its status says.
    let urgent = previous.observed_generation != next.observed_generation
        || previous.revision != next.revision
        || previous.rollout != next.rollout;
    if urgent {
        return None;
    }
    let told = context.recall(key).told?;
    PAUSE.checked_sub(told.elapsed()).filter(|d| !d.is_zero())
}

/// The API server answers 409 when the UID is another's. Any other conflict is tried again.
fn is_of_another(error: &RequestError) -> bool {
    error
        .status()
        .is_some_and(|status| status.code == 409 && status.message.to_lowercase().contains("uid"))
}
