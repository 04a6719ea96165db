//! The operator that the charts installed: put to rest while others take its place, and brought back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::json;

use crate::charts::SYSTEM_NAMESPACE;

const OPERATOR: &str = "pagoda-operator";
const OF_CHART: &str = "app.kubernetes.io/part-of=pagoda";
const POLL: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_mins(2);

/// What was there before it rested.
#[derive(Debug)]
pub struct Rested {
    replicas: i32,
    api_services: Vec<DynamicObject>,
}

/// Scales the installed operator to zero, waits until its last pod is gone, and sets the API groups that it serves aside: while
/// nobody answers for a group, the cluster deletes no namespace.
pub async fn rest_installed(client: &Client) -> Result<Rested> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let found = deployments
        .get(OPERATOR)
        .await
        .context("the operator is not installed: run `pagoda-e2e install-charts` first")?;
    let replicas = found.spec.and_then(|spec| spec.replicas).unwrap_or(1);
    let api = api_services(client);
    let served = api.list(&ListParams::default().labels(OF_CHART)).await?;
    for service in &served.items {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        api.delete(name, &DeleteParams::default()).await?;
    }
    scale_installed(client, 0).await?;
    Ok(Rested {
        replicas,
        api_services: served.items,
    })
}

/// Brings the installed operator back and waits until it is ready.
pub async fn wake_installed(client: &Client, rested: Rested) -> Result<()> {
    let api = api_services(client);
    for mut service in rested.api_services {
        service.metadata.resource_version = None;
        service.metadata.uid = None;
        service.metadata.managed_fields = None;
        api.create(&PostParams::default(), &service).await?;
    }
    // An earlier run that was killed may have left none.
    scale_installed(client, rested.replicas.max(1)).await
}

fn api_services(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService");
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

async fn scale_installed(client: &Client, replicas: i32) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let patch = json!({"spec": {"replicas": replicas}});
    deployments
        .patch_scale(OPERATOR, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = deployments.get(OPERATOR).await?;
        let generation = found.metadata.generation;
        let status = found.status.unwrap_or_default();
        // `terminatingReplicas` is not told by every version, so pods on their way out are counted by looking.
        let current = status.observed_generation >= generation
            && status.replicas.unwrap_or(0) == replicas
            && status.ready_replicas.unwrap_or(0) == replicas;
        if current && (replicas > 0 || count_pods(client).await? == 0) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the installed operator has {} pods, {} of them ready, instead of {replicas}",
            status.replicas.unwrap_or(0),
            status.ready_replicas.unwrap_or(0)
        );
        tokio::time::sleep(POLL).await;
    }
}

async fn count_pods(client: &Client) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={OPERATOR}"));
    Ok(pods.list(&ours).await?.items.len())
}
