//! Step 5, client required: tells what is, unless it was told already.

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use pagoda_crds::{InferenceService, InferenceServiceStatus, names};
use pagoda_operator_core::status::transitions;
use serde_json::json;

use crate::{
    context::Context,
    events::{self, News},
    reconcile::ReconcileError,
};

/// Whose status it is.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Namespace.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// UID.
    pub uid: &'a str,
}

/// Writes a status that differs from the one there is, and publishes what changed for people.
pub async fn update_status(
    context: &Context,
    subject: Subject<'_>,
    previous: &InferenceServiceStatus,
    next: &InferenceServiceStatus,
) -> Result<(), ReconcileError> {
    if previous == next {
        return Ok(());
    }
    context.leadership.check()?;
    let api: Api<InferenceService> = Api::namespaced(context.client.clone(), subject.namespace);
    let patch = json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": names::KIND,
        // With the UID, a service that was deleted and made again keeps its own status.
        "metadata": {"name": subject.name, "uid": subject.uid},
        "status": next
    });
    let parameters = PatchParams::apply(names::MANAGER_STATUS).force();
    match api
        .patch_status(subject.name, &parameters, &Patch::Apply(&patch))
        .await
    {
        Ok(_) => context.metrics.status_writes.inc(),
        // Deleted meanwhile, or made anew: there is nobody to tell.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => return Ok(()),
        Err(error) => return Err(ReconcileError::Status(Box::new(error))),
    };
    let about = events::reference(subject.namespace, subject.name, subject.uid);
    for transition in transitions(&previous.conditions, &next.conditions) {
        let news = News {
            warning: transition.warning,
            reason: transition.reason,
            action: "Reconcile".into(),
            message: transition.message,
        };
        events::publish(context, &about, news).await;
    }
    Ok(())
}
