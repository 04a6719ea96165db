//! Client required: the number of pods in a spec, through its `scale` subresource.

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use pagoda_crds::{InferenceService, names};
use serde_json::json;

use crate::{
    context::Context,
    key::Key,
    reconcile::ReconcileError,
    request::{RequestError, bounded},
};

/// Writes the number of pods that a spec asks for, as the field manager that owns nothing else.
pub async fn write_replicas(
    context: &Context,
    service: &Key,
    replicas: u32,
) -> Result<(), RequestError> {
    let api: Api<InferenceService> = Api::namespaced(context.client.clone(), service.namespace());
    let parameters = PatchParams {
        field_manager: Some(names::MANAGER_AUTOSCALER.into()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    bounded(api.patch_scale(service.name(), &parameters, &patch)).await?;
    context.metrics.scale_writes.inc();
    Ok(())
}

/// Gives a spec without a number of pods its first: until it has one, nobody can read its scale, and an autoscaler of
/// somebody else's cannot begin.
pub async fn settle_replicas(
    context: &Context,
    service: &Key,
    replicas: u32,
) -> Result<(), ReconcileError> {
    context.leadership.check()?;
    match write_replicas(context, service, replicas).await {
        Err(error) if error.code() == 404 => Ok(()),
        written => written.map_err(ReconcileError::Replicas),
    }
}
