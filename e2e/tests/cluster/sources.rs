//! Models from registries and object stores, with credentials that only the download sees.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use serde_json::{Value, json};

use crate::bed::{Bed, on_cluster};
use crate::file_server::{FileServer, Served};
use crate::manifests::{on_cpu, with};
use crate::model_server::{model_bytes, serve, sha256, trusting};

const TOKEN: &str = "hf_e2eTokenThatNobodyElseHas";
const ACCESS_KEY: &str = "E2EACCESSKEY";
const SECRET_KEY: &str = "e2e-secret-key-that-nobody-else-has";

#[test]
fn a_model_comes_from_a_hugging_face_mirror_with_a_token() {
    on_cluster("hugging-face", |bed| async move {
        let name = "owner/repository/resolve/v1.0/model.gguf";
        let server = serve(&bed, [(name, Served::whole(model_bytes()?))]).await?;
        secret(&bed, json!({"token": TOKEN})).await?;
        let uri = "hf://owner/repository/model.gguf@v1.0";
        bed.apply(&from(&server, "mirrored", uri)?).await?;
        bed.ready("mirrored").await?;
        bed.answers("mirrored").await?;
        let (asked, whole) = (server.sent_bytes(name), model_bytes()?.len());
        ensure!(
            (whole..whole * 3 / 2).contains(&asked),
            "{asked} bytes were sent, of a file of {whole}"
        );
        let bearer = format!("Bearer {TOKEN}");
        let asked = server.authorizations(name);
        ensure!(
            !asked.is_empty()
                && asked
                    .iter()
                    .all(|header| header.as_deref() == Some(&*bearer)),
            "{} requests, some without the token",
            asked.len()
        );
        only_the_download_has_credentials(&bed, "mirrored", &[TOKEN]).await
    });
}

#[test]
fn a_model_comes_from_a_store_that_speaks_s3_with_signed_requests() {
    on_cluster("s3", |bed| async move {
        let name = "models/small/model.gguf";
        let server = serve(&bed, [(name, Served::whole(model_bytes()?))]).await?;
        let keys = json!({"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY});
        secret(&bed, keys).await?;
        let mut manifest = from(&server, "stored", "s3://models/small/model.gguf")?;
        manifest["spec"]["model"]["source"]["region"] = json!("eu-central-1");
        bed.apply(&manifest).await?;
        bed.ready("stored").await?;
        bed.answers("stored").await?;
        let asked = server.authorizations(name);
        let signed = |header: &Option<String>| {
            header.as_deref().is_some_and(|header| {
                header.starts_with("AWS4-HMAC-SHA256")
                    && header.contains(ACCESS_KEY)
                    && header.contains("eu-central-1")
                    && !header.contains(SECRET_KEY)
            })
        };
        ensure!(
            !asked.is_empty() && asked.iter().all(signed),
            "{} requests, some not signed: {asked:?}",
            asked.len()
        );
        only_the_download_has_credentials(&bed, "stored", &[ACCESS_KEY, SECRET_KEY]).await
    });
}

async fn secret(bed: &Bed, keys: Value) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "stringData": keys,
    });
    bed.apply_object::<Secret>(&secret).await
}

/// A service whose model comes from `uri`, asked for at `server` with the credentials of the Secret.
fn from(server: &FileServer, service: &str, uri: &str) -> Result<Value> {
    let source = json!({
        "uri": uri, "sha256": sha256(&model_bytes()?), "endpoint": server.url, "credentials": {"secretName": "store"},
    });
    let manifest = with(on_cpu(service, uri), &["spec", "model", "source"], source);
    Ok(trusting(manifest))
}

/// The Secret is mounted where the model is downloaded and nowhere else, and no text of the pod holds what is in it.
async fn only_the_download_has_credentials(
    bed: &Bed,
    service: &str,
    secrets: &[&str],
) -> Result<()> {
    let pod: Pod = bed.pods(service).await?.pop().context("there is no pod")?;
    let spec = serde_json::to_value(pod.spec.context("a pod without a spec")?)?;
    let volumes: Vec<&str> = spec["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|volume| volume["secret"]["secretName"] == "store")
        .filter_map(|volume| volume["name"].as_str())
        .collect();
    ensure!(volumes.len() == 1, "volumes of the Secret: {volumes:?}");
    let containers = ["initContainers", "containers"].map(|kind| spec[kind].as_array().cloned());
    for container in containers.into_iter().flatten().flatten() {
        let mounts = container["volumeMounts"].as_array().cloned();
        let has_it = mounts
            .into_iter()
            .flatten()
            .any(|mount| mount["name"] == volumes[0]);
        ensure!(
            has_it == (container["name"] == "model"),
            "container {} has the credentials: {has_it}",
            container["name"]
        );
    }
    let text = spec.to_string();
    ensure!(
        !secrets.iter().any(|secret| text.contains(secret)),
        "the pod holds a secret"
    );
    Ok(())
}
