//! `spec.engine`.

use pagoda_crds::{
    api::Engine,
    names,
    wire::{ExecutorKind, Guesses, KvType, SimulatedConfig},
};

use super::ValidateError;
use crate::quantity::parse_whole;

/// The engine's settings with sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// What computes.
    pub executor: ExecutorKind,
    /// Longest prompt plus answer, in tokens.
    pub max_context_tokens: u32,
    /// Sequences that decode together.
    pub max_sequences: u32,
    /// Tokens of a forward pass.
    pub step_tokens: u32,
    /// Tokens of a KV block.
    pub block_tokens: u32,
    /// Memory of the KV cache.
    pub kv_bytes: u64,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Keep the KV cache of prompts.
    pub prefix_cache: bool,
    /// Guess tokens ahead.
    pub guesses: Guesses,
    /// Timings, exactly when the executor is simulated.
    pub simulated: Option<SimulatedConfig>,
}

/// Another OpenAI-compatible server than Pagoda's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignEngine {
    /// Its image.
    pub image: String,
    /// Its command; empty for the image's own entry point.
    pub command: Vec<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Port that it listens on.
    pub port: u16,
    /// Path that it answers with 200 once the model is loaded.
    pub health_path: String,
}

const DEFAULT_HEALTH_PATH: &str = "/health";

pub(super) fn settings(engine: &Engine) -> Result<EngineSettings, ValidateError> {
    let simulated = engine.executor == ExecutorKind::Simulated;
    let kv_bytes = parse_whole(&engine.kv_memory)
        .ok()
        .and_then(|bytes| u64::try_from(bytes).ok());
    Ok(EngineSettings {
        executor: engine.executor,
        max_context_tokens: engine.max_context_tokens,
        max_sequences: engine.max_sequences,
        step_tokens: engine.step_tokens,
        block_tokens: engine.block_tokens,
        kv_bytes: kv_bytes
            .filter(|b| (1 << 20..=16 << 40).contains(b))
            .ok_or_else(|| ValidateError::Quantity {
                field: "engine.kvMemory",
                expected: "a quantity from 1Mi to 16Ti",
                actual: engine.kv_memory.0.clone(),
            })?,
        kv_type: engine.kv_type,
        prefix_cache: engine.prefix_cache,
        guesses: engine.guesses,
        simulated: simulated.then(|| engine.simulated.clone().unwrap_or_default()),
    })
}

pub(super) fn foreign(engine: &Engine) -> Result<Option<ForeignEngine>, ValidateError> {
    let Some(image) = &engine.image else {
        let described = !(engine.command.is_empty() && engine.args.is_empty())
            || engine.port.is_some()
            || engine.health_path.is_some();
        return if described {
            Err(ValidateError::Field(
                "engine.command, args, port and healthPath describe the server of engine.image: set engine.image, or remove them",
            ))
        } else {
            Ok(None)
        };
    };
    let port = engine.port.unwrap_or(names::ENGINE_PORT);
    let health_path = engine.health_path.as_deref().unwrap_or(DEFAULT_HEALTH_PATH);
    let rules = [
        (
            engine.executor == ExecutorKind::Auto,
            "engine.executor chooses what Pagoda's own engine computes with: remove it, or remove engine.image",
        ),
        (
            is_reference(image),
            "engine.image is the reference of a container image, such as vllm/vllm-openai:v0.11.0",
        ),
        (port > 0, "engine.port is a number from 1 to 65535"),
        (
            is_path(health_path),
            "engine.healthPath is a path, such as /health",
        ),
    ];
    if let Some((_, what)) = rules.into_iter().find(|(holds, _)| !holds) {
        return Err(ValidateError::Field(what));
    }
    Ok(Some(ForeignEngine {
        image: image.clone(),
        command: engine.command.clone(),
        args: engine.args.clone(),
        port,
        health_path: health_path.to_owned(),
    }))
}

fn is_reference(image: &str) -> bool {
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    image.len() <= 1024
        && image.len() >= 2
        && ends(image.bytes().next())
        && ends(image.bytes().last())
        && image
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._:/@-".contains(&b))
}

fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && path.len() <= 256
        && !path.contains(|c: char| c.is_whitespace() || c.is_control())
}
