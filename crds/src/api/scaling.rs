//! `spec.scaling`: how many pods, and what moves their number.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scaling_behavior::{Behavior, Panic};
use super::scaling_sources::{LookAhead, PrometheusTargets, Schedule};
use crate::schema::quantity;

/// How many pods, and what moves their number.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = (
        "self.minReplicas <= self.maxReplicas",
        "scaling.minReplicas is above scaling.maxReplicas: raise maxReplicas or lower minReplicas"
    ),
    validation = (
        "!has(self.schedules) || self.schedules.all(s, s.minReplicas <= self.maxReplicas)",
        "scaling.schedules asks for a minReplicas above scaling.maxReplicas: raise maxReplicas or lower the schedule's minReplicas"
    ),
    validation = (
        "!has(self.targets) || self.targets.all(t, !has(t.percent) || t.percent * (100 + self.tolerancePercent) <= 10000)",
        "scaling.targets: KvCacheUtilization cannot go above 100, so with this tolerancePercent the target could never be missed upwards: lower percent or tolerancePercent"
    )
)]
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
    /// Percent by which a metric may miss its target before the number of pods changes, where behavior does not say.
    #[serde(default = "tolerance_percent")]
    #[schemars(range(min = 0, max = 100))]
    pub tolerance_percent: u32,
    /// Seconds that a lower number must have been recommended without a break before pods are removed, where
    /// behavior.scaleDown.stabilizationWindowSeconds does not say.
    #[serde(default = "stabilization_seconds")]
    #[schemars(range(min = 0, max = 3600))]
    pub scale_down_stabilization_seconds: u32,
    /// Seconds over which metrics are averaged before they are compared with their targets. Percentiles of latency are those
    /// of this window too.
    #[serde(default = "window_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub window_seconds: u32,
    /// What each pod should carry, or what clients should feel; the largest recommendation wins. An empty list leaves the
    /// number of pods to minReplicas, idleSeconds, schedules and prometheus.
    #[serde(default = "targets")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["metric".into()]))]
    pub targets: Vec<Target>,
    /// Targets for figures that a Prometheus knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusTargets>,
    /// How fast the number of pods may change, in the words of autoscaling/v2 HorizontalPodAutoscaler. What is left out
    /// is as an HPA has it: up at most 4 pods or 100 percent in 15 seconds, whichever is more; down after 300 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,
    /// What a sudden burst may do beyond behavior.
    #[serde(default)]
    pub panic: Panic,
    /// Times at which at least so many pods run, such as office hours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub schedules: Vec<Schedule>,
    /// Pods take a while to load: how the load of that moment is foreseen.
    #[serde(default)]
    pub look_ahead: LookAhead,
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
            window_seconds: window_seconds(),
            targets: targets(),
            prometheus: None,
            behavior: None,
            panic: Panic::default(),
            schedules: Vec::new(),
            look_ahead: LookAhead::default(),
            managed_by: ManagedBy::default(),
        }
    }
}

/// What each pod should carry of one metric, or what clients should feel.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = (
        "has(self.averageValue) == (self.metric in ['InFlightRequests', 'RequestsPerSecond', 'QueuedRequests', 'TokensPerSecond'])",
        "targets of InFlightRequests, RequestsPerSecond, QueuedRequests and TokensPerSecond take averageValue: how much of it each pod should carry, such as averageValue: \"8\"; no other does"
    ),
    validation = (
        "has(self.percent) == (self.metric == 'KvCacheUtilization')",
        "a target of KvCacheUtilization takes percent: how full the pods' KV caches should be, such as percent: 80; no other does"
    ),
    validation = (
        "has(self.milliseconds) == (self.metric in ['TimeToFirstToken', 'InterTokenLatency'])",
        "targets of TimeToFirstToken and InterTokenLatency take milliseconds: what the percentile should stay under, such as milliseconds: 800; no other does"
    ),
    validation = (
        "!has(self.percentile) || has(self.milliseconds)",
        "percentile belongs to TimeToFirstToken and InterTokenLatency"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// What is measured. InFlightRequests: requests that run, wait or are held. RequestsPerSecond: requests that arrive.
    /// QueuedRequests: requests that wait or are held. TokensPerSecond: tokens that are generated. KvCacheUtilization: how full
    /// the pods' KV caches are. TimeToFirstToken, InterTokenLatency: what clients feel; the pods that it takes are reckoned
    /// from what a request costs and what a pod was seen to carry, and corrected by what is measured.
    pub metric: Metric,
    /// How much of it each pod should carry, such as "8" or "500m".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity")]
    #[x_kube(validation = (
        "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('1m')) && !quantity(string(self)).isGreaterThan(quantity('1000000'))",
        "averageValue must be a quantity from 1m to 1000000: how much of the metric each pod should carry, such as \"8\""
    ))]
    pub average_value: Option<Quantity>,
    /// Percent of the KV cache in use, averaged over the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub percent: Option<u32>,
    /// Which percentile of the latency; 95 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 99))]
    pub percentile: Option<u32>,
    /// What the percentile should stay under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub milliseconds: Option<u32>,
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
    /// Requests that wait in a pod or are held by the gateway.
    QueuedRequests,
    /// Tokens that are generated per second.
    TokensPerSecond,
    /// Share of the KV cache in use.
    KvCacheUtilization,
    /// Arrival to first token.
    TimeToFirstToken,
    /// Time between two tokens of an answer.
    InterTokenLatency,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Self; 7] = [
        Self::InFlightRequests,
        Self::RequestsPerSecond,
        Self::QueuedRequests,
        Self::TokensPerSecond,
        Self::KvCacheUtilization,
        Self::TimeToFirstToken,
        Self::InterTokenLatency,
    ];

    /// The word itself, as in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InFlightRequests => "InFlightRequests",
            Self::RequestsPerSecond => "RequestsPerSecond",
            Self::QueuedRequests => "QueuedRequests",
            Self::TokensPerSecond => "TokensPerSecond",
            Self::KvCacheUtilization => "KvCacheUtilization",
            Self::TimeToFirstToken => "TimeToFirstToken",
            Self::InterTokenLatency => "InterTokenLatency",
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

fn window_seconds() -> u32 {
    30
}

fn targets() -> Vec<Target> {
    vec![Target {
        metric: Metric::InFlightRequests,
        average_value: Some(Quantity("8".into())),
        percent: None,
        percentile: None,
        milliseconds: None,
    }]
}
