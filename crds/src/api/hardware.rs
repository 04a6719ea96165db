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
}

/// What computes in each pod.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = (
    "self.kind != 'cpu' || !has(self.resource)",
    "accelerator.resource names what a GPU is requested as: set accelerator.kind to nvidia, or remove it"
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
}

impl Default for Accelerator {
    fn default() -> Self {
        Self {
            kind: AcceleratorKind::default(),
            count: one(),
            resource: None,
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
