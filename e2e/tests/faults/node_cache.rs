//! Models kept on nodes: pods of one node share one download.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use pagoda_e2e::cluster::Cluster;
use serde_json::json;

use crate::bed::{PATIENCE, eventually};
use crate::file_server::Served;
use crate::manifests::with;
use crate::model_server::{model_bytes, over_https, serve, sha256};
use crate::stage::on_stage_with;

const FILE: &str = "model.gguf";

pub fn pods_of_a_node_download_a_model_once_and_a_later_one_not_at_all() {
    let folder = cache_folder().expect("a folder of the node");
    let path = folder.display().to_string();
    on_stage_with(
        "node-cache",
        move |command| {
            command.arguments.extend([
                format!("--model-cache-path={path}"),
                "--model-cache-bytes=1073741824".to_owned(),
            ]);
            Ok(())
        },
        |stage| async move {
            let bed = &stage.bed;
            let bytes = model_bytes()?;
            let server = serve(bed, [(FILE, Served::whole(bytes.clone()))]).await?;
            let manifest = over_https(&server, "shared", FILE, Some(&sha256(&bytes)));
            let pods = |count: u32| {
                let scaling = json!({"minReplicas": count, "maxReplicas": count});
                with(manifest.clone(), &["spec", "scaling"], scaling)
            };
            bed.apply(&pods(2)).await?;
            bed.ready_pods("shared", 2).await?;
            let asked = server.sent_bytes(FILE);
            ensure!(
                (bytes.len()..bytes.len() * 3 / 2).contains(&asked),
                "{asked} bytes were sent, of a file of {}",
                bytes.len()
            );
            let requests = server.ranges(FILE).len();
            bed.apply(&pods(3)).await?;
            bed.ready_pods("shared", 3).await?;
            ensure!(
                server.ranges(FILE).len() == requests,
                "the third pod asked the server"
            );
            eventually(
                "its folder is of the namespace alone",
                PATIENCE,
                async || {
                    let folders: Vec<_> = fs::read_dir(&folder)?
                        .flatten()
                        .map(|entry| entry.file_name().to_string_lossy().into_owned())
                        .collect();
                    ensure!(folders == [bed.namespace.clone()], "there are {folders:?}");
                    Ok(())
                },
            )
            .await?;
            fs::remove_dir_all(&folder).context("the folder cannot be removed")
        },
    );
}

/// A folder that every namespace may write to, as the chart's DaemonSet leaves it on each node. The node has this machine's
/// files.
fn cache_folder() -> Result<std::path::PathBuf> {
    let root = Cluster::local()?.paths().cache.root().to_owned();
    let folder = root.join(format!("node-cache-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    Ok(folder)
}
