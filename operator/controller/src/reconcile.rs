//! The reconcile: a list of steps.
//!
//! `dereference` (no client) -> `validate` (no client) -> `build` (no client, cannot fail) -> `apply` (client) ->
//! `update_status` (client). What a user must change ends in a condition and waits for a change; everything else is
//! tried again, ever more slowly.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use pagoda_crds::{InferenceService, InferenceServiceStatus};
use pagoda_operator_core::{
    build::build,
    status::{Observed, Refusal, refused, status},
    validate::{Service, validate},
};

use crate::{
    apply::{ApplyError, apply},
    context::Context,
    dereference::{Surroundings, dereference},
    key::Key,
    lease::LeaseError,
    model_facts::model_facts,
    request::RequestError,
    stores::{Content, ServiceRow},
    update_status::{Subject, Told, update_status},
};

/// Facts that a ready pod has not told yet are asked for again.
const FACTS_RETRY: Duration = Duration::from_secs(3);
/// What is in the way of a child is not watched.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// Why a reconcile is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A child could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The status could not be written.
    #[error("failed to write the status: {0}")]
    Status(RequestError),
    /// Not allowed to write any more.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// Its requests together took too long.
    #[error("took too long and was given up")]
    Slow,
    /// A fault of our own.
    #[error("panicked: this is a bug")]
    Panicked,
}

impl ReconcileError {
    /// How long the API server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status(error) | Self::Apply(ApplyError::Request { source: error, .. }) => {
                error.retry_after()
            }
            _ => None,
        }
    }
}

/// A reconcile that ended.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// For the metrics.
    pub result: &'static str,
    /// Whether the service still exists.
    pub exists: bool,
    /// Wanted again after this long, even if nothing changes.
    pub again: Option<Duration>,
}

impl Done {
    fn new(result: &'static str, again: Option<Duration>) -> Self {
        Self {
            result,
            exists: true,
            again,
        }
    }
}

/// Reconciles one service.
pub async fn reconcile(context: &Context, key: &Key) -> Result<Done, ReconcileError> {
    let Some(row) = context.stores.services.get(key) else {
        // Its children go with it.
        context.forget(key);
        return Ok(Done {
            exists: false,
            ..Done::new("gone", None)
        });
    };
    context.meet(key, &row.uid);
    match (&row.content, row.object()) {
        (Content::Readable(_), Some(object)) => reconcile_service(context, key, &object).await,
        (Content::Unreadable { metadata, error }, _) => {
            refuse_unreadable(context, key, metadata, error).await
        }
        (Content::Readable(_), None) => unreadable_copy(&row, key),
    }
}

/// What was written from a typed object is read back as one.
fn unreadable_copy(row: &ServiceRow, key: &Key) -> Result<Done, ReconcileError> {
    tracing::error!(service = %key, uid = row.uid, "the copy of an InferenceService cannot be read");
    Err(ReconcileError::Panicked)
}

async fn reconcile_service(
    context: &Context,
    key: &Key,
    object: &InferenceService,
) -> Result<Done, ReconcileError> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(Done::new("ok", None));
    }
    let around = dereference(&context.stores, key);
    let (metadata, previous) = (&object.metadata, object.status.as_ref());
    let service = match validate(object) {
        Ok(service) => service,
        Err(error) => {
            let refusal = Refusal {
                reason: "InvalidSpec",
                message: error.to_string(),
            };
            let told = refuse(context, key, metadata, previous, &refusal, &around).await?;
            return Ok(Done::new("refused", told.delay()));
        }
    };
    let children = build(&service, &context.images);
    match apply(context, &service, &children).await {
        Ok(()) => {}
        Err(ApplyError::Refused(refusal)) => {
            let told = refuse(context, key, metadata, previous, &refusal, &around).await?;
            let again = told.delay().unwrap_or(REFUSED_RETRY);
            return Ok(Done::new("refused", Some(again)));
        }
        Err(error) => return Err(error.into()),
    }
    tell(context, key, object, &service, &children.revision, &around).await
}

async fn tell(
    context: &Context,
    key: &Key,
    object: &InferenceService,
    service: &Service,
    revision: &str,
    around: &Surroundings,
) -> Result<Done, ReconcileError> {
    let model = model_facts(context, key, revision, &around.pods).await;
    let is_current = |p: &&pagoda_operator_core::status::PodView| {
        p.ready && p.revision.as_deref() == Some(revision)
    };
    let waits_for_facts = model.is_none() && around.pods.iter().find(is_current).is_some();
    let url = context.settings.gateway_url();
    let seen = Observed {
        deployment: around.deployment.as_ref(),
        pods: around.pods.clone(),
        model,
        autoscaling: context.recall(key).autoscaling,
        gateway_url: &url,
    };
    let previous = object.status.clone().unwrap_or_default();
    let next = status(service, revision, &seen, &previous, &now());
    let subject = Subject {
        key,
        uid: &service.uid,
    };
    let told = update_status(context, subject, &previous, &next).await?;
    let facts = waits_for_facts.then_some(FACTS_RETRY);
    Ok(Done::new("ok", told.delay().into_iter().chain(facts).min()))
}

/// Says in the status why nothing is done about an object.
async fn refuse(
    context: &Context,
    key: &Key,
    metadata: &ObjectMeta,
    previous: Option<&InferenceServiceStatus>,
    refusal: &Refusal,
    around: &Surroundings,
) -> Result<Told, ReconcileError> {
    let generation = metadata.generation.unwrap_or_default();
    let previous = previous.cloned().unwrap_or_default();
    let next = refused(generation, refusal, &around.pods, &previous, &now());
    let uid = metadata.uid.as_deref().unwrap_or_default();
    update_status(context, Subject { key, uid }, &previous, &next).await
}

/// An object that does not fit its type: older than a rule, or written past it. Its status cannot be read either, so what
/// was told is remembered here, or telling it would go on for ever.
async fn refuse_unreadable(
    context: &Context,
    key: &Key,
    metadata: &ObjectMeta,
    error: &str,
) -> Result<Done, ReconcileError> {
    let words = format!("{:?} {error}", metadata.generation);
    if context.recall(key).unreadable.as_ref() == Some(&words) {
        return Ok(Done::new("refused", None));
    }
    tracing::warn!(service = %key, error, "an InferenceService cannot be read; the others go on");
    let refusal = Refusal {
        reason: "InvalidSpec",
        message: format!("the object cannot be read: {error}"),
    };
    let around = dereference(&context.stores, key);
    let told = refuse(context, key, metadata, None, &refusal, &around).await?;
    if told == Told::Yes {
        context.remember(key, |memory| memory.unreadable = Some(words));
    }
    Ok(Done::new("refused", told.delay()))
}

/// Conditions carry whole seconds.
fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
