//! The reconcile: a list of steps.
//!
//! `dereference` (no client) -> `validate` (no client) -> `build` (no client, cannot fail) -> `apply` (client) ->
//! `update_status` (client). What a user must change ends in a condition and waits for a change; everything else is
//! tried again, ever more slowly.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, TryFutureExt, future, stream};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{
    Resource,
    core::error_boundary::InvalidObject,
    runtime::{
        applier,
        controller::{Action, Config},
    },
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
    http_server::Health,
    lease::LeaseError,
    metrics::Outcome,
    model_facts::model_facts,
    queue::Triggered,
    stores::{Guarded, Watches},
    update_status::{Subject, update_status},
};

/// A missed event is made good after this long.
const RESYNC: Duration = Duration::from_mins(10);
/// Facts that a ready pod has not told yet are asked for again.
const FACTS_RETRY: Duration = Duration::from_secs(3);
const BEAT_EVERY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// Why a reconcile is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A child could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The status could not be written.
    #[error("failed to write the status: {0}")]
    Status(Box<kube::Error>),
    /// Not allowed to write any more.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// Reconciles whatever the watches and triggers name, until the process is asked to stop.
pub async fn run(
    context: Arc<Context>,
    watches: Watches,
    triggered: Triggered,
    health: Arc<Health>,
) {
    health.lead();
    let beat = health.clone();
    let heartbeat = stream::unfold(tokio::time::interval(BEAT_EVERY), |mut every| async {
        every.tick().await;
        Some(((), every))
    })
    .filter_map(move |()| {
        beat.beat_reconcile();
        future::ready(None)
    });
    let stopped = context.clone();
    let changes = stream::select_all([watches, triggered.map(Ok).boxed(), heartbeat.boxed()])
        .filter(|change| {
            if let Err(error) = change {
                tracing::warn!(%error, "a watch failed; it is begun again");
            }
            future::ready(change.is_ok())
        })
        .take_until(async move { stopped.stop.notified().await });
    let read = context.clone();
    tokio::spawn(async move {
        if read.stores.wait_until_read().await.is_ok() {
            health.synced();
        }
    });
    let config = Config::default().concurrency(context.settings.concurrency);
    let store = context.stores.services.clone();
    applier(
        |object, context| reconcile(object, context).boxed(),
        retry,
        context,
        store,
        changes,
        config,
    )
    .for_each(|result| {
        if let Err(error) = result {
            report(&error);
        }
        future::ready(())
    })
    .await;
}

fn report(error: &kube::runtime::controller::Error<ReconcileError, kube::runtime::watcher::Error>) {
    use kube::runtime::controller::Error;
    match error {
        // A service that was deleted: its children go with it.
        Error::ObjectNotFound(_) => {}
        Error::ReconcilerFailed(error, object) => {
            tracing::warn!(%object, %error, "reconcile failed; it is tried again");
        }
        other => tracing::error!(error = %other, "the reconcile loop stumbled"),
    }
}

/// Trying again waits twice as long each time.
#[expect(clippy::needless_pass_by_value, reason = "the applier hands both over")]
fn retry(object: Arc<Guarded>, _: &ReconcileError, context: Arc<Context>) -> Action {
    let uid = object.meta().uid.clone().unwrap_or_default();
    let failures = context.remember(&uid, |memory| {
        memory.failures = memory.failures.saturating_add(1);
        memory.failures
    });
    let delay = Duration::from_millis(250).saturating_mul(1 << failures.min(10));
    Action::requeue(delay.min(LONGEST_RETRY))
}

async fn reconcile(object: Arc<Guarded>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let started = Instant::now();
    // Before all watches are read, an absent child may only be unread.
    if context.stores.wait_until_read().await.is_err() {
        return Ok(Action::await_change());
    }
    let done = match &object.0 {
        Ok(service) => reconcile_service(service, &context).await,
        Err(invalid) => refuse_unreadable(invalid, &context)
            .await
            .map(|()| (Action::await_change(), "refused")),
    };
    let result = done.as_ref().map_or("error", |(_, result)| result);
    context
        .metrics
        .reconciles
        .get_or_create(&Outcome { result })
        .inc();
    context
        .metrics
        .reconcile_seconds
        .observe(started.elapsed().as_secs_f64());
    let uid = object.meta().uid.clone().unwrap_or_default();
    done.map(|(action, _)| {
        context.remember(&uid, |memory| memory.failures = 0);
        action
    })
}

