//! The custom resource. Doc comments here are what users read in `kubectl explain`.
//!
//! Most rules stand in the schema, so that `kubectl apply` refuses what cannot work and says what to
//! change; `pagoda-operator-core` checks again whatever a rule cannot say.

mod engine;
mod hardware;
mod model;
mod pod_template;
mod rollout;
mod routing;
mod scaling;
mod scaling_behavior;
mod scaling_sources;
mod status;

pub use engine::Engine;
pub use hardware::{Accelerator, AcceleratorKind, Hardware, Topology};
pub use model::{Model, ModelSource, SourceCredentials};
pub use pod_template::{OverlayMetadata, PodTemplateOverlay};
pub use rollout::{Canary, Rollout, RolloutStrategy};
pub use routing::{Hold, Routing, RoutingPolicy};
pub use scaling::{ManagedBy, Metric, Scaling, Target};
pub use scaling_behavior::{
    Behavior, Panic, PolicyKind, ScalingPolicy, ScalingRules, SelectPolicy,
};
pub use scaling_sources::{LookAhead, PrometheusQuery, PrometheusTargets, Schedule};
pub use status::{
    CapacityStatus, FailedRevision, FetchStatus, InferenceServiceStatus, LastDecision, LoadStatus,
    ModelStatus, RevisionStatus, RolloutPhase, RolloutStatus, ScalingStatus, TrafficShare,
};

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// What should run: which model, on what, and how many copies of it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "serving.pagoda.dev",
    version = "v1alpha1",
    kind = "InferenceService",
    plural = "inferenceservices",
    singular = "inferenceservice",
    shortname = "isvc",
    category = "all",
    category = "pagoda",
    namespaced,
    doc = "InferenceService serves one model behind an OpenAI-compatible API: its pods load the model, the gateway \
           routes requests to them by the model's name, and their number follows the load.",
    status = "InferenceServiceStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Model",
        type_ = "string",
        json_path = ".spec.model.names[0]",
        priority = 1,
        description = "First name that clients call the model by, when it differs from the service's"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(
        name = "Pods",
        type_ = "integer",
        json_path = ".status.readyReplicas",
        description = "Pods that answer"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".status.scaling.desiredReplicas",
        description = "Pods that should run"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Tokens/s",
        type_ = "integer",
        json_path = ".status.load.tokensPerSecond",
        description = "Tokens that the service generates per second, rounded"
    ),
    printcolumn(
        name = "KV-Hit",
        type_ = "integer",
        json_path = ".status.load.kvHitPercent",
        description = "Percent of prompt tokens that were found in the KV cache"
    ),
    printcolumn(
        name = "Revision",
        type_ = "string",
        json_path = ".status.revision.current",
        priority = 1,
        description = "Revision that serves"
    ),
    printcolumn(
        name = "Executor",
        type_ = "string",
        json_path = ".status.model.executor",
        priority = 1
    ),
    printcolumn(
        name = "URL",
        type_ = "string",
        json_path = ".status.url",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = (
        "size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must be at most 63 lower-case letters, digits and hyphens, starting with a letter and not ending with a hyphen: a Service takes this name"
    )
)]
#[x_kube(
    validation = (
        "self.engine.executor == 'simulated' || has(self.engine.image) || has(self.model.source)",
        "model.source is required: say where the model lies, as in source: {uri: \"https://HOST/PATH.gguf\"}"
    ),
    validation = (
        "!has(self.engine.simulated) || self.engine.executor == 'simulated'",
        "engine.simulated holds timings of the simulated executor: set engine.executor to simulated, or remove engine.simulated"
    )
)]
#[x_kube(validation = (
    "self.engine.executor != 'simulated' || oldSelf.engine.executor == 'simulated' || has(oldSelf.engine.image)",
    "engine.executor may not become simulated: whoever asks this service for a real model's answers would get made-up text; create another service"
))]
#[serde(rename_all = "camelCase")]
pub struct InferenceServiceSpec {
    /// Number of pods. Leave it out of manifests: the autoscaler writes it, or, with scaling.managedBy External,
    /// whoever uses the scale subresource (an HPA, KEDA, kubectl scale).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// Which model, and where it lies.
    #[serde(default)]
    pub model: Model,
    /// What each pod runs on.
    #[serde(default)]
    pub hardware: Hardware,
    /// Settings of the engine in each pod.
    #[serde(default)]
    pub engine: Engine,
    /// How many pods, and what moves their number.
    #[serde(default)]
    pub scaling: Scaling,
    /// How the gateway treats requests for this model.
    #[serde(default)]
    pub routing: Routing,
    /// How a change reaches running pods, and how pods leave.
    #[serde(default)]
    pub rollout: Rollout,
    /// Changes to the pods that the operator builds: labels, tolerations, sidecars, volumes, security context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplateOverlay>,
}
