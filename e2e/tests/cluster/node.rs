//! The local cluster's node, which claims GPUs that are not there: a resource of the test's own, so that tests that run at
//! once do not take them from each other.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use pagoda_e2e::cluster::NODE_NAME;
use serde_json::{Value, json};

use crate::manifests::with;

/// The node and what it claims for one test; later claims of the same resource replace it.
pub struct Node {
    nodes: Api<KubeNode>,
    resource: String,
}

impl Node {
    /// Claims `count` of `resource`, written DOMAIN/NAME.
    pub async fn with(client: &Client, resource: &str, count: u32) -> Result<Self> {
        let node = Self {
            nodes: Api::all(client.clone()),
            resource: resource.to_owned(),
        };
        node.claim(count).await?;
        Ok(node)
    }

    /// Claims `count` from now on.
    pub async fn claim(&self, count: u32) -> Result<()> {
        let amounts = json!({self.resource.as_str(): count.to_string()});
        let status = json!({"status": {"capacity": amounts, "allocatable": amounts}});
        self.nodes
            .patch_status(NODE_NAME, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .with_context(|| format!("the node cannot claim {}", self.resource))?;
        Ok(())
    }

    /// The manifest whose pods ask for `count` of the resource each.
    pub fn asking(&self, manifest: Value, count: u32) -> Value {
        let accelerator = json!({"kind": "nvidia", "resource": self.resource, "count": count});
        with(manifest, &["spec", "hardware", "accelerator"], accelerator)
    }
}
