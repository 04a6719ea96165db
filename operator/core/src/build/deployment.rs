//! The Deployment around the pod template of one revision.

use pagoda_crds::{api::RolloutStrategy, names};
use serde_json::{Value, json};

use super::{ANNOTATION_MODEL_KEY, hash};
use crate::validate::Service;

/// A revision's Deployment without its number of pods, and a hash of it. `template_hash` stands for the template, so that
/// its text is read once.
pub(super) fn deployment(
    service: &Service,
    mut metadata: Value,
    template: Value,
    model_key: Option<&str>,
    template_hash: &str,
) -> (Value, String) {
    let revision = metadata["labels"][names::LABEL_REVISION].clone();
    if let Some(key) = model_key {
        metadata["annotations"][ANNOTATION_MODEL_KEY] = key.into();
    }
    let mut object = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": {
                names::LABEL_SERVICE: service.name,
                names::LABEL_REVISION: revision
            }},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update(service)},
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": service.rollout.progress_deadline_seconds
        }
    });
    let hash = hash::short_hash(&format!("{}{template_hash}", hash::canonical(&object)));
    object["spec"]["template"] = template;
    (object, hash)
}

/// A Deployment of one revision rolls only when somebody restarts it (kubectl rollout restart).
fn rolling_update(service: &Service) -> Value {
    let terminate_first = match service.rollout.strategy {
        RolloutStrategy::TerminateFirst => true,
        RolloutStrategy::Auto => service.gpu.is_some(),
        RolloutStrategy::Surge | RolloutStrategy::Canary => false,
    };
    if terminate_first {
        json!({"maxSurge": 0, "maxUnavailable": 1})
    } else {
        json!({"maxSurge": 1, "maxUnavailable": 0})
    }
}
