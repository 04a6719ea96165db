//! The real model's file, and servers that bring it to pods.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use bytes::Bytes;
use k8s_openapi::api::core::v1::ConfigMap;
use pagoda_e2e::cluster::HOST_ADDRESS;
use pagoda_e2e::images::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::bed::Bed;
use crate::file_server::{FileServer, Served};
use crate::manifests::on_cpu;

/// Its name.
pub const FILE_NAME: &str = "smollm2-135m-instruct-q4_1.gguf";

/// The real model's file, as `e2e/fetch-model` left it.
pub fn model_file() -> PathBuf {
    let cache = std::env::var_os("PAGODA_CACHE_DIR").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/pagoda")
    });
    cache.join("models").join(FILE_NAME)
}

/// Its content.
pub fn model_bytes() -> Result<Bytes> {
    static BYTES: OnceLock<Bytes> = OnceLock::new();
    if let Some(bytes) = BYTES.get() {
        return Ok(bytes.clone());
    }
    let path = model_file();
    let bytes = std::fs::read(&path).with_context(|| {
        format!(
            "failed to read {}; e2e/fetch-model brings it",
            path.display()
        )
    })?;
    Ok(BYTES.get_or_init(|| bytes.into()).clone())
}

/// As sha256sum prints it.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Starts the server and puts its authority where `over_https` finds it.
pub async fn serve(
    bed: &Bed,
    files: impl IntoIterator<Item = (&'static str, Served)>,
) -> Result<FileServer> {
    let server = FileServer::start(HOST_ADDRESS.into(), files).await?;
    let authority = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "authority"}, "data": {"ca.crt": server.authority},
    });
    bed.apply_object::<ConfigMap>(&authority).await?;
    Ok(server)
}

/// The volume that [`serve`]'s authority is mounted from.
pub fn authority_volume() -> Value {
    json!({"name": "authority", "configMap": {"name": "authority"}})
}

/// A service whose model comes from `server`, trusting its authority as a user's private one is trusted.
pub fn over_https(server: &FileServer, service: &str, file: &str, sha256: Option<&str>) -> Value {
    let mut manifest = on_cpu(service, &format!("{}/{file}", server.url));
    if let Some(sha256) = sha256 {
        manifest["spec"]["model"]["source"]["sha256"] = json!(sha256);
    }
    trusting(manifest)
}

/// The service whose downloads trust the authority that [`serve`] put there.
pub fn trusting(mut manifest: Value) -> Value {
    let model = json!({
        "name": "model",
        "env": [{"name": "SSL_CERT_FILE", "value": "/authority/ca.crt"}],
        "volumeMounts": [{"name": "authority", "mountPath": "/authority", "readOnly": true}],
    });
    manifest["spec"]["podTemplate"] =
        json!({"spec": {"volumes": [authority_volume()], "initContainers": [model]}});
    manifest
}
