//! What must hold before anything starts, said clearly when it does not.

use anyhow::{Context as _, anyhow};
use kube::{
    Api, Client, Config,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind},
};
use pagoda_crds::names;
use std::time::Duration;

/// A client with the pod's own account, or with the user's kubeconfig outside of a cluster.
pub async fn client() -> anyhow::Result<Client> {
    let mut config = Config::infer()
        .await
        .context("found neither a service account nor a kubeconfig")?;
    // Nothing here waits in a connection: what is to be tried again goes back to the queue, and lets others pass.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Client::try_from(config).context("failed to set up the connection to the API server")
}

/// Fails unless InferenceServices can be listed: a controller that starts without them looks healthy and does nothing.
pub async fn check_definition(client: &Client, namespace: Option<&str>) -> anyhow::Result<()> {
    let kind = GroupVersionKind::gvk(names::GROUP, names::VERSION, names::KIND);
    let resource = ApiResource::from_gvk_with_plural(&kind, names::PLURAL);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    match api.list(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(anyhow!(
            "the definition {}.{} is not installed: run helm install pagoda-crds first",
            names::PLURAL,
            names::GROUP
        )),
        Err(kube::Error::Api(status)) if status.code == 403 => Err(anyhow!(
            "not allowed to list {}: {}",
            names::PLURAL,
            status.message
        )),
        Err(error) => Err(error).context("failed to list InferenceServices"),
    }
}
