//! The reconcile: a list of steps.
//!
//! `dereference` (no client) -> `validate` (no client) -> `build` (no client, cannot fail) -> `rollout::plan` (no client) ->
//! `apply` (client) -> `carry_out` (client) -> `update_status` (client). What a user must change ends in a condition and waits
//! for a change; everything else is tried again, ever more slowly.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use k8s_openapi::{
    api::batch::v1::Job,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use pagoda_crds::{InferenceService, InferenceServiceStatus};
use pagoda_operator_core::{
    build::{Child, Children, build, prefetch_job, prefetch_name},
    placement::{NoNodeFits, verdict},
    rollout::{self, Plan, PrefetchSeen, RolloutSeen},
    status::{Autoscaling, Observed, Refusal, Standing, failing, refused, status},
    validate::{Service, validate},
};
use tracing::{Instrument, Span};

use crate::{
    apply::{ApplyError, apply},
    canary_gate,
    carry_out::carry_out,
    context::Context,
    dereference::{Surroundings, dereference},
    events::{self, News},
    key::Key,
    lease::LeaseError,
    model_facts::model_facts,
    replicas::settle_replicas,
    request::RequestError,
    scale_in,
    scalers::Conflict,
    stores::{Content, ServiceRow},
    telemetry::step,
    update_status::{Subject, Told, last_status, update_status},
};

/// What is in the way of a child is not watched.
const REFUSED_RETRY: Duration = Duration::from_secs(30);
/// Failures are told when they have lasted for so long, and were so many.
const TELL_FAILURE_AFTER: Duration = Duration::from_mins(1);
const TELL_FAILURE_FROM: u32 = 4;

/// Why a reconcile is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A child could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The number of pods could not be written.
    #[error("failed to write the number of pods: {0}")]
    Replicas(RequestError),
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
            Self::Status(error)
            | Self::Replicas(error)
            | Self::Apply(ApplyError::Request { source: error, .. }) => error.retry_after(),
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
pub async fn reconcile(context: &Arc<Context>, key: &Key) -> Result<Done, ReconcileError> {
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
    context: &Arc<Context>,
    key: &Key,
    object: &InferenceService,
) -> Result<Done, ReconcileError> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(Done::new("ok", None));
    }
    let metadata = &object.metadata;
    let around = step("dereference").in_scope(|| dereference(&context.stores, key));
    let previous = last_status(context, key, object);
    let service = match step("validate").in_scope(|| validate(object)) {
        Ok(service) => service,
        Err(error) => {
            let refusal = Refusal {
                reason: "InvalidSpec",
                message: error.to_string(),
            };
            let told = refuse(context, key, metadata, &previous, &refusal, &around, true).await?;
            return Ok(Done::new("refused", told.delay()));
        }
    };
    if object.spec.replicas.is_none() {
        settle_replicas(context, key, service.replicas).await?;
        // The change of the spec brings it back.
        return Ok(Done::new("ok", Some(REFUSED_RETRY)));
    }
    let children = step("build").in_scope(|| build(&service, &context.setup));
    Span::current().record("revision", &children.revision);
    let turn = Turn {
        context,
        key,
        service: &service,
        children: &children,
        around: &around,
        previous: &previous,
        now: now(),
    };
    let moved = turn.bring_about().await;
    match moved {
        Ok((plan, placement)) => turn.tell(&plan, placement.as_ref()).await,
        Err(ApplyError::Refused(refusal)) => {
            let told = refuse(context, key, metadata, &previous, &refusal, &around, true).await?;
            let again = told.delay().unwrap_or(REFUSED_RETRY);
            Ok(Done::new("refused", Some(again)))
        }
        Err(ApplyError::Request { source, .. }) if source.is_namespace_leaving() => {
            // Nothing can be made there, and the service goes with the rest.
            Ok(Done::new("leaving", Some(REFUSED_RETRY)))
        }
        Err(error) => {
            turn.tell_failure(&error).await?;
            Err(error.into())
        }
    }
}

/// One reconcile of one service that can be built.
struct Turn<'a> {
    context: &'a Arc<Context>,
    key: &'a Key,
    service: &'a Service,
    children: &'a Children,
    around: &'a Surroundings,
    previous: &'a InferenceServiceStatus,
    now: Time,
}

