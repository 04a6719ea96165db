//! The engine's configuration, and the ConfigMap that carries it.

use pagoda_crds::{names, wire::EngineConfig};
use serde_json::{Value, json};

use super::metadata;
use crate::validate::{ModelUri, Service};

/// `engine.json` of a service.
pub fn engine_json(service: &Service) -> String {
    let engine = &service.engine;
    let config = EngineConfig {
        names: service.model_names.clone(),
        namespace: service.namespace.clone(),
        service: service.name.clone(),
        model_path: model_path(service),
        listen: format!("0.0.0.0:{}", names::ENGINE_PORT),
        executor: engine.executor,
        max_context_tokens: engine.max_context_tokens,
        max_sequences: engine.max_sequences,
        step_tokens: engine.step_tokens,
        block_tokens: engine.block_tokens,
        kv_bytes: engine.kv_bytes,
        drain_seconds: service.drain_seconds,
        simulated: engine.simulated.clone(),
    };
    // Plain fields and strings always serialize.
    serde_json::to_string_pretty(&config).unwrap_or_default()
}

/// Where the engine finds its model: in the volume that it lies in, or where the init container put it.
fn model_path(service: &Service) -> Option<String> {
    let source = service.source.as_ref()?;
    let mounted = source.sha256.is_none();
    Some(match &source.uri {
        ModelUri::File { file, .. } if mounted => format!("/model/{file}"),
        ModelUri::Pvc { path, .. } if mounted => format!("/model/{path}"),
        _ => names::MODEL_PATH.to_owned(),
    })
}

pub(super) fn config_map(service: &Service, engine_json: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(service),
        "data": {names::ENGINE_CONFIG_KEY: engine_json}
    })
}
