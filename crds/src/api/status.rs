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
    /// Which revisions of the pods there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<RevisionStatus>,
    /// How the change from one revision to the next goes; absent when there is none and none failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// What the pods carry; absent while nothing is known. Rounded, so that it is written when it changes much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadStatus>,
    /// How far the model has come, while pods fetch it; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchStatus>,
    /// Facts of the loaded model, as a ready pod tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelStatus>,
    /// Number of pods wanted, and the last decision about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingStatus>,
    /// Ready: the pods of the current spec answer (True at zero replicas too: the gateway wakes them).
    /// ModelLoaded: a pod has loaded the model. Autoscaling: the number of pods follows its metrics. RoutesReady: the
    /// gateways know the service, and its model names are its own.
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

/// How far a model has come. Moves in steps of five percent.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FetchStatus {
    /// Percent of its bytes, of the pod that is furthest behind.
    pub percent: i32,
    /// Size of the whole file in bytes.
    pub total_bytes: i64,
}

/// Which revisions of the pods there are. A revision is the hash of everything that makes a pod what it is.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionStatus {
    /// The one that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// The one of the current spec; the same as current when no rollout is under way.
    pub updated: String,
}

/// How the change from one revision to the next goes.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// What happens at the moment.
    pub phase: RolloutPhase,
    /// When the rollout to the updated revision began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// When it last came further: a pod of the new revision became ready, or a step was passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progressed: Option<Time>,
    /// Step of a canary, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<i32>,
    /// How requests are shared out while a canary runs; absent otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["revision".into()]))]
    pub traffic: Vec<TrafficShare>,
    /// The last revision that was given up. It is not tried again until the spec changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedRevision>,
}

/// What happens in a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum RolloutPhase {
    /// The model is brought to the nodes, while the old revision serves.
    Prefetching,
    /// New pods start before old ones leave.
    Surging,
    /// Old pods leave before new ones start.
    TerminatingFirst,
    /// The new revision gets a share of the requests.
    Canary,
    /// The new revision was given up; the old one serves.
    RolledBack,
}

/// Share of the requests that a revision gets.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficShare {
    /// The revision.
    pub revision: String,
    /// What the names of its pods start with.
    pub pod_prefix: String,
    /// Percent of the requests.
    pub percent: i32,
}

/// A revision that was given up.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedRevision {
    /// The revision.
    pub revision: String,
    /// CamelCase word.
    pub reason: String,
    /// What was wrong with it, with the numbers.
    pub message: String,
}

/// What the pods carry.
#[derive(KubeSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadStatus {
    /// Tokens that are generated per second, to two digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<i64>,
    /// Percent of prompt tokens that were found in the KV cache, in steps of five; absent where the engine does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_hit_percent: Option<i32>,
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
    /// The last changes of their number, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub history: Vec<LastDecision>,
    /// What pods were seen to carry within their latency target, by revision and hardware. Rounded, so that it is written
    /// when it changes much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub capacity: Vec<CapacityStatus>,
}

/// What a pod was seen to carry.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CapacityStatus {
    /// Revision of the pods.
    pub revision: String,
    /// What they run on: the node's accelerator product, or its instance type, or cpu.
    pub hardware: String,
    /// Tokens that a pod generates per second at its latency target, for requests like the present ones; absent until known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<i64>,
    /// Prompt tokens that a pod takes in per second when it does nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_tokens_per_second: Option<i64>,
    /// Microseconds of a decode step with one sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_step_microseconds: Option<i64>,
    /// Microseconds that each further sequence adds to a decode step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_sequence_microseconds: Option<i64>,
    /// Milliseconds from the creation of a pod until it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_milliseconds: Option<i64>,
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
