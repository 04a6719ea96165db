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
/// Label on Deployments, ConfigMaps and pods: the revision that they belong to.
pub const LABEL_REVISION: &str = "serving.pagoda.dev/revision";
/// Label on pods that fetch a model ahead of a rollout: the name of the InferenceService. They answer no request, so
/// they carry no [`LABEL_SERVICE`].
pub const LABEL_PREFETCH: &str = "serving.pagoda.dev/prefetch";
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

/// Init container that lets go of a cached model's file when its pod ends; beside engines that cannot hold it themselves.
pub const CONTAINER_MODEL_LOCK: &str = "model-lock";

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
/// Where the credentials of a source are mounted, in the container that fetches and in no other.
pub const CREDENTIALS_PATH: &str = "/credentials";
/// Where models lie in a pod: a file of their own, or the node's cache.
pub const MODEL_DIRECTORY: &str = "/model";
/// Name of a model's file in its directory.
pub const MODEL_FILE: &str = "model.gguf";
/// Environment variable that tells another server than ours where the model's file lies.
pub const ENV_MODEL_PATH: &str = "PAGODA_MODEL_PATH";
/// Environment variable that tells another server the first name that clients call the model by.
pub const ENV_MODEL_NAME: &str = "PAGODA_MODEL_NAME";
/// Environment variable that tells another server the name NAMESPACE/NAME, which the gateway takes as well.
pub const ENV_QUALIFIED_NAME: &str = "PAGODA_QUALIFIED_NAME";
/// Where a failed container says why ([`crate::wire::TerminationMessage`] as JSON).
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// Environment variable that overrides [`TERMINATION_LOG`].
pub const TERMINATION_LOG_ENV: &str = "PAGODA_TERMINATION_LOG";

/// Hexadecimal digits of a revision in names and labels.
pub const REVISION_DIGITS: usize = 10;
/// Bytes of a service's name in the names of its revisions. Pods' names are cut at 63 bytes; shorter, a revision always
/// stands whole in them.
const REVISION_NAME_BYTES: usize = 40;

/// Name of a revision's Deployment and ConfigMap. The names of its pods start with it and a hyphen.
pub fn revision_name(service: &str, revision: &str) -> String {
    let service = &service[..service.len().min(REVISION_NAME_BYTES)];
    format!("{}-{revision}", service.trim_end_matches('-'))
}

/// Name of a model's directory in a node's cache: the SHA-256 of everything that decides which file it is.
pub fn cache_key(uri: &str, endpoint: Option<&str>, sha256: Option<&str>) -> String {
    use sha2::{Digest, Sha256};
    use std::fmt::Write;
    let parts = [
        uri,
        endpoint.unwrap_or_default(),
        sha256.unwrap_or_default(),
    ];
    let digest = Sha256::digest(parts.join("\n"));
    digest
        .iter()
        .fold(String::with_capacity(64), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_stands_whole_in_the_names_of_its_pods() {
        let name = revision_name(&"a".repeat(63), "0123456789");
        assert_eq!(name, format!("{}-0123456789", "a".repeat(40)));
        // A ReplicaSet adds a hash of at most ten digits, and a pod's name keeps 58 bytes of its base.
        assert!(name.len() < 58);
    }

    #[test]
    fn names_of_revisions_have_no_doubled_hyphen() {
        let service = format!("{}-b", "a".repeat(39));
        assert_eq!(
            revision_name(&service, "0123456789"),
            format!("{}-0123456789", "a".repeat(39))
        );
    }

    #[test]
    fn cache_keys_differ_by_address_endpoint_and_hash() {
        let all = [
            cache_key("hf://a/b/c", None, None),
            cache_key("hf://a/b/d", None, None),
            cache_key("hf://a/b/c", Some("https://mirror"), None),
            cache_key("hf://a/b/c", None, Some("00")),
        ];
        assert!(all.iter().all(|key| key.len() == 64));
        assert_eq!(
            all.iter().collect::<std::collections::BTreeSet<_>>().len(),
            4
        );
    }
}
