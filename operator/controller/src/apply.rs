//! Step 4, client required: brings children to what was built.
//!
//! # Guarantees
//! A child that already is what would be applied costs no request. An object under a child's name that another owns is never
//! touched. Children are applied in the order in which they need each other.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    api::{DynamicObject, GetParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use pagoda_crds::names;
use pagoda_operator_core::{
    build::{Child, ChildKind},
    compare,
    status::Refusal,
    validate::Service,
};
use serde::Deserialize as _;
use serde_json::Value;
use tracing::Instrument;

use crate::{
    context::Context,
    key::Key,
    lease::LeaseError,
    metrics::Application,
    request::{RequestError, bounded},
    stores::owner,
    telemetry,
};

/// Why children are not what they should be.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Nobody can help but the user: said in a condition.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// A child is still being deleted; it comes again by itself.
    #[error("{kind} {namespace}/{name} is still being deleted")]
    Leaving {
        /// Kind of the child.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The API server could not do it now.
    #[error("failed to apply {kind} {namespace}/{name}: {source}")]
    Request {
        /// Kind of the child.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its words.
        source: RequestError,
    },
    /// Not allowed to write any more.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// Applies children in their order.
pub async fn apply(
    context: &Context,
    service: &Service,
    children: &[&Child],
) -> Result<(), ApplyError> {
    for child in children {
        let kind = child.kind.as_str();
        let span = telemetry::child("apply", kind, &child.name);
        let result = apply_child(context, service, child)
            .instrument(span.clone())
            .await;
        let word = match &result {
            Ok(true) => "applied",
            Ok(false) => "skipped",
            Err(_) => "failed",
        };
        span.record("result", word);
        let application = Application { kind, result: word };
        context.metrics.applies.get_or_create(&application).inc();
        result?;
    }
    Ok(())
}

/// Applies one child; `false` when it already was what it should be.
async fn apply_child(
    context: &Context,
    service: &Service,
    child: &Child,
) -> Result<bool, ApplyError> {
    let (namespace, name) = (&service.namespace, &child.name);
    let failed = |source: RequestError| failure(service, child, source);
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &resource(child.kind));
    let known = context.stores.child(child.kind, &Key::new(namespace, name));
    // Not among ours; it may still be somebody else's.
    let observed = match known {
        Some(observed) => Some(observed),
        None => look(&api, name, Freshness::Cached).await.map_err(failed)?,
    };
    if let Some(observed) = &observed {
        check_owner(service, child, observed)?;
        // The pods of a Job cannot be changed: one that runs is left alone.
        if child.kind == ChildKind::Job || compare::contains(observed, &child.object) {
            return Ok(false);
        }
    }
    context.leadership.check()?;
    // Nothing is in the way of the first apply, as far as the API server's cache knows. Without force, something that came
    // since is not overwritten.
    let written = match write(&api, child, observed.is_some()).await {
        Err(error) if error.code() == 409 && observed.is_none() => {
            if let Some(found) = look(&api, name, Freshness::Latest).await.map_err(failed)? {
                check_owner(service, child, &found)?;
            }
            write(&api, child, true).await
        }
        written => written,
    };
    written.map_err(failed)?;
    Ok(true)
}

/// What a failed request means.
fn failure(service: &Service, child: &Child, source: RequestError) -> ApplyError {
    let kind = child.kind.as_str();
    if source.is_refusal() {
        let words = source.status().map_or("", |status| &status.message);
        return ApplyError::Refused(Refusal {
            reason: "Rejected",
            message: format!("the API server refuses the {kind} built from this spec: {words}"),
        });
    }
    ApplyError::Request {
        kind,
        namespace: service.namespace.clone(),
        name: child.name.clone(),
        source,
    }
}

#[derive(Clone, Copy)]
enum Freshness {
    /// From the API server's memory: cheap, and a moment old at most.
    Cached,
    Latest,
}

async fn look(
    api: &Api<DynamicObject>,
    name: &str,
    freshness: Freshness,
) -> Result<Option<Value>, RequestError> {
    let parameters = GetParams {
        resource_version: matches!(freshness, Freshness::Cached).then(|| "0".to_owned()),
    };
    match bounded(api.get_with(name, &parameters)).await {
        Ok(found) => Ok(serde_json::to_value(found).ok()),
        Err(error) if error.code() == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

async fn write(api: &Api<DynamicObject>, child: &Child, force: bool) -> Result<(), RequestError> {
    let parameters = PatchParams {
        force,
        ..PatchParams::apply(names::MANAGER_CHILDREN).validation_strict()
    };
    let patch = Patch::Apply(&child.object);
    let request = api.patch(&child.name, &parameters, &patch);
    bounded(request).await.map(|_| ())
}

pub(crate) fn resource(kind: ChildKind) -> ApiResource {
    let (group, version, plural) = match kind {
        ChildKind::ConfigMap => ("", "v1", "configmaps"),
        ChildKind::ServiceAccount => ("", "v1", "serviceaccounts"),
        ChildKind::Service => ("", "v1", "services"),
        ChildKind::PodDisruptionBudget => ("policy", "v1", "poddisruptionbudgets"),
        ChildKind::Deployment => ("apps", "v1", "deployments"),
        ChildKind::Job => ("batch", "v1", "jobs"),
    };
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(group, version, kind.as_str()),
        plural,
    )
}

/// Fails unless the object is the service's own.
fn check_owner(service: &Service, child: &Child, observed: &Value) -> Result<(), ApplyError> {
    let metadata = ObjectMeta::deserialize(&observed["metadata"]).unwrap_or_default();
    let (kind, name) = (child.kind.as_str(), &child.name);
    if metadata.deletion_timestamp.is_some() {
        return Err(ApplyError::Leaving {
            kind,
            namespace: service.namespace.clone(),
            name: name.clone(),
        });
    }
    // What an earlier service of this name left is taken over: no other can have had it.
    if owner(&metadata) == Some(service.name.as_str()) {
        return Ok(());
    }
    Err(ApplyError::Refused(Refusal {
        reason: "NameConflict",
        message: format!(
            "a {kind} named {name} that this service does not own is in the way: rename or delete one of the two"
        ),
    }))
}