impl Turn<'_> {
    /// Plans the rollout's next move, applies the children, and carries the plan out.
    async fn bring_about(&self) -> Result<(Plan, Option<NoNodeFits>), ApplyError> {
        let placement = self.placement();
        let plan = self.plan(placement.is_none());
        let deployment = self.children.deployment_with(plan.target_replicas);
        let before = self.children.shared.iter();
        let list: Vec<&Child> = before
            .chain(&self.children.config_map)
            .chain([&deployment])
            .collect();
        scale_in::mark(self.context, self.key, &plan, self.children, self.around).await;
        apply(self.context, self.service, &list).await?;
        let prefetch = plan
            .prefetch_nodes
            .as_ref()
            .and_then(|nodes| prefetch_job(self.service, self.children, nodes));
        carry_out(
            self.context,
            self.service,
            &plan,
            self.children,
            self.around,
            prefetch.as_ref(),
        )
        .await?;
        Ok((plan, placement))
    }

    /// Looks whether any node could hold the pods, unless they run.
    fn placement(&self) -> Option<NoNodeFits> {
        let ready = self.around.ready(&self.children.revision).count();
        let all_ready = ready > 0 && ready >= self.service.replicas as usize;
        let nodes = &self.context.stores.nodes;
        let verdict = if all_ready {
            Ok(())
        } else {
            verdict(self.children.pod_template(), &nodes.all())
        };
        nodes.note(self.key, verdict.is_ok());
        verdict.err()
    }

    fn plan(&self, fits: bool) -> Plan {
        let (context, target) = (self.context, &self.children.revision);
        let gate = canary_gate::readings(context, self.key, target, self.previous, &self.now);
        let prefetch = self.prefetch();
        let has_cache = context.setup.model_cache.is_some();
        let seen = RolloutSeen {
            target,
            target_name: &self.children.revision_name,
            target_model_key: self.children.model_key.as_deref(),
            revisions: &self.around.revisions(),
            prefetch: &prefetch,
            gate: gate.as_ref(),
            has_cache: has_cache && context.may_prefetch.load(Ordering::Relaxed),
            fits,
        };
        rollout::plan(self.service, &seen, self.previous, &self.now)
    }

    fn prefetch(&self) -> PrefetchSeen {
        let stores = &self.context.stores;
        let name = prefetch_name(&self.children.revision_name);
        let job = stores.jobs.get(&Key::new(self.key.namespace(), &name));
        let job: Option<Job> = job.and_then(|packed| packed.read());
        let revision = Some(self.children.revision.as_str());
        let mut pods = stores.prefetch_pods_of(self.key);
        pods.retain(|pod| pod.revision.as_deref() == revision);
        PrefetchSeen::of(job.as_ref(), &pods)
    }

    /// Says what is.
    async fn tell(
        &self,
        plan: &Plan,
        placement: Option<&NoNodeFits>,
    ) -> Result<Done, ReconcileError> {
        let context = self.context;
        let revision = &self.children.revision;
        let ready = self.around.ready(revision).next();
        let ours = ready.filter(|_| self.service.foreign.is_none());
        let model = model_facts(context, self.key, revision, ours);
        let memory = context.recall(self.key);
        let deployment = self
            .around
            .deployments
            .iter()
            .find(|d| d.name == self.children.revision_name);
        let contested = context.stores.names.contested(self.key);
        let url = context.settings.gateway_url();
        let seen = Observed {
            plan: Some(plan),
            deployment,
            pods: &self.around.pods,
            placement,
            routes: context.gateways.route_view(self.key, contested),
            fetching: &memory.fetching,
            load: memory.load,
            model,
            autoscaling: self.autoscaling(memory.autoscaling),
            gateway_url: &url,
        };
        let next = status(self.service, revision, &seen, self.previous, &self.now);
        let told = self.update(&next).await?;
        if told == Told::Yes {
            context.remember(self.key, |memory| memory.load = None);
        }
        let look = plan
            .look_again_seconds
            .map(|s| Duration::from_secs(s.into()));
        Ok(Done::new("ok", told.delay().into_iter().chain(look).min()))
    }

    /// The autoscaler looks at no service whose number of pods is fixed, and somebody else may.
    fn autoscaling(&self, remembered: Autoscaling) -> Autoscaling {
        if !self.service.scaling.managed_by_pagoda || !self.service.scaling.is_fixed() {
            return remembered;
        }
        let conflict = self.context.stores.conflict(self.key);
        let told = conflict.map(|conflict| Standing::Told {
            reason: Conflict::REASON,
            message: conflict.message(true),
        });
        Autoscaling {
            standing: told,
            ..remembered
        }
    }

    /// What fails for a while is told, once: by itself it may last for ever, and the log is not where people look.
    async fn tell_failure(&self, error: &ApplyError) -> Result<(), ReconcileError> {
        let memory = self.context.recall(self.key);
        let lasts = memory
            .failing_since
            .is_some_and(|t| t.elapsed() > TELL_FAILURE_AFTER);
        if !lasts || memory.failures < TELL_FAILURE_FROM || memory.failure_told {
            return Ok(());
        }
        let refusal = Refusal {
            reason: "ApplyFailed",
            message: format!("{error}; it is tried again and again"),
        };
        let generation = self.service.generation;
        let pods = &self.around.pods;
        let next = failing(generation, &refusal, pods, self.previous, &self.now);
        if self.update(&next).await? == Told::Yes {
            self.context
                .remember(self.key, |memory| memory.failure_told = true);
        }
        Ok(())
    }

    async fn update(&self, next: &InferenceServiceStatus) -> Result<Told, ReconcileError> {
        let subject = Subject {
            key: self.key,
            uid: &self.service.uid,
            readable: true,
        };
        update_status(self.context, subject, self.previous, next)
            .instrument(step("update_status"))
            .await
    }
}

/// Says in the status why nothing is done about an object.
async fn refuse(
    context: &Context,
    key: &Key,
    metadata: &ObjectMeta,
    previous: &InferenceServiceStatus,
    refusal: &Refusal,
    around: &Surroundings,
    readable: bool,
) -> Result<Told, ReconcileError> {
    let generation = metadata.generation.unwrap_or_default();
    let next = refused(generation, refusal, &around.pods, previous, &now());
    let uid = metadata.uid.as_deref().unwrap_or_default();
    let subject = Subject { key, uid, readable };
    update_status(context, subject, previous, &next).await
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
    let uid = metadata.uid.as_deref().unwrap_or_default();
    let around = dereference(&context.stores, key);
    let previous = InferenceServiceStatus::default();
    let told = match refuse(context, key, metadata, &previous, &refusal, &around, false).await {
        // A rule of the definition that cannot be evaluated on such an object refuses every status for it.
        Err(ReconcileError::Status(error)) if error.code() == 422 => {
            let about = events::reference(key.namespace(), key.name(), uid);
            let news = News {
                warning: true,
                reason: refusal.reason.into(),
                action: "Reconcile".into(),
                message: refusal.message,
            };
            events::publish(context, &about, news).await;
            Told::Yes
        }
        told => told?,
    };
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
