//! `spec.scaling`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::quantity;

/// How many pods, and what moves their number.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = (
    "self.minReplicas <= self.maxReplicas",
    "scaling.minReplicas is above scaling.maxReplicas: raise maxReplicas or lower minReplicas"
))]
#[serde(rename_all = "camelCase")]
pub struct Scaling {
    /// Fewest pods. 0 lets the service go to zero after idleSeconds without a request; the gateway then holds the next
    /// request until a pod is ready.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: u32,
    /// Most pods.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: u32,
    /// Seconds without any request, running or held, after which a service with minReplicas 0 goes to zero.
    #[serde(default = "idle_seconds")]
    #[schemars(range(min = 1, max = 604_800))]
    pub idle_seconds: u32,
    /// Percent by which a metric may miss its target before the number of pods changes.
    #[serde(default = "tolerance_percent")]
    #[schemars(range(min = 0, max = 100))]
    pub tolerance_percent: u32,
    /// Seconds that a lower number must have been recommended without a break before pods are removed.
    #[serde(default = "stabilization_seconds")]
    #[schemars(range(min = 0, max = 3600))]
    pub scale_down_stabilization_seconds: u32,
    /// What each pod should carry; the largest recommendation wins. An empty list leaves the number of pods to
    /// minReplicas and idleSeconds.
    #[serde(default = "targets")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["metric".into()]))]
    pub targets: Vec<Target>,
    /// Who owns the number of pods: Pagoda's autoscaler, or, when External, an HPA, KEDA or a person through the scale
    /// subresource.
    #[serde(default)]
    pub managed_by: ManagedBy,
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            min_replicas: one(),
            max_replicas: one(),
            idle_seconds: idle_seconds(),
            tolerance_percent: tolerance_percent(),
            scale_down_stabilization_seconds: stabilization_seconds(),
            targets: targets(),
            managed_by: ManagedBy::default(),
        }
    }
}

/// What each pod should carry of one metric.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// What is measured: InFlightRequests counts requests that run, wait or are held; RequestsPerSecond counts requests
    /// that arrive.
    pub metric: Metric,
    /// How much of it each pod should carry, such as "8" or "500m".
    #[schemars(schema_with = "quantity")]
    #[x_kube(validation = (
        "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('1m')) && !quantity(string(self)).isGreaterThan(quantity('1000000'))",
        "averageValue must be a quantity from 1m to 1000000: how much of the metric each pod should carry, such as \"8\""
    ))]
    pub average_value: Quantity,
}

/// A metric to scale on.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Metric {
    /// Requests that run, wait in a pod or are held by the gateway.
    InFlightRequests,
    /// Requests that arrive per second.
    RequestsPerSecond,
}

impl Metric {
    /// The word itself, as in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InFlightRequests => "InFlightRequests",
            Self::RequestsPerSecond => "RequestsPerSecond",
        }
    }
}

/// Who owns the number of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ManagedBy {
    /// Pagoda's autoscaler.
    #[default]
    Pagoda,
    /// Whoever uses the scale subresource.
    External,
}

fn one() -> u32 {
    1
}

fn idle_seconds() -> u32 {
    300
}

fn tolerance_percent() -> u32 {
    10
}

fn stabilization_seconds() -> u32 {
    300
}

fn targets() -> Vec<Target> {
    vec![Target {
        metric: Metric::InFlightRequests,
        average_value: Quantity("8".into()),
    }]
}