async fn reconcile_service(
    object: &InferenceService,
    context: &Context,
) -> Result<(Action, &'static str), ReconcileError> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok((Action::await_change(), "ok"));
    }
    let (namespace, name) = (
        object.metadata.namespace.as_deref(),
        object.metadata.name.as_deref(),
    );
    let around = dereference(
        &context.stores,
        namespace.unwrap_or_default(),
        name.unwrap_or_default(),
    );
    let service = match validate(object) {
        Ok(service) => service,
        Err(error) => {
            let refusal = Refusal {
                reason: "InvalidSpec",
                message: error.to_string(),
            };
            refuse(
                &object.metadata,
                object.status.as_ref(),
                &refusal,
                &around,
                context,
            )
            .await?;
            return Ok((Action::await_change(), "refused"));
        }
    };
    let children = build(&service, &context.images);
    match apply(context, &service, &children).await {
        Ok(()) => {}
        Err(ApplyError::Refused(refusal)) => {
            refuse(
                &object.metadata,
                object.status.as_ref(),
                &refusal,
                &around,
                context,
            )
            .await?;
            // The thing in the way is not watched.
            return Ok((Action::requeue(Duration::from_secs(30)), "refused"));
        }
        Err(error) => return Err(error.into()),
    }
    let action = tell(object, &service, &children.revision, &around, context).await?;
    Ok((action, "ok"))
}

async fn tell(
    object: &InferenceService,
    service: &Service,
    revision: &str,
    around: &Surroundings,
    context: &Context,
) -> Result<Action, ReconcileError> {
    let model = model_facts(context, &service.uid, revision, &around.pods).await;
    let waits_for_facts = model.is_none()
        && around
            .pods
            .iter()
            .any(|p| p.ready && p.revision.as_deref() == Some(revision));
    let url = context.settings.gateway_url();
    let seen = Observed {
        deployment: around.deployment.as_deref(),
        pods: around.pods.clone(),
        model,
        autoscaling: context.recall(&service.uid).autoscaling,
        gateway_url: &url,
    };
    let previous = object.status.clone().unwrap_or_default();
    let next = status(service, revision, &seen, &previous, &now());
    let subject = Subject {
        namespace: &service.namespace,
        name: &service.name,
        uid: &service.uid,
    };
    update_status(context, subject, &previous, &next).await?;
    Ok(Action::requeue(if waits_for_facts {
        FACTS_RETRY
    } else {
        RESYNC
    }))
}

/// Says in the status why nothing is done about an object.
async fn refuse(
    metadata: &ObjectMeta,
    previous: Option<&InferenceServiceStatus>,
    refusal: &Refusal,
    around: &Surroundings,
    context: &Context,
) -> Result<(), ReconcileError> {
    let (Some(namespace), Some(name), Some(uid)) =
        (&metadata.namespace, &metadata.name, &metadata.uid)
    else {
        return Ok(());
    };
    let generation = metadata.generation.unwrap_or_default();
    let previous = previous.cloned().unwrap_or_default();
    let next = refused(generation, refusal, &around.pods, &previous, &now());
    let subject = Subject {
        namespace,
        name,
        uid,
    };
    update_status(context, subject, &previous, &next).await
}

/// An object that does not fit its type: older than a rule, or written past it. Its status cannot be read either, so what
/// was told is remembered here, or telling it would go on for ever.
async fn refuse_unreadable(
    invalid: &InvalidObject,
    context: &Context,
) -> Result<(), ReconcileError> {
    let metadata = &invalid.metadata;
    let (Some(namespace), Some(name), Some(uid)) =
        (&metadata.namespace, &metadata.name, &metadata.uid)
    else {
        return Ok(());
    };
    let told = format!("{:?} {}", metadata.generation, invalid.error);
    if context.recall(uid).unreadable.as_ref() == Some(&told) {
        return Ok(());
    }
    tracing::warn!(
        namespace,
        name,
        error = invalid.error,
        "an InferenceService cannot be read; the others go on"
    );
    let refusal = Refusal {
        reason: "InvalidSpec",
        message: format!("the object cannot be read: {}", invalid.error),
    };
    let around = dereference(&context.stores, namespace, name);
    refuse(metadata, None, &refusal, &around, context)
        .map_ok(|()| context.remember(uid, |memory| memory.unreadable = Some(told)))
        .await
}

/// Conditions carry whole seconds.
fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
