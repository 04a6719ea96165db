//! The InferenceServices that measuring and chaos create.

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Label of the InferenceService's name on all its children.
pub const SERVICE_LABEL: &str = "serving.pagoda.dev/service";
/// Services that share a namespace.
const PER_NAMESPACE: usize = 500;

/// Namespace and name.
pub type Key = (String, String);

pub fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("serving.pagoda.dev", "v1alpha1", "InferenceService");
    ApiResource::from_gvk_with_plural(&kind, "inferenceservices")
}

/// Kinds that every service has at least one of.
pub fn child_resources() -> [ApiResource; 5] {
    [
        ("", "v1", "ConfigMap", "configmaps"),
        ("", "v1", "ServiceAccount", "serviceaccounts"),
        ("", "v1", "Service", "services"),
        (
            "policy",
            "v1",
            "PodDisruptionBudget",
            "poddisruptionbudgets",
        ),
        ("apps", "v1", "Deployment", "deployments"),
    ]
    .map(|(group, version, kind, plural)| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    })
}

/// How many pods a service has, and who decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// One pod, always.
    Fixed,
    /// Autoscaled, and at zero.
    AtZero,
}

/// Name of the `index`-th service. Half of them, evenly spread, are at zero.
pub fn name_of(prefix: &str, index: usize) -> (Key, Size) {
    let size = if index.is_multiple_of(2) {
        Size::Fixed
    } else {
        Size::AtZero
    };
    let namespace = format!("{prefix}-{:02}", index / PER_NAMESPACE);
    ((namespace, format!("service-{index:05}")), size)
}

/// A service with the simulated executor: no model has to be there, and all its children are.
pub fn manifest(key: &Key, size: Size) -> Value {
    let mut spec = json!({
        "engine": {"executor": "simulated"},
        "hardware": {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}},
        "scaling": {"minReplicas": 1, "maxReplicas": 1},
    });
    if size == Size::AtZero {
        spec["replicas"] = json!(0);
        spec["scaling"] = json!({"minReplicas": 0, "maxReplicas": 3});
    }
    json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"namespace": key.0, "name": key.1},
        "spec": spec,
    })
}

/// Creates the namespaces of `count` services. Their default ServiceAccounts and ConfigMaps are there when it returns, so
/// that they are no part of what is measured.
pub async fn create_namespaces(client: &Client, prefix: &str, count: usize) -> Result<()> {
    let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    for index in 0..count.div_ceil(PER_NAMESPACE) {
        let name = format!("{prefix}-{index:02}");
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        api.create(&PostParams::default(), &namespace).await?;
        wait_for_default_account(client, &name).await?;
    }
    Ok(())
}

async fn wait_for_default_account(client: &Client, namespace: &str) -> Result<()> {
    let api: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(client.clone(), namespace);
    for _ in 0..300 {
        if api.get_opt("default").await?.is_some() {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    bail!("namespace {namespace} got no default service account in 30 s")
}

/// Creates services, `concurrency` at a time.
pub async fn create_all(
    client: &Client,
    prefix: &str,
    range: std::ops::Range<usize>,
    concurrency: usize,
) -> Result<()> {
    stream::iter(range)
        .map(Ok)
        .try_for_each_concurrent(concurrency, |index| async move {
            let (key, size) = name_of(prefix, index);
            create(client, &manifest(&key, size)).await.map(|_| ())
        })
        .await
}

/// Creates one object of our kind.
pub async fn create(client: &Client, manifest: &Value) -> Result<DynamicObject> {
    let namespace = manifest["metadata"]["namespace"]
        .as_str()
        .context("a manifest without a namespace")?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource());
    let object = serde_json::from_value(manifest.clone())?;
    Ok(api.create(&PostParams::default(), &object).await?)
}
