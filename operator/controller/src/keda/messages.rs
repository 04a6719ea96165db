//! The messages of KEDA's `externalscaler.proto`, package `externalscaler`, by their field numbers. Written by hand, so that no
//! build needs a compiler of protocols; the fields that KEDA calls deprecated are there for versions that read no others.

use std::collections::HashMap;

/// Which ScaledObject asks, and what stands in its trigger.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ScaledObjectRef {
    /// Name of the ScaledObject.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// `metadata` of the trigger.
    #[prost(map = "string, string", tag = "3")]
    pub scaler_metadata: HashMap<String, String>,
}

/// Whether there should be pods at all.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IsActiveResponse {
    /// Whether.
    #[prost(bool, tag = "1")]
    pub result: bool,
}

/// What an HPA should be made for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricSpecResponse {
    /// Metrics with their targets.
    #[prost(message, repeated, tag = "1")]
    pub metric_specs: Vec<MetricSpec>,
}

/// A metric with its target.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetricSpec {
    /// Name.
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// Target, rounded.
    #[prost(int64, tag = "2")]
    pub target_size: i64,
    /// Target.
    #[prost(double, tag = "3")]
    pub target_size_float: f64,
}

/// Which metric is asked for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricsRequest {
    /// By whom.
    #[prost(message, optional, tag = "1")]
    pub scaled_object_ref: Option<ScaledObjectRef>,
    /// Name, as in [`MetricSpec`].
    #[prost(string, tag = "2")]
    pub metric_name: String,
}

/// Values of metrics.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetMetricsResponse {
    /// One for each.
    #[prost(message, repeated, tag = "1")]
    pub metric_values: Vec<MetricValue>,
}

/// Value of a metric.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetricValue {
    /// Name.
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// Value, rounded.
    #[prost(int64, tag = "2")]
    pub metric_value: i64,
    /// Value.
    #[prost(double, tag = "3")]
    pub metric_value_float: f64,
}
