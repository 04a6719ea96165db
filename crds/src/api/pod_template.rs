//! `spec.podTemplate`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

use crate::schema::pod_spec_overlay;

/// Changes to the pods that the operator builds.
///
/// Maps are merged, lists of named things (containers, volumes, env, volumeMounts) by their name or key, other lists
/// and values are replaced. The engine's container is called engine.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplateOverlay {
    /// Labels and annotations to add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<OverlayMetadata>,
    /// Fields of a PodSpec, as in a Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pod_spec_overlay")]
    #[x_kube(
        validation = (
            "!has(self.containers) || self.containers.all(c, c.name != 'engine' || !(has(c.image) || has(c.command) || has(c.args)))",
            "podTemplate may not set image, command or args of the container engine: another server is named by engine.image, engine.command and engine.args, and a sidecar has another name"
        ),
        validation = (
            "!has(self.initContainers) || self.initContainers.all(c, !(c.name in ['model', 'model-lock', 'engine-binary']) || !(has(c.image) || has(c.command) || has(c.args)))",
            "podTemplate may not set image, command or args of the init containers model, model-lock and engine-binary: they belong to the operator"
        ),
        validation = (
            "!has(self.restartPolicy) || self.restartPolicy == 'Always'",
            "podTemplate.spec.restartPolicy must be Always: the pods belong to a Deployment"
        )
    )]
    pub spec: Option<Map<String, Value>>,
}

/// Labels and annotations of pods.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OverlayMetadata {
    /// Labels to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = (
        "self.all(k, !k.startsWith('serving.pagoda.dev/') && !(k in ['app.kubernetes.io/name', 'app.kubernetes.io/managed-by', 'pod-template-hash']))",
        "podTemplate may not set the labels that the operator finds its pods by: serving.pagoda.dev/*, app.kubernetes.io/name, app.kubernetes.io/managed-by"
    ))]
    pub labels: BTreeMap<String, String>,
    /// Annotations to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = (
        "self.all(k, !k.startsWith('serving.pagoda.dev/'))",
        "podTemplate may not set annotations serving.pagoda.dev/*: they belong to the operator"
    ))]
    pub annotations: BTreeMap<String, String>,
}
