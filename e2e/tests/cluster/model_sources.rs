//! Models from where they are, and what the status says when they are not.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::bed::{Bed, on_cluster};
use crate::file_server::Served;
use crate::manifests::{on_cpu, simulated, with};
use crate::model_server::{
    FILE_NAME, authority_volume, model_bytes, model_file, over_https, serve, sha256,
};

#[test]
fn a_model_comes_over_https_resumed_after_a_cut_and_checked_against_its_hash() {
    on_cluster("https", |bed| async move {
        let bytes = model_bytes()?;
        let cut_at = bytes.len() / 2;
        let served = Served::whole(bytes.clone()).cut_first_after(cut_at);
        let server = serve(&bed, [("model.gguf", served)]).await?;
        let manifest = over_https(&server, "fetched", "model.gguf", Some(&sha256(&bytes)));
        bed.apply(&manifest).await?;
        bed.ready("fetched").await?;
        bed.answers("fetched").await?;

        let ranges = server.ranges("model.gguf");
        let resumed = ranges
            .iter()
            .flatten()
            .any(|range| !range.starts_with("bytes=0-"));
        ensure!(
            resumed,
            "the download was begun again rather than resumed: {ranges:?}"
        );
        Ok(())
    });
}

#[test]
fn wrong_hash_full_disk_and_missing_object_are_three_messages_in_the_status() {
    on_cluster("fetch-fails", |bed| async move {
        let large = vec![7_u8; 8 << 20];
        let files = [
            ("small.gguf", Served::whole(&b"GGUF"[..])),
            ("large.gguf", Served::whole(large)),
        ];
        let server = serve(&bed, files).await?;
        let tiny_disk = json!([{"name": "model", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, authority_volume()]);

        let elsewhere = sha256(b"another file");
        let wrong = over_https(&server, "wrong-hash", "small.gguf", Some(&elsewhere));
        let full = with(
            over_https(&server, "full-disk", "large.gguf", None),
            &["spec", "podTemplate", "spec", "volumes"],
            tiny_disk,
        );
        let missing = over_https(&server, "missing", "nowhere.gguf", None);
        bed.apply(&simulated("neighbour")).await?;
        for manifest in [&wrong, &full, &missing] {
            bed.apply(manifest).await?;
        }
        let wrong = bed
            .fails_with("wrong-hash", "ModelLoaded", "HashMismatch")
            .await?;
        ensure!(
            wrong.contains(&elsewhere) && wrong.contains(&sha256(b"GGUF")),
            "a wrong hash names both hashes: {wrong}"
        );
        let full = bed
            .fails_with("full-disk", "ModelLoaded", "DiskFull")
            .await?;
        ensure!(
            full.contains("disk full"),
            "a full disk is called one: {full}"
        );
        let missing = bed
            .fails_with("missing", "ModelLoaded", "ModelNotFound")
            .await?;
        ensure!(
            missing.contains("nowhere.gguf"),
            "a missing object is named: {missing}"
        );
        for service in ["wrong-hash", "full-disk", "missing"] {
            not_ready(&bed, service).await?;
        }
        bed.answers("neighbour").await.map(drop)
    });
}

#[test]
fn damaged_and_foreign_model_files_are_explained_in_the_status() {
    on_cluster("bad-files", |bed| async move {
        let bytes = model_bytes()?;
        let files = [
            (
                "truncated.gguf",
                Served::whole(bytes.slice(..bytes.len() / 2)),
            ),
            (
                "foreign.gguf",
                Served::whole(of_another_architecture(&bytes)?),
            ),
            (
                "letter.gguf",
                Served::whole(&b"Dear reader, this is no model."[..]),
            ),
        ];
        let server = serve(&bed, files).await?;
        bed.apply(&simulated("neighbour")).await?;
        for (service, file) in [
            ("truncated", "truncated.gguf"),
            ("foreign", "foreign.gguf"),
            ("letter", "letter.gguf"),
        ] {
            bed.apply(&over_https(&server, service, file, None)).await?;
        }
        let truncated = bed
            .fails_with("truncated", "ModelLoaded", "InvalidModel")
            .await?;
        let foreign = bed
            .fails_with("foreign", "ModelLoaded", "UnsupportedModel")
            .await?;
        ensure!(
            foreign.contains("zamba") && foreign.contains("llama"),
            "it names what it is and what would do: {foreign}"
        );
        let letter = bed
            .fails_with("letter", "ModelLoaded", "InvalidModel")
            .await?;
        ensure!(
            letter.contains("GGUF") && letter != truncated,
            "two faults, two messages: {letter} and {truncated}"
        );
        for service in ["truncated", "foreign", "letter"] {
            not_ready(&bed, service).await?;
        }
        bed.answers("neighbour").await.map(drop)
    });
}

#[test]
fn a_model_on_a_claim_and_one_on_the_node_are_mounted_where_they_lie() {
    on_cluster("mounted", |bed| async move {
        let path = model_file();
        let folder = path.parent().context("the model lies in a folder")?;
        let volume = claim_on(&bed, "models", &folder.to_string_lossy()).await?;
        bed.apply(&on_cpu("claimed", &format!("pvc://models/{FILE_NAME}")))
            .await?;
        bed.apply(&on_cpu("on-node", &format!("file://{}", path.display())))
            .await?;
        let outcome = async {
            for service in ["claimed", "on-node"] {
                bed.ready(service).await?;
                bed.answers(service).await?;
            }
            Ok(())
        }
        .await;
        let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
        volumes.delete(&volume, &DeleteParams::default()).await?;
        outcome
    });
}

/// A claim of this namespace bound to a folder of the node; the volume's name, which is the cluster's.
async fn claim_on(bed: &Bed, claim: &str, folder: &str) -> Result<String> {
    let name = format!("{}-{claim}", bed.namespace);
    let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadOnlyMany"], "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "", "hostPath": {"path": folder}, "claimRef": {"namespace": bed.namespace, "name": claim},
        },
    });
    volumes
        .patch(
            &name,
            &PatchParams::apply("e2e").force(),
            &Patch::Apply(&volume),
        )
        .await?;
    let wanted = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim},
        "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
    });
    bed.apply_object::<PersistentVolumeClaim>(&wanted).await?;
    Ok(name)
}

/// The real file with another architecture's name of the same length in it.
fn of_another_architecture(bytes: &Bytes) -> Result<Vec<u8>> {
    let key = b"general.architecture";
    let at = bytes
        .windows(key.len())
        .position(|window| window == key)
        .context("the file names its architecture")?;
    // After the key: the value's type (4 bytes) and its length (8 bytes).
    let value = at + key.len() + 12;
    ensure!(
        &bytes[value..value + 5] == b"llama",
        "the value stands elsewhere"
    );
    let mut changed = bytes.to_vec();
    changed[value..value + 5].copy_from_slice(b"zamba");
    Ok(changed)
}

async fn not_ready(bed: &Bed, service: &str) -> Result<()> {
    let found = bed.service(service).await?;
    let ready = crate::bed::condition(&found, "Ready").context("it has no condition Ready")?;
    ensure!(
        ready["status"] == "False"
            && ready["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty()),
        "Ready is {ready}"
    );
    Ok(())
}
