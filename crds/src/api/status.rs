//! `status`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// What runs. Written by the operator alone.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InferenceServiceStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Base address of the OpenAI API inside the cluster; send the model's name in each request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Pods that exist.
    #[serde(default)]
    pub replicas: i32,
    /// Pods that answer.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Label selector of the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Facts of the loaded model, as a ready pod tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelStatus>,
    /// Number of pods wanted, and the last decision about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingStatus>,
    /// Ready: the pods of the current spec answer (True at zero replicas too: the gateway wakes them).
    /// ModelLoaded: a pod has loaded the model. Autoscaling: the number of pods follows its metrics.
    /// Reconciling and Stalled are present only while true.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Facts of the loaded model.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelStatus {
    /// Size of the file in bytes.
    pub bytes: i64,
    /// Architecture, such as llama.
    pub architecture: String,
    /// Type of most weights, such as Q4_1.
    pub quantization: String,
    /// Milliseconds that the pod took to load it.
    pub load_milliseconds: i64,
    /// What computes: cpu, or simulated when no real model answers.
    pub executor: String,
}

/// Number of pods wanted, and the last decision about it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingStatus {
    /// Pods that should run.
    pub desired_replicas: i32,
    /// The last time that their number changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_decision: Option<LastDecision>,
}

/// A change of the number of pods.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastDecision {
    /// When.
    pub time: Time,
    /// Pods before.
    pub from: i32,
    /// Pods after.
    pub to: i32,
    /// Why, with the numbers.
    pub reason: String,
}
