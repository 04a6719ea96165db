//! `spec.engine`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{
    schema::quantity,
    wire::{ExecutorKind, Guesses, KvType, SimulatedConfig, defaults},
};

/// Settings of the engine in each pod.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(
    validation = (
        "has(self.image) || !(has(self.command) || has(self.args) || has(self.port) || has(self.healthPath))",
        "engine.command, args, port and healthPath describe the server of engine.image: set engine.image, or remove them"
    ),
    validation = (
        "!has(self.image) || self.executor == 'auto'",
        "engine.executor chooses what Pagoda's own engine computes with: remove it, or remove engine.image"
    )
)]
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
    /// How keys and values are stored: f16, or int8, which holds nearly twice as many tokens in the same memory and is a
    /// little less exact.
    #[serde(default)]
    pub kv_type: KvType,
    /// Keep the KV cache of prompts for later ones that begin alike. Without it every prompt is computed anew.
    #[serde(default = "prefix_cache")]
    pub prefix_cache: bool,
    /// Guess tokens ahead from what the text repeats: auto where it pays, or off. No answer depends on it.
    #[serde(default)]
    pub guesses: Guesses,
    /// Timings of the simulated executor; only with executor simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedConfig>,
    /// Image of another OpenAI-compatible server to run instead of Pagoda's engine, such as vLLM, SGLang or llama-server.
    /// It must answer /v1/chat/completions on engine.port and engine.healthPath once it is ready; its metrics /metrics
    /// drive the autoscaler. The environment holds PAGODA_MODEL_PATH (the file that model.source brought, if there is
    /// one), PAGODA_MODEL_NAME (the first of model.names) and PAGODA_QUALIFIED_NAME (NAMESPACE/NAME).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@-]*[A-Za-z0-9]$')",
        "engine.image is the reference of a container image, such as vllm/vllm-openai:v0.11.0"
    ))]
    pub image: Option<String>,
    /// Command of that image; default: its own entry point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// Arguments of that image. $(PAGODA_MODEL_PATH) and the like are replaced by their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// Port that the server of that image listens on. Default 8000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<u16>,
    /// Path that the server of that image answers with 200 once the model is loaded. Default /health.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = (
        "self.matches('^/[^ ]*$')",
        "engine.healthPath is a path, such as /health"
    ))]
    pub health_path: Option<String>,
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
            kv_type: KvType::default(),
            prefix_cache: prefix_cache(),
            guesses: Guesses::default(),
            simulated: None,
            image: None,
            command: Vec::new(),
            args: Vec::new(),
            port: None,
            health_path: None,
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

fn prefix_cache() -> bool {
    true
}

fn kv_memory() -> Quantity {
    Quantity(format!("{}Mi", defaults::KV_BYTES >> 20))
}
