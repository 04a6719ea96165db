//! Step 5, client required: tells what is, unless it was told already.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
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
    /// Whether the object fits its type. Server-side apply refuses to touch one that does not.
    pub readable: bool,
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
    let written = match write(context, subject, next).await {
        Ok(written) => written,
        // Deleted meanwhile, or made anew: there is nobody to tell.
        Err(error) if error.code() == 404 || is_of_another(&error) => return Ok(Told::Yes),
        Err(error) if error.is_undeclared_field() => {
            tell_outdated(context, subject).await;
            return Err(ReconcileError::Status(error));
        }
        Err(error) => return Err(ReconcileError::Status(error)),
    };
    context.metrics.status_writes.inc();
    context.remember(subject.key, |memory| {
        memory.told = Some(Instant::now());
        memory.written = Some(Box::new((written, next.clone())));
    });
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

const OUTDATED: &str = "the definition of InferenceServices is older than this operator, so their status cannot be told: upgrade the pagoda-crds chart; services run on meanwhile";

/// Where the status cannot be told, an Event can: once, and the status is tried again.
async fn tell_outdated(context: &Context, subject: Subject<'_>) {
    let is_told = context.remember(subject.key, |memory| {
        std::mem::replace(&mut memory.outdated_told, true)
    });
    if is_told {
        return;
    }
    tracing::error!(service = %subject.key, "{OUTDATED}");
    let about = events::reference(subject.key.namespace(), subject.key.name(), subject.uid);
    let news = News {
        warning: true,
        reason: "DefinitionOutdated".into(),
        action: "UpdateStatus".into(),
        message: OUTDATED.to_owned(),
    };
    events::publish(context, &about, news).await;
}

/// The version that the object has now.
async fn write(
    context: &Context,
    subject: Subject<'_>,
    next: &InferenceServiceStatus,
) -> Result<Version, RequestError> {
    let (namespace, name) = (subject.key.namespace(), subject.key.name());
    let kind = GroupVersionKind::gvk(names::GROUP, names::VERSION, names::KIND);
    let resource = ApiResource::from_gvk_with_plural(&kind, names::PLURAL);
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &resource);
    let patch = json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": names::KIND,
        // With the UID, a service that was deleted and made again keeps its own status.
        "metadata": {"name": name, "uid": subject.uid},
        "status": next
    });
    let (patch, parameters) = if subject.readable {
        (
            Patch::Apply(patch),
            PatchParams::apply(names::MANAGER_STATUS).force(),
        )
    } else {
        let parameters = PatchParams {
            field_manager: Some(names::MANAGER_STATUS.into()),
            ..PatchParams::default()
        };
        (Patch::Merge(patch), parameters)
    };
    let written = bounded(api.patch_status(name, &parameters, &patch)).await?;
    Ok(Version::of(&written.metadata))
}

/// What the status says as far as this process knows: a watch may not have brought yet what was just written.
pub fn last_status(
    context: &Context,
    key: &Key,
    object: &InferenceService,
) -> InferenceServiceStatus {
    let seen = Version::of(&object.metadata);
    let written = context.remember(key, |memory| {
        if memory
            .written
            .as_ref()
            .is_some_and(|written| written.0 <= seen)
        {
            memory.written = None;
        }
        memory.written.clone()
    });
    match written {
        Some(written) => written.1,
        None => object.status.clone().unwrap_or_default(),
    }
}

/// Version of an object, by which its copies are told older from newer. One that cannot be compared counts as older than
/// all, so that nothing is held against what a watch brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u64);

impl Version {
    fn of(metadata: &ObjectMeta) -> Self {
        let version = metadata.resource_version.as_deref();
        Self(version.and_then(|v| v.parse().ok()).unwrap_or(0))
    }
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
