//! A chart as helm renders it, without a cluster.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::cache::Cache;
use crate::charts::SYSTEM_NAMESPACE;
use crate::process::run_for_output;

/// The Kubernetes version that charts are rendered for where there is no cluster to ask.
const KUBE_VERSION: &str = "1.34.2";

/// A chart's folder, and the helm of the cache.
#[derive(Debug, Clone)]
pub struct Chart {
    helm: PathBuf,
    folder: PathBuf,
}

impl Chart {
    /// The chart in `folder`. Fails, saying what to run, when helm has not been built.
    pub fn at(folder: &Path) -> Result<Self> {
        let helm = Cache::from_env()?.bin().join("helm");
        ensure!(
            helm.exists(),
            "helm is missing: run `pagoda-e2e cluster programs`"
        );
        ensure!(
            folder.join("Chart.yaml").exists(),
            "there is no chart in {}",
            folder.display()
        );
        Ok(Self {
            helm,
            folder: folder.to_owned(),
        })
    }

    /// What `helm template` prints with `values` on top of the chart's own; an error is what helm said.
    pub fn text(&self, values: &Value) -> Result<String> {
        let file = std::env::temp_dir().join(format!(
            "pagoda-values-{}-{:?}.json",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&file, values.to_string())?;
        let mut command = Command::new(&self.helm);
        command
            .args(["template", "pagoda"])
            .arg(&self.folder)
            .args(["--namespace", SYSTEM_NAMESPACE])
            .args(["--kube-version", KUBE_VERSION, "--values"])
            .arg(&file)
            .stdin(Stdio::null());
        let output = run_for_output(&mut command);
        std::fs::remove_file(&file).ok();
        let output = output?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", said.trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The objects that the chart becomes with `values`.
    pub fn objects(&self, values: &Value) -> Result<Vec<Value>> {
        let text = self.text(values)?;
        let documents = serde_yaml_ng::Deserializer::from_str(&text);
        let parse = |document| Value::deserialize(document).context("helm rendered no YAML");
        let objects = documents.map(parse).collect::<Result<Vec<Value>>>()?;
        Ok(objects
            .into_iter()
            .filter(|object| !object.is_null())
            .collect())
    }

    /// The chart's own values.
    pub fn default_values(&self) -> Result<Value> {
        let text = std::fs::read_to_string(self.folder.join("values.yaml"))?;
        Ok(serde_yaml_ng::from_str(&text)?)
    }

    /// The chart's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// `KIND NAMESPACE/NAME`, or `KIND NAME` for what has no namespace.
pub fn identity(object: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, meta) = (word(&object["kind"]), &object["metadata"]);
    let name = word(&meta["name"]);
    match meta["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}
