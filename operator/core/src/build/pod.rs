//! The pod template: how a model comes into the pod, and the engine that serves it.

use pagoda_crds::names;
use serde_json::{Map, Value, json};

use super::{Images, labels, overlay};
use crate::validate::{ModelUri, Service, Source};

/// User and group of the engine's image.
const USER: u32 = 65532;
/// Beyond the drain: the engine's grace for late routers, and its own exit.
const TERMINATION_MARGIN_SECONDS: u32 = 15;
/// A pod may load for half an hour before it counts as dead.
const STARTUP_SECONDS: u32 = 1800;
/// Weights of small models and the engine itself; for others users state their own requests.
const DEFAULT_MEMORY_BYTES: u64 = 512 << 20;

/// The template without its revision.
pub(super) fn template(service: &Service, images: &Images, config_hash: &str) -> Value {
    let mut template = json!({
        "metadata": {
            "labels": labels(service),
            "annotations": {names::ANNOTATION_CONFIG_HASH: config_hash}
        },
        "spec": spec(service, images)
    });
    overlay::lay(&mut template, &service.overlay);
    template
}

fn spec(service: &Service, images: &Images) -> Value {
    let mut spec = json!({
        "serviceAccountName": service.name,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": service.drain_seconds + TERMINATION_MARGIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"}
        },
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": super::selector(service)}
        }],
        "containers": [engine(service, images)],
        "volumes": volumes(service)
    });
    let init = service
        .source
        .as_ref()
        .map_or_else(Vec::new, |source| init_containers(source, images));
    if !init.is_empty() {
        spec["initContainers"] = init.into();
    }
    spec
}

fn engine(service: &Service, images: &Images) -> Value {
    let mut mounts = vec![json!({"name": "config", "mountPath": "/etc/pagoda", "readOnly": true})];
    if service.source.is_some() {
        mounts.push(json!({"name": "model", "mountPath": "/model", "readOnly": true}));
    }
    let mut engine = container(
        names::CONTAINER_ENGINE,
        images,
        &["serve", "--config", names::ENGINE_CONFIG_PATH],
    );
    engine["ports"] =
        json!([{"name": names::PORT_HTTP, "containerPort": names::ENGINE_PORT, "protocol": "TCP"}]);
    engine["resources"] = resources(service);
    engine["volumeMounts"] = mounts.into();
    engine["startupProbe"] = probe("/health/live", 1, STARTUP_SECONDS);
    engine["readinessProbe"] = probe("/health/ready", 1, 3);
    engine["livenessProbe"] = probe("/health/live", 10, 6);
    engine
}

/// A container of the engine's image, locked down. The image's entry point is the engine's binary.
fn container(name: &str, images: &Images, args: &[&str]) -> Value {
    json!({
        "name": name,
        "image": images.engine,
        "imagePullPolicy": images.pull_policy,
        "args": args,
        "terminationMessagePath": names::TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}
        }
    })
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

fn volumes(service: &Service) -> Value {
    let mut volumes = vec![json!({"name": "config", "configMap": {"name": service.name}})];
    let Some(source) = &service.source else {
        return volumes.into();
    };
    let fetched = || json!({"name": "model", "emptyDir": {}});
    let lies_in = |name: &str| match &source.uri {
        ModelUri::File { directory, .. } => {
            Some(json!({"name": name, "hostPath": {"path": directory}}))
        }
        ModelUri::Pvc { claim, .. } => Some(
            json!({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": true}}),
        ),
        _ => None,
    };
    match (&source.uri, &source.sha256) {
        (ModelUri::File { .. } | ModelUri::Pvc { .. }, None) => volumes.extend(lies_in("model")),
        (ModelUri::Image { .. }, _) => {
            volumes.extend([fetched(), json!({"name": "engine-binary", "emptyDir": {}})]);
        }
        _ => volumes.extend([Some(fetched()), lies_in("source")].into_iter().flatten()),
    }
    volumes.into()
}

/// What brings the model to [`names::MODEL_PATH`]; nothing when the engine reads it where it lies. A hash is checked
/// while copying, so a mounted model that has one is copied.
fn init_containers(source: &Source, images: &Images) -> Vec<Value> {
    let model_mount = json!({"name": "model", "mountPath": "/model"});
    let source_mount = json!({"name": "source", "mountPath": "/source", "readOnly": true});
    let from = |uri: &str| fetch(uri, source, images);
    match &source.uri {
        ModelUri::Https { url } => vec![with_mounts(from(url), vec![model_mount])],
        ModelUri::File { file, .. } if source.sha256.is_some() => {
            vec![with_mounts(
                from(&format!("file:///source/{file}")),
                vec![model_mount, source_mount],
            )]
        }
        ModelUri::Pvc { path, .. } if source.sha256.is_some() => {
            vec![with_mounts(
                from(&format!("file:///source/{path}")),
                vec![model_mount, source_mount],
            )]
        }
        ModelUri::File { .. } | ModelUri::Pvc { .. } => Vec::new(),
        ModelUri::Image { reference, path } => {
            let binary_mount = json!({"name": "engine-binary", "mountPath": "/pagoda-bin"});
            let install = container(
                names::CONTAINER_BINARY,
                images,
                &["install", "/pagoda-bin/pagoda-engine"],
            );
            let mut model = from(&format!("file://{path}"));
            model["image"] = reference.as_str().into();
            model["command"] = json!(["/pagoda-bin/pagoda-engine"]);
            vec![
                with_mounts(install, vec![binary_mount.clone()]),
                with_mounts(model, vec![model_mount, binary_mount]),
            ]
        }
    }
}

fn fetch(uri: &str, source: &Source, images: &Images) -> Value {
    let mut args = vec!["fetch", uri, "--to", names::MODEL_PATH];
    if let Some(sha256) = &source.sha256 {
        args.extend(["--sha256", sha256]);
    }
    container(names::CONTAINER_MODEL, images, &args)
}

fn with_mounts(mut container: Value, mounts: Vec<Value>) -> Value {
    container["volumeMounts"] = mounts.into();
    container
}
