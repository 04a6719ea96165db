//! `spec.engine`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{
    schema::quantity,
    wire::{ExecutorKind, SimulatedConfig, defaults},
};

/// Settings of the engine in each pod.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Engine {
    /// What computes: auto takes the best that the hardware offers, cpu its cores; simulated runs no model but everything
    /// else (scheduling, batching, metrics), takes the configured time for each step and yields deterministic text: for
    /// sizing and tests.
    #[serde(default)]
    pub executor: ExecutorKind,
    /// Longest prompt plus answer, in tokens. A model that was trained for less lowers it.
    #[serde(default = "max_context_tokens")]
    #[schemars(range(min = 16, max = 1_048_576))]
    pub max_context_tokens: u32,
    /// Sequences that decode together in one pod; further ones wait.
    #[serde(default = "max_sequences")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_sequences: u32,
    /// Tokens that one forward pass takes in, prefill and decode together. Less gives steadier streams, more gives
    /// faster prompts.
    #[serde(default = "step_tokens")]
    #[schemars(range(min = 16, max = 65_536))]
    pub step_tokens: u32,
    /// Tokens in a block of the KV cache. 16 is the only value today.
    #[serde(default = "block_tokens")]
    #[schemars(range(max = 1024))]
    #[x_kube(validation = ("self == 16", "engine.blockTokens must be 16, the only block size that the engine has"))]
    pub block_tokens: u32,
    /// Memory for the KV cache of each pod, such as 512Mi or 4Gi. It counts towards hardware.resources.
    #[serde(default = "kv_memory")]
    #[schemars(schema_with = "quantity")]
    #[x_kube(
        validation = (
            "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('1Mi')) && !quantity(string(self)).isGreaterThan(quantity('16Ti'))",
            "engine.kvMemory must be a quantity from 1Mi to 16Ti, such as 512Mi"
        )
    )]
    pub kv_memory: Quantity,
    /// Timings of the simulated executor; only with executor simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedConfig>,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            executor: ExecutorKind::default(),
            max_context_tokens: max_context_tokens(),
            max_sequences: max_sequences(),
            step_tokens: step_tokens(),
            block_tokens: block_tokens(),
            kv_memory: kv_memory(),
            simulated: None,
        }
    }
}

fn max_context_tokens() -> u32 {
    defaults::MAX_CONTEXT_TOKENS
}

fn max_sequences() -> u32 {
    defaults::MAX_SEQUENCES
}

fn step_tokens() -> u32 {
    defaults::STEP_TOKENS
}

fn block_tokens() -> u32 {
    defaults::BLOCK_TOKENS
}

fn kv_memory() -> Quantity {
    Quantity(format!("{}Mi", defaults::KV_BYTES >> 20))
}
