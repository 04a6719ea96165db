//! Step 5, client required: moves pods between revisions as the rollout's plan says, and removes what is over.
//!
//! # Guarantees
//! Only Deployments, ConfigMaps and Jobs that this very service owns are touched. Every write follows from what was seen, so
//! doing it again does no harm; something that is gone already is no error.

use std::{sync::atomic::Ordering, time::Duration};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use pagoda_crds::names;
use pagoda_operator_core::{
    build::{Child, ChildKind, Children},
    rollout::Plan,
    validate::Service,
};
use serde_json::json;
use tracing::Instrument;

use crate::{
    apply::{ApplyError, apply, resource},
    context::Context,
    dereference::Surroundings,
    key::Key,
    request::{RequestError, bounded},
    stores::{Packed, owner},
    telemetry,
};

/// Carries a plan out, but for the target revision's own number of pods, which is part of its Deployment.
pub async fn carry_out(
    context: &Context,
    service: &Service,
    plan: &Plan,
    children: &Children,
    around: &Surroundings,
    prefetch: Option<&Child>,
) -> Result<(), ApplyError> {
    for (deployment, replicas) in &plan.scale {
        scale(context, service, deployment, *replicas).await?;
    }
    for deployment in &plan.delete {
        if !around.leaving.contains(deployment) {
            delete(context, service, ChildKind::Deployment, deployment).await?;
        }
    }
    if let Some(job) = prefetch {
        start_prefetch(context, service, job).await?;
    }
    remove_jobs(context, service, prefetch).await?;
    remove_config_maps(context, service, plan, children, around).await
}

/// An old revision's Deployment cannot be built again, so its number of pods goes through its `scale` subresource.
async fn scale(
    context: &Context,
    service: &Service,
    deployment: &str,
    replicas: u32,
) -> Result<(), ApplyError> {
    context.leadership.check()?;
    let api: Api<Deployment> = Api::namespaced(context.client.clone(), &service.namespace);
    let parameters = PatchParams {
        field_manager: Some(names::MANAGER_CHILDREN.into()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    let span = telemetry::child("scale", ChildKind::Deployment.as_str(), deployment);
    let scaled = bounded(api.patch_scale(deployment, &parameters, &patch))
        .instrument(span)
        .await;
    unless_gone(scaled).map_err(|source| failed(service, ChildKind::Deployment, deployment, source))
}

/// Without the Job the rollout goes on, only slower: each new pod fetches by itself.
async fn start_prefetch(
    context: &Context,
    service: &Service,
    job: &Child,
) -> Result<(), ApplyError> {
    match apply(context, service, &[job]).await {
        Err(ApplyError::Refused(refusal)) => {
            tracing::warn!(service = %key(service), reason = refusal.message, "models cannot be brought to nodes ahead of rollouts");
            context.may_prefetch.store(false, Ordering::Relaxed);
            context.queue.add(key(service), Duration::from_secs(1));
            Ok(())
        }
        other => other,
    }
}

/// In the background: pods and ReplicaSets follow by themselves.
async fn delete(
    context: &Context,
    service: &Service,
    kind: ChildKind,
    name: &str,
) -> Result<(), ApplyError> {
    context.leadership.check()?;
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), &service.namespace, &resource(kind));
    let seen = context
        .stores
        .child(kind, &Key::new(&service.namespace, name));
    let uid = seen.and_then(|object| Some(object["metadata"]["uid"].as_str()?.to_owned()));
    let parameters = DeleteParams {
        // What was made anew under the name is another's business.
        preconditions: Some(Preconditions {
            uid,
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    let span = telemetry::child("delete", kind.as_str(), name);
    let deleted = bounded(api.delete(name, &parameters))
        .instrument(span)
        .await;
    match unless_gone(deleted.map(|_| ())) {
        Err(error) if error.code() == 409 => Ok(()),
        other => other.map_err(|source| failed(service, kind, name, source)),
    }
}

/// Jobs of revisions that need none, or none any more.
async fn remove_jobs(
    context: &Context,
    service: &Service,
    wanted: Option<&Child>,
) -> Result<(), ApplyError> {
    for (key, packed) in context.stores.jobs.of(&key(service)) {
        let is_wanted = wanted.is_some_and(|job| job.name == key.name());
        if !is_wanted && is_removable(&packed, service) {
            delete(context, service, ChildKind::Job, key.name()).await?;
        }
    }
    Ok(())
}

/// ConfigMaps whose revision has no Deployment. Pods that still run have read theirs.
async fn remove_config_maps(
    context: &Context,
    service: &Service,
    plan: &Plan,
    children: &Children,
    around: &Surroundings,
) -> Result<(), ApplyError> {
    let target = children.config_map.as_ref().map(|map| map.name.as_str());
    for (key, packed) in context.stores.config_maps.of(&key(service)) {
        let name = key.name();
        let stays = around.deployments.iter().any(|d| d.name == name)
            && !plan.delete.iter().any(|deleted| deleted == name);
        if Some(name) != target && !stays && is_removable(&packed, service) {
            delete(context, service, ChildKind::ConfigMap, name).await?;
        }
    }
    Ok(())
}

fn key(service: &Service) -> Key {
    Key::new(&service.namespace, &service.name)
}

/// Whether an object is a service's own, and not being deleted yet.
fn is_removable(packed: &Packed, service: &Service) -> bool {
    let Some(object) = packed.read::<DynamicObject>() else {
        return false;
    };
    object.metadata.deletion_timestamp.is_none()
        && owner(&object.metadata) == Some(service.name.as_str())
}

fn unless_gone<T>(result: Result<T, RequestError>) -> Result<(), RequestError> {
    match result {
        Err(error) if error.code() != 404 => Err(error),
        _ => Ok(()),
    }
}

fn failed(service: &Service, kind: ChildKind, name: &str, source: RequestError) -> ApplyError {
    ApplyError::Request {
        kind: kind.as_str(),
        namespace: service.namespace.clone(),
        name: name.to_owned(),
        source,
    }
}
