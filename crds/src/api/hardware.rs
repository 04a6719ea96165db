//! `spec.hardware`.

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::schema::resource_requirements;

/// What each pod runs on.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hardware {
    /// What computes.
    #[serde(default)]
    pub accelerator: Accelerator,
    /// Requests and limits of the engine's container. Default: requests of 500m CPU (50m simulated), and as memory
    /// engine.kvMemory plus 512Mi (64Mi in all when simulated). The engine runs as many threads as the CPU limit
    /// allows, and as the node has cores without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resource_requirements")]
    #[x_kube(
        validation = (
            "(!has(self.requests) || self.requests.all(k, isQuantity(string(self.requests[k])) && !quantity(string(self.requests[k])).isLessThan(quantity('0')))) && (!has(self.limits) || self.limits.all(k, isQuantity(string(self.limits[k])) && !quantity(string(self.limits[k])).isLessThan(quantity('0'))))",
            "hardware.resources must hold quantities of 0 or more, such as cpu: \"2\" or memory: 4Gi"
        ),
        validation = (
            "!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits) || !isQuantity(string(self.requests[k])) || !isQuantity(string(self.limits[k])) || !quantity(string(self.requests[k])).isGreaterThan(quantity(string(self.limits[k]))))",
            "hardware.resources.requests may not exceed limits: raise the limit or lower the request"
        )
    )]
    pub resources: Option<ResourceRequirements>,
    /// Runtime class of the pods, such as nvidia, where the cluster's default runtime does not bring GPUs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",
        "hardware.runtimeClassName is the name of a RuntimeClass"
    ))]
    pub runtime_class_name: Option<String>,
    /// Where pods with several GPUs may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
}

/// Where pods with several GPUs may run.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// Label of nodes whose value names a domain of fast links, such as nvidia.com/gpu.clique for NVLink. Pods run on
    /// nodes that carry it only, and each pod near the others of its service, in one domain, where there is room.
    #[schemars(length(min = 1, max = 317))]
    #[x_kube(validation = (
        "self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')",
        "topology.domainLabel is the key of a node's label, such as nvidia.com/gpu.clique"
    ))]
    pub domain_label: String,
}

/// What computes in each pod.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = (
    "self.kind != 'cpu' || !has(self.resource)",
    "accelerator.resource names what a GPU is requested as: set accelerator.kind to nvidia, or remove it"
), validation = (
    "self.kind != 'cpu' || !has(self.products)",
    "accelerator.products name GPUs: set accelerator.kind to nvidia, or remove them"
))]
#[serde(rename_all = "camelCase")]
pub struct Accelerator {
    /// cpu, or nvidia for pods that get GPUs.
    #[serde(default)]
    pub kind: AcceleratorKind,
    /// GPUs for each pod.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub count: u32,
    /// Resource that a GPU is requested as, such as nvidia.com/mig-1g.10gb. Default with kind nvidia: nvidia.com/gpu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = (
        "self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')",
        "accelerator.resource is written DOMAIN/NAME, such as nvidia.com/gpu"
    ))]
    pub resource: Option<String>,
    /// Products that will do, as nodes carry them in the label nvidia.com/gpu.product, such as NVIDIA-H100-80GB-HBM3.
    /// Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = (
        "self.all(p, p.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$'))",
        "accelerator.products are values of the label nvidia.com/gpu.product: letters, digits and . _ - only"
    ))]
    pub products: Vec<String>,
}

impl Default for Accelerator {
    fn default() -> Self {
        Self {
            kind: AcceleratorKind::default(),
            count: one(),
            resource: None,
            products: Vec::new(),
        }
    }
}

/// Kind of accelerator.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum AcceleratorKind {
    /// No accelerator: the node's cores.
    #[default]
    Cpu,
    /// NVIDIA GPUs.
    Nvidia,
}

fn one() -> u32 {
    1
}
