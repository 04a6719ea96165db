//! The engine's configuration, and the ConfigMap that carries it.

use pagoda_crds::{names, wire::EngineConfig};
use serde_json::{Value, json};

use super::{Setup, model};
use crate::validate::Service;

/// `engine.json` of a service.
pub(super) fn engine_json(service: &Service, setup: &Setup) -> String {
    let engine = &service.engine;
    let config = EngineConfig {
        names: service.model_names.clone(),
        namespace: service.namespace.clone(),
        service: service.name.clone(),
        model_path: service.source.as_ref().map(|s| model::path(s, setup)),
        listen: format!("0.0.0.0:{}", names::ENGINE_PORT),
        executor: engine.executor,
        max_context_tokens: engine.max_context_tokens,
        max_sequences: engine.max_sequences,
        step_tokens: engine.step_tokens,
        block_tokens: engine.block_tokens,
        kv_bytes: engine.kv_bytes,
        kv_type: engine.kv_type,
        prefix_cache: engine.prefix_cache,
        guesses: engine.guesses,
        drain_seconds: service.drain_seconds,
        simulated: engine.simulated.clone(),
    };
    // Plain fields and strings always serialize.
    serde_json::to_string_pretty(&config).unwrap_or_default()
}

pub(super) fn config_map(metadata: &Value, engine_json: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {names::ENGINE_CONFIG_KEY: engine_json}
    })
}
