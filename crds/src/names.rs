//! Names that more than one program must agree on: labels, annotations, ports, field managers.

/// API group of everything Pagoda owns.
pub const GROUP: &str = "serving.pagoda.dev";
/// API version served today.
pub const VERSION: &str = "v1alpha1";
/// Kind of the one custom resource.
pub const KIND: &str = "InferenceService";
/// Plural of [`KIND`], as it stands in URLs.
pub const PLURAL: &str = "inferenceservices";

/// Namespace that operator and gateway run in unless told otherwise.
pub const SYSTEM_NAMESPACE: &str = "pagoda-system";

/// Label on all children, on pods and on EndpointSlices: the name of the InferenceService.
/// It alone is the selector of pods.
pub const LABEL_SERVICE: &str = "serving.pagoda.dev/service";
/// `app.kubernetes.io/name` of all children.
pub const LABEL_APP: &str = "app.kubernetes.io/name";
/// Value of [`LABEL_APP`].
pub const APP_ENGINE: &str = "pagoda-engine";
/// `app.kubernetes.io/managed-by` of all children.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`LABEL_MANAGED_BY`].
pub const MANAGED_BY_OPERATOR: &str = "pagoda-operator";
/// Label that Kubernetes puts on EndpointSlices: the name of their Service.
pub const LABEL_SLICE_SERVICE: &str = "kubernetes.io/service-name";
/// Prefix of labels and annotations that a pod template of a user may not set.
pub const RESERVED_PREFIX: &str = "serving.pagoda.dev/";

/// Annotation on the pod template: hash of the engine's configuration, so that a changed
/// configuration rolls out.
pub const ANNOTATION_CONFIG_HASH: &str = "serving.pagoda.dev/config-hash";
/// Annotation on each child: hash of what was last applied, so that an equal apply is skipped.
pub const ANNOTATION_APPLIED_HASH: &str = "serving.pagoda.dev/applied-hash";

/// Field manager of children.
pub const MANAGER_CHILDREN: &str = "pagoda-operator";
/// Field manager of the status.
pub const MANAGER_STATUS: &str = "pagoda-operator-status";
/// Field manager of `spec.replicas`, and of nothing else.
pub const MANAGER_AUTOSCALER: &str = "pagoda-autoscaler";

/// Container that serves.
pub const CONTAINER_ENGINE: &str = "engine";
/// Init container that fetches the model.
pub const CONTAINER_MODEL: &str = "model";
/// Init container that lays the engine's binary where the model's own image can run it.
pub const CONTAINER_BINARY: &str = "engine-binary";

/// Name of the port that serves OpenAI's API, on pods, Services and EndpointSlices.
pub const PORT_HTTP: &str = "http";
/// Name of the port with `/healthz`, `/readyz` and `/metrics`.
pub const PORT_ADMIN: &str = "admin";
/// Port of the engine in its pod.
pub const ENGINE_PORT: u16 = 8000;
/// Port of each InferenceService's own Service, and of the gateway's.
pub const SERVICE_PORT: u16 = 80;
/// Port of the gateway in its pod.
pub const GATEWAY_PORT: u16 = 8080;
/// Port of the gateway's health and metrics.
pub const GATEWAY_ADMIN_PORT: u16 = 8081;
/// Port of the operator's health and metrics.
pub const OPERATOR_PORT: u16 = 8080;
/// Service in front of the gateway's pods.
pub const GATEWAY_SERVICE: &str = "pagoda-gateway";

/// Where the engine finds its configuration ([`crate::wire::EngineConfig`] as JSON).
pub const ENGINE_CONFIG_PATH: &str = "/etc/pagoda/engine.json";
/// File name of the configuration in the ConfigMap.
pub const ENGINE_CONFIG_KEY: &str = "engine.json";
/// Where a fetched model lies.
pub const MODEL_PATH: &str = "/model/model.gguf";
/// Where a failed container says why ([`crate::wire::TerminationMessage`] as JSON).
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// Environment variable that overrides [`TERMINATION_LOG`].
pub const TERMINATION_LOG_ENV: &str = "PAGODA_TERMINATION_LOG";
