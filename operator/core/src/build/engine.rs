//! The container that serves: Pagoda's engine, or another server.

use pagoda_crds::names;
use serde_json::{Map, Value, json};

use super::{Setup, model, pod};
use crate::validate::{ForeignEngine, Service};

/// A pod may load for half an hour before it counts as dead.
const STARTUP_SECONDS: u32 = 1800;
/// Other servers answer nothing before they have loaded, and large models take their time.
const FOREIGN_STARTUP_SECONDS: u32 = 7200;
/// Weights of small models and the engine itself; for others users state their own requests.
const DEFAULT_MEMORY_BYTES: u64 = 512 << 20;
/// Routers learn late that a pod leaves; as long as the engine's own grace.
const DRAIN_GRACE_SECONDS: u32 = 3;

pub(super) fn container(service: &Service, setup: &Setup) -> Value {
    let (mut container, mut mounts) = match &service.foreign {
        Some(foreign) => (
            foreign_container(service, foreign, setup),
            foreign_mounts(service),
        ),
        None => (
            own_container(service, setup),
            vec![json!({"name": "config", "mountPath": "/etc/pagoda", "readOnly": true})],
        ),
    };
    if let Some(source) = &service.source {
        mounts.push(model::mount(source, setup, true));
        model::add_environment(&mut container, source, setup);
    }
    container["resources"] = resources(service);
    container["volumeMounts"] = mounts.into();
    container
}

fn own_container(service: &Service, setup: &Setup) -> Value {
    let args = ["serve", "--config", names::ENGINE_CONFIG_PATH];
    let mut engine = pod::container(service, names::CONTAINER_ENGINE, &setup.images, &args);
    engine["ports"] = port(names::ENGINE_PORT);
    engine["startupProbe"] = probe("/health/live", 1, STARTUP_SECONDS);
    engine["readinessProbe"] = probe("/health/ready", 1, 3);
    engine["livenessProbe"] = probe("/health/live", 10, 6);
    engine
}

/// Another server: it runs as the user and with the root file system that its image was made for, and without any
/// privilege beyond.
fn foreign_container(service: &Service, foreign: &ForeignEngine, setup: &Setup) -> Value {
    let path = foreign.health_path.as_str();
    let mut engine = json!({
        "name": names::CONTAINER_ENGINE,
        "image": foreign.image,
        "env": foreign_environment(service, setup),
        "ports": port(foreign.port),
        "terminationMessagePath": names::TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]}
        },
        "startupProbe": probe(path, 1, FOREIGN_STARTUP_SECONDS),
        "readinessProbe": probe(path, 1, 3),
        // The path may speak of the engine behind the server: one that is busy for minutes is slow, not dead.
        "livenessProbe": probe(path, 10, 18),
        "lifecycle": {"preStop": {"exec": {"command": wait_idle(service, foreign)}}}
    });
    for (field, words) in [("command", &foreign.command), ("args", &foreign.args)] {
        if !words.is_empty() {
            engine[field] = words.as_slice().into();
        }
    }
    engine
}

fn foreign_environment(service: &Service, setup: &Setup) -> Vec<Value> {
    let path = service.source.as_ref().map(|s| model::path(s, setup));
    let qualified = format!("{}/{}", service.namespace, service.name);
    let all = [
        (names::ENV_MODEL_PATH, path),
        (names::ENV_MODEL_NAME, service.model_names.first().cloned()),
        (names::ENV_QUALIFIED_NAME, Some(qualified)),
    ];
    all.into_iter()
        .filter_map(|(name, value)| Some(json!({"name": name, "value": value?})))
        .collect()
}

fn foreign_mounts(service: &Service) -> Vec<Value> {
    let mut mounts = vec![pod::binary_mount(true)];
    if service.gpu.is_some() {
        // Servers with several processes share tensors there, far beyond a container's usual 64 MiB.
        mounts.push(json!({"name": "shm", "mountPath": "/dev/shm"}));
    }
    mounts
}

/// Waits until the server's own metrics tell of no request.
fn wait_idle(service: &Service, foreign: &ForeignEngine) -> Vec<String> {
    let url = format!("http://127.0.0.1:{}/metrics", foreign.port);
    let words: [&str; 8] = [
        pod::BINARY,
        "wait-idle",
        "--url",
        &url,
        "--grace-seconds",
        &DRAIN_GRACE_SECONDS.to_string(),
        "--timeout-seconds",
        &service.drain_seconds.to_string(),
    ];
    words.map(str::to_owned).to_vec()
}

fn port(port: u16) -> Value {
    json!([{"name": names::PORT_HTTP, "containerPort": port, "protocol": "TCP"}])
}

/// The timeout is generous: a pod whose cores are busy with a forward pass is slow, not dead.
fn probe(path: &str, period_seconds: u32, failures: u32) -> Value {
    json!({
        "httpGet": {"path": path, "port": names::PORT_HTTP, "scheme": "HTTP"},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures
    })
}

fn resources(service: &Service) -> Value {
    let mut resources = service
        .resources
        .as_ref()
        .and_then(|r| serde_json::to_value(r).ok())
        .filter(|r| r.as_object().is_some_and(|map| !map.is_empty()))
        .unwrap_or_else(|| json!({"requests": default_requests(service)}));
    if let Some(gpu) = &service.gpu {
        // Kubernetes takes a limit of an extended resource as its request.
        if !resources["limits"].is_object() {
            resources["limits"] = Value::Object(Map::new());
        }
        resources["limits"][&gpu.resource] = gpu.count.to_string().into();
    }
    resources
}

fn default_requests(service: &Service) -> Value {
    if service.engine.simulated.is_some() {
        return json!({"cpu": "50m", "memory": "64Mi"});
    }
    let mebibytes = (service.engine.kv_bytes + DEFAULT_MEMORY_BYTES).div_ceil(1 << 20);
    json!({"cpu": "500m", "memory": format!("{mebibytes}Mi")})
}
