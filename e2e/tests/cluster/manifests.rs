//! InferenceServices that the tests apply.

use serde_json::{Value, json};

/// A simulated service that starts at once and takes 20 ms a token; one replica, no more and no less.
pub fn simulated(name: &str) -> Value {
    json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            // Small requests: the whole suite shares two cores, and a simulated pass only waits.
            "hardware": {"resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}}},
            "engine": {
                "executor": "simulated",
                "maxContextTokens": 2048,
                "maxSequences": 64,
                "kvMemory": "64Mi",
                "simulated": {"prefillTokensPerSecond": 20000, "decodeStepMilliseconds": 20, "loadSeconds": 0},
            },
            "scaling": {"minReplicas": 1, "maxReplicas": 1},
        },
    })
}

/// A service of the real engine on the CPU, its model from `uri`.
pub fn on_cpu(name: &str, uri: &str) -> Value {
    json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": {"uri": uri}},
            "hardware": {"resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}},
            "engine": {"maxContextTokens": 512, "maxSequences": 4, "kvMemory": "64Mi"},
            "scaling": {"minReplicas": 1, "maxReplicas": 1},
        },
    })
}

/// The same manifest with the value at `path` (segments of keys) set.
pub fn with(mut manifest: Value, path: &[&str], value: Value) -> Value {
    let mut place = &mut manifest;
    for key in path {
        place = &mut place[*key];
    }
    *place = value;
    manifest
}
