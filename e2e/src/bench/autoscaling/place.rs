//! The local cluster with the charts in it, as `step` and `zero` need it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::{Api, Client};
use pagoda_e2e::charts::{self, Target};
use pagoda_e2e::cluster::Cluster;
use pagoda_e2e::images;
use pagoda_e2e::openai::{Chat, OpenAi};
use serde_json::{Value, json};

use super::Run;
use crate::bed::services::{self, Key, resource};

const PATIENCE: Duration = Duration::from_mins(3);

/// The local cluster.
pub(super) struct Place {
    pub(super) client: Client,
    pub(super) gateway: OpenAi,
}

impl Place {
    /// Brings the cluster up if it is not, and this clone's release build into it, unless what is installed is to be measured.
    pub(super) async fn up(run: &Run<'_>) -> Result<Self> {
        let cluster = Cluster::local()?;
        // These wait for programs; nothing else goes on meanwhile.
        tokio::task::block_in_place(|| -> Result<()> {
            if run.arguments.as_installed {
                return Ok(());
            }
            cluster.up(run.progress)?;
            let images = images::load_product(&cluster, run.workspace, run.progress)?;
            charts::install(
                &Target::local(&cluster),
                &run.workspace.join("charts"),
                &images,
                &[],
                run.progress,
            )
        })?;
        Ok(Self {
            client: cluster.client().await?,
            gateway: OpenAi::new(&cluster.gateway_url()?)?,
        })
    }

    /// Makes a namespace and the service in it, and waits until it is Ready.
    pub(super) async fn create(&self, namespace: &str, spec: &Value) -> Result<Key> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let metadata = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        api.create(&PostParams::default(), &metadata)
            .await
            .with_context(|| {
                format!("is namespace {namespace} left of an earlier run? Delete it, then run this again")
            })?;
        let key: Key = (namespace.to_owned(), "measured".to_owned());
        let manifest = json!({
            "apiVersion": "serving.pagoda.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"namespace": key.0, "name": key.1},
            "spec": spec,
        });
        services::create(&self.client, &manifest).await?;
        self.wait(&key, "Ready", |service| {
            let conditions = service["status"]["conditions"].as_array();
            conditions.is_some_and(|conditions| {
                conditions
                    .iter()
                    .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
            })
        })
        .await?;
        Ok(key)
    }

    /// Waits until the service is as `is_so` wants it.
    pub(super) async fn wait(
        &self,
        key: &Key,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.0, &resource());
        let began = Instant::now();
        loop {
            let service = serde_json::to_value(api.get(&key.1).await?)?;
            if is_so(&service) {
                return Ok(());
            }
            ensure!(
                began.elapsed() < PATIENCE,
                "{}/{} is not {what} after {} s: {}",
                key.0,
                key.1,
                PATIENCE.as_secs(),
                service["status"]
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Takes the namespace away with all that is in it.
    pub(super) async fn delete(&self, key: &Key) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        api.delete(&key.0, &DeleteParams::default()).await?;
        Ok(())
    }
}

/// A chat with the service that takes exactly so many tokens.
pub(super) fn chat(key: &Key, max_tokens: u32) -> Chat {
    Chat {
        model: format!("{}/{}", key.0, key.1),
        prompt: "Count to ten.".to_owned(),
        max_tokens,
        ignore_eos: true,
    }
}
