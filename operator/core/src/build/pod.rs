//! The pod template.

use pagoda_crds::names;
use serde_json::{Value, json};

use super::{Images, Setup, engine, hardware, labels, model, overlay};
use crate::validate::Service;

/// User and group of the engine's image.
pub(super) const USER: u32 = 65532;
/// Beyond the drain: the engine's grace for late routers, and its own exit.
const TERMINATION_MARGIN_SECONDS: u32 = 15;
/// Another server is told to end when its drain is over, and then needs time for that.
const FOREIGN_MARGIN_SECONDS: u32 = 45;
/// Stands for the ConfigMap's name until the revision has one; no ConfigMap can be called so.
const UNNAMED: &str = "";

/// Where the static binary lies for containers of other images.
pub(super) const BINARY_DIRECTORY: &str = "/pagoda-bin";
/// The static binary there.
pub(super) const BINARY: &str = "/pagoda-bin/pagoda-engine";

/// The template of a revision that has no name yet, so that equal pods have equal templates.
pub(super) fn template(service: &Service, setup: &Setup, config_hash: Option<&str>) -> Value {
    let mut template = json!({
        "metadata": {"labels": labels(service)},
        "spec": spec(service, setup)
    });
    if let Some(hash) = config_hash {
        template["metadata"]["annotations"] = json!({names::ANNOTATION_CONFIG_HASH: hash});
    }
    overlay::lay(&mut template, &service.overlay);
    hardware::lay(&mut template["spec"], service);
    template
}

/// Names the revision in its template.
pub(super) fn name_revision(template: &mut Value, revision: &str, revision_name: &str) {
    template["metadata"]["labels"][names::LABEL_REVISION] = revision.into();
    let volumes = template["spec"]["volumes"].as_array_mut();
    for volume in volumes.into_iter().flatten() {
        let name = volume.pointer_mut("/configMap/name");
        if let Some(name) = name.filter(|name| **name == UNNAMED) {
            *name = revision_name.into();
        }
    }
}

fn spec(service: &Service, setup: &Setup) -> Value {
    let margin = if service.foreign.is_some() {
        FOREIGN_MARGIN_SECONDS
    } else {
        TERMINATION_MARGIN_SECONDS
    };
    let mut spec = json!({
        "serviceAccountName": service.name,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": service.drain_seconds + margin,
        "securityContext": security_context(service),
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": super::selector(service)}
        }],
        "containers": [engine::container(service, setup)]
    });
    let volumes = volumes(service, setup);
    if !volumes.is_empty() {
        spec["volumes"] = volumes.into();
    }
    let init = init_containers(service, setup);
    if !init.is_empty() {
        spec["initContainers"] = init.into();
    }
    if let Some(class) = &service.runtime_class_name {
        spec["runtimeClassName"] = class.as_str().into();
    }
    spec
}

/// Images of other servers run as whatever user they were made for; containers of ours beside them as ours.
fn security_context(service: &Service) -> Value {
    if service.foreign.is_some() {
        return json!({"seccompProfile": {"type": "RuntimeDefault"}});
    }
    json!({
        "runAsNonRoot": true,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"}
    })
}

fn init_containers(service: &Service, setup: &Setup) -> Vec<Value> {
    let source = service.source.as_ref();
    let mut containers = Vec::new();
    if service.foreign.is_some() || source.is_some_and(model::needs_binary) {
        let args = ["install", BINARY];
        let mut install = container(service, names::CONTAINER_BINARY, &setup.images, &args);
        install["volumeMounts"] = json!([binary_mount(false)]);
        containers.push(install);
    }
    if let Some(source) = source {
        containers.extend(model::container(service, source, setup));
        containers.extend(model::lock(service, source, setup));
    }
    containers
}

fn volumes(service: &Service, setup: &Setup) -> Vec<Value> {
    let source = service.source.as_ref();
    let mut volumes = Vec::new();
    if service.foreign.is_none() {
        volumes.push(json!({"name": "config", "configMap": {"name": UNNAMED}}));
    }
    if let Some(source) = source {
        volumes.extend(model::volumes(source, setup));
    }
    if service.foreign.is_some() || source.is_some_and(model::needs_binary) {
        volumes.push(json!({"name": "engine-binary", "emptyDir": {}}));
    }
    if service.foreign.is_some() && service.gpu.is_some() {
        volumes.push(json!({"name": "shm", "emptyDir": {"medium": "Memory"}}));
    }
    volumes
}

/// Where the static binary lies.
pub(super) fn binary_mount(read_only: bool) -> Value {
    let mut mount = json!({"name": "engine-binary", "mountPath": BINARY_DIRECTORY});
    if read_only {
        mount["readOnly"] = true.into();
    }
    mount
}

/// A container of the engine's image, locked down. The image's entry point is the engine's binary.
pub(super) fn container(service: &Service, name: &str, images: &Images, args: &[&str]) -> Value {
    let mut container = json!({
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
    });
    if service.foreign.is_some() {
        let context = &mut container["securityContext"];
        context["runAsNonRoot"] = true.into();
        context["runAsUser"] = USER.into();
        context["runAsGroup"] = USER.into();
    }
    container
}
