//! How a model comes into the pod: read where it lies, fetched into a volume of the pod, or fetched into the node's cache.

use pagoda_crds::names;
use serde_json::{Value, json};

use super::{ModelCache, Setup, pod};
use crate::validate::{ModelUri, Service, Source};

/// Variable that the directory of a namespace in the node's cache is named by.
const POD_NAMESPACE: &str = "POD_NAMESPACE";

/// The cache, when this source goes through it.
fn cache<'a>(source: &Source, setup: &'a Setup) -> Option<&'a ModelCache> {
    let cache = setup.model_cache.as_ref()?;
    source.uri.remote().map(|_| cache)
}

/// Where the engine finds its model.
pub(super) fn path(source: &Source, setup: &Setup) -> String {
    let in_place = source.sha256.is_none();
    let directory = names::MODEL_DIRECTORY;
    match (&source.uri, source.cache_key()) {
        (ModelUri::File { file, .. }, _) if in_place => format!("{directory}/{file}"),
        (ModelUri::Pvc { path, .. }, _) if in_place => format!("{directory}/{path}"),
        (_, Some(key)) if cache(source, setup).is_some() => {
            format!("{directory}/{key}/{}", names::MODEL_FILE)
        }
        _ => names::MODEL_PATH.to_owned(),
    }
}

/// Whether the container that brings it runs the static binary in an image without one.
pub(super) fn needs_binary(source: &Source) -> bool {
    matches!(source.uri, ModelUri::Image { .. })
}

pub(super) fn volumes(source: &Source, setup: &Setup) -> Vec<Value> {
    let lies_in = |name: &str| match &source.uri {
        ModelUri::File { directory, .. } => {
            Some(json!({"name": name, "hostPath": {"path": directory}}))
        }
        ModelUri::Pvc { claim, .. } => Some(
            json!({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": true}}),
        ),
        _ => None,
    };
    let in_place = source.sha256.is_none().then(|| lies_in("model")).flatten();
    if let Some(volume) = in_place {
        return vec![volume];
    }
    let model = match cache(source, setup) {
        // The directory must be there with the mode that lets pods write: made here, it would be root's alone.
        Some(cache) => {
            json!({"name": "model", "hostPath": {"path": cache.host_path, "type": "Directory"}})
        }
        None => json!({"name": "model", "emptyDir": {}}),
    };
    let secret = source.secret_name.as_ref();
    let credentials =
        secret.map(|name| json!({"name": "credentials", "secret": {"secretName": name}}));
    [Some(model), lies_in("source"), credentials]
        .into_iter()
        .flatten()
        .collect()
}

/// The mount of the model. A namespace sees its own directory of the node's cache only.
pub(super) fn mount(source: &Source, setup: &Setup, read_only: bool) -> Value {
    let mut mount = json!({"name": "model", "mountPath": names::MODEL_DIRECTORY});
    if read_only {
        mount["readOnly"] = true.into();
    }
    if cache(source, setup).is_some() {
        mount["subPathExpr"] = format!("$({POD_NAMESPACE})").into();
    }
    mount
}

/// What the mount's path is made of.
pub(super) fn add_environment(container: &mut Value, source: &Source, setup: &Setup) {
    if cache(source, setup).is_none() {
        return;
    }
    let namespace = json!({
        "name": POD_NAMESPACE,
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    });
    match container["env"].as_array_mut() {
        Some(environment) => environment.push(namespace),
        None => container["env"] = json!([namespace]),
    }
}

/// What brings the model to its [`path`]; nothing when the engine reads it where it lies. A hash is checked while copying,
/// so a mounted model that has one is copied.
pub(super) fn container(service: &Service, source: &Source, setup: &Setup) -> Option<Value> {
    let model_mount = mount(source, setup, false);
    let source_mount = json!({"name": "source", "mountPath": "/source", "readOnly": true});
    let checked = source.sha256.is_some();
    let fetch = |uri: &str| {
        let args = arguments(uri, source, setup);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        pod::container(service, names::CONTAINER_MODEL, &setup.images, &args)
    };
    let (mut container, mounts) = match &source.uri {
        ModelUri::Remote { uri, .. } => (fetch(uri), vec![model_mount]),
        ModelUri::File { file: path, .. } | ModelUri::Pvc { path, .. } if checked => (
            fetch(&format!("file:///source/{path}")),
            vec![model_mount, source_mount],
        ),
        ModelUri::File { .. } | ModelUri::Pvc { .. } => return None,
        ModelUri::Image { reference, path } => {
            let mut container = fetch(&format!("file://{path}"));
            container["image"] = reference.as_str().into();
            container["command"] = json!([pod::BINARY]);
            (container, vec![model_mount, pod::binary_mount(true)])
        }
    };
    let credentials = source.secret_name.as_ref().map(
        |_| json!({"name": "credentials", "mountPath": names::CREDENTIALS_PATH, "readOnly": true}),
    );
    let mounts: Vec<Value> = mounts.into_iter().chain(credentials).collect();
    container["volumeMounts"] = mounts.into();
    add_environment(&mut container, source, setup);
    Some(container)
}

fn arguments(uri: &str, source: &Source, setup: &Setup) -> Vec<String> {
    let destination = match cache(source, setup) {
        Some(cache) => vec![
            "--cache".to_owned(),
            names::MODEL_DIRECTORY.to_owned(),
            "--cache-bytes".to_owned(),
            cache.bytes_per_namespace.to_string(),
        ],
        None => vec!["--to".to_owned(), names::MODEL_PATH.to_owned()],
    };
    let credentials = source.secret_name.as_ref().map(|_| names::CREDENTIALS_PATH);
    let progress = format!("0.0.0.0:{}", names::ENGINE_PORT);
    let flags = [
        ("--sha256", source.sha256.as_deref()),
        ("--endpoint", source.endpoint.as_deref()),
        ("--region", source.region.as_deref()),
        ("--credentials", credentials),
        ("--progress-listen", Some(progress.as_str())),
    ];
    let flags = flags
        .into_iter()
        .filter_map(|(flag, value)| Some([flag.to_owned(), value?.to_owned()]));
    let words = ["fetch".to_owned(), uri.to_owned()].into_iter();
    words.chain(destination).chain(flags.flatten()).collect()
}

/// Holds a cached file as long as the pod lives, so that making room for other models passes it over. An engine holds it as
/// well, but not between a crash and its next start, and nothing would bring the file again. A sidecar: it ends after the server.
pub(super) fn lock(service: &Service, source: &Source, setup: &Setup) -> Option<Value> {
    cache(source, setup).map(|_| {
        let path = path(source, setup);
        let args = ["hold", &path];
        let name = names::CONTAINER_MODEL_LOCK;
        let mut lock = pod::container(service, name, &setup.images, &args);
        lock["restartPolicy"] = "Always".into();
        lock["resources"] = json!({"requests": {"cpu": "5m", "memory": "16Mi"}});
        lock["volumeMounts"] = json!([mount(source, setup, true)]);
        add_environment(&mut lock, source, setup);
        lock
    })
}
