//! The Deployment around the pod template.

use serde_json::{Value, json};

use super::{ANNOTATION_REVISION, metadata, selector};
use crate::validate::Service;

/// A large model may take long to load; after this the rollout counts as stuck.
const PROGRESS_DEADLINE_SECONDS: u32 = 1800;

pub(super) fn deployment(service: &Service, mut template: Value, revision: &str) -> Value {
    template["metadata"]["annotations"][ANNOTATION_REVISION] = revision.into();
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(service),
        "spec": {
            "replicas": service.replicas,
            "selector": {"matchLabels": selector(service)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update(service)},
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": PROGRESS_DEADLINE_SECONDS,
            "template": template
        }
    })
}

fn rolling_update(service: &Service) -> Value {
    if service.terminate_first {
        json!({"maxSurge": 0, "maxUnavailable": 1})
    } else {
        json!({"maxSurge": 1, "maxUnavailable": 0})
    }
}
