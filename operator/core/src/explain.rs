//! The last hour of decisions about a service, as the operator hands it out (`/decisions/NAMESPACE/NAME`) and `pagoda explain`
//! reads it.

use serde::{Deserialize, Serialize};

/// Decisions about one service, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionLog {
    /// Namespace of the service.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When this was said, in seconds since 1970.
    pub now: i64,
    /// Spans of time over which the same was decided on figures that were nearly the same.
    pub spans: Vec<DecisionSpan>,
}

/// A span of time over which the same was decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecisionSpan {
    /// First decision, in seconds since 1970.
    pub from: i64,
    /// Last decision, in seconds since 1970.
    pub until: i64,
    /// Pods that the spec asked for.
    pub current: u32,
    /// Pods that were decided on.
    pub replicas: u32,
    /// Pods that answered.
    pub ready: u32,
    /// Pods on their way.
    pub pending: u32,
    /// Requests that waited for a pod.
    pub held: u64,
    /// CamelCase word.
    pub reason: String,
    /// Fewest pods at that time, schedules counted in.
    pub min_replicas: u32,
    /// While a burst was answered: the most pods that it had asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub panic: Option<u32>,
    /// Pods that were foreseen to be needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreseen: Option<u32>,
    /// What `behavior` allowed, when that was less of a change than was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// What each target asked for, in the order of the spec.
    pub metrics: Vec<MetricSpan>,
    /// Which of them asked for the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub winner: Option<usize>,
}

/// What one target asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricSpan {
    /// The metric, or the query's name.
    pub metric: String,
    /// `pods` when the target is for each pod, `whole`, `share`, or a percentile as in `p95`.
    pub unit: String,
    /// What was measured; none when nobody told. Latencies in seconds, shares of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The target.
    pub target: f64,
    /// Pods that it asked for by itself.
    pub replicas: u32,
}

/// Why an operator has no decisions to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NoDecisions {
    /// A sentence.
    pub message: String,
    /// Who leads, when it is another one and known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
}
