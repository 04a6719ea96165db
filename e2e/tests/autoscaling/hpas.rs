//! A HorizontalPodAutoscaler of the user's own, on the figures that the operator serves through the API server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use pagoda_e2e::charts::SYSTEM_NAMESPACE;
use pagoda_e2e::sources::Fault;
use serde_json::{Value, json};

use crate::stage::{EACH, Stage, elastic, with};

/// Two looks of an HPA, and more.
const TWO_LOOKS: Duration = Duration::from_secs(40);
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";
const CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta2";
const IN_FLIGHT: &str = "pagoda_in_flight_requests";
const SERVICE: &str = "theirs";

/// One test, for a cluster has one server of these APIs.
pub async fn an_hpa_follows_pagodas_figure_holds_while_nobody_knows_it_and_outlives_a_handover(
    stage: Arc<Stage>,
) -> Result<()> {
    serve_at(&stage, "198.18.0.31").await?;
    let manifest = elastic(SERVICE, 1, 10);
    let theirs = with(
        manifest,
        &["spec", "scaling", "managedBy"],
        json!("External"),
    );
    stage.load(SERVICE).set_in_flight(4 * EACH);
    stage.apply(&theirs).await?;
    stage.create::<HorizontalPodAutoscaler>(hpa()).await?;
    stage.has(SERVICE, 4).await?;
    let said = stage.says(SERVICE, &["ManagedExternally"]).await?;
    ensure!(said["status"] == "False", "it says {said}");
    every_kind_of_metric_is_told(&stage).await?;
    only_who_may_is_told(&stage, "198.18.0.31").await?;

    let since = Instant::now();
    stage.set_gateway_fault(Fault::Silent);
    stage.load(SERVICE).set_in_flight(0);
    stage
        .eventually("nobody knows the figure", async || {
            let items = items(&stage).await?;
            ensure!(items.is_empty(), "it is {items:?}");
            Ok(())
        })
        .await?;
    tokio::time::sleep(TWO_LOOKS).await;
    stage.stayed_within(SERVICE, since, 4, 4)?;

    stage.set_gateway_fault(Fault::None);
    stage.has(SERVICE, 1).await?;
    serve_at(&stage, "198.18.0.32").await?;
    stage.load(SERVICE).set_in_flight(3 * EACH);
    stage.has(SERVICE, 3).await
}

/// Starts the operator anew, so that it answers the API server there, and waits until it is found.
async fn serve_at(stage: &Stage, address: &str) -> Result<()> {
    let flags = [
        format!("--metrics-listen={address}:6443"),
        format!("--pod-ip={address}"),
    ];
    stage
        .start_with(|command| {
            let earlier = |flag: &String| {
                flag.starts_with("--metrics-listen") || flag.starts_with("--pod-ip")
            };
            command.arguments.retain(|flag| !earlier(flag));
            command.arguments.extend(flags);
        })
        .await?;
    stage
        .eventually("the API server finds the operator", async || {
            let slices: Api<EndpointSlice> =
                Api::namespaced(stage.built().client.clone(), SYSTEM_NAMESPACE);
            let slice = slices.get("pagoda-metrics-ipv4").await?;
            let behind = slice
                .endpoints
                .first()
                .and_then(|endpoint| endpoint.addresses.first());
            ensure!(
                behind.is_some_and(|behind| behind == address),
                "{behind:?} stands behind the Service"
            );
            for path in [EXTERNAL, CUSTOM] {
                let list = raw(stage, path).await?;
                ensure!(list["kind"] == "APIResourceList", "{path} is {list}");
            }
            Ok(())
        })
        .await
}

async fn every_kind_of_metric_is_told(stage: &Stage) -> Result<()> {
    let namespace = &stage.namespace;
    let of_object = format!(
        "{CUSTOM}/namespaces/{namespace}/inferenceservices.serving.pagoda.dev/{SERVICE}/{IN_FLIGHT}"
    );
    let of_pods = format!(
        "{CUSTOM}/namespaces/{namespace}/pods/*/{IN_FLIGHT}?labelSelector=serving.pagoda.dev%2Fservice%3D{SERVICE}"
    );
    stage
        .eventually("each kind of metric has its value", async || {
            let whole = (4 * EACH).to_string();
            let items = items(stage).await?;
            ensure!(
                items.len() == 1 && items[0]["value"] == whole.as_str(),
                "external: {items:?}"
            );
            let object = raw(stage, &of_object).await?;
            ensure!(
                object["items"][0]["value"] == whole.as_str(),
                "of the object: {object}"
            );
            let pods = raw(stage, &of_pods).await?;
            let values: Vec<&Value> = pods["items"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|item| &item["value"])
                .collect();
            let each = EACH.to_string();
            ensure!(
                values.len() == 4 && values.iter().all(|value| **value == each.as_str()),
                "of the pods: {pods}"
            );
            Ok(())
        })
        .await
}

async fn only_who_may_is_told(stage: &Stage, address: &str) -> Result<()> {
    let path = format!("{EXTERNAL}/namespaces/{}/{IN_FLIGHT}", stage.namespace);
    let stranger = format!("--as=system:serviceaccount:{}:default", stage.namespace);
    let kubectl = stage.built().plane.kubectl();
    let refused = kubectl.run(&["get", "--raw", &path, &stranger]);
    let said = format!("{:#}", refused.err().context("a stranger was told")?);
    ensure!(said.contains("Forbidden"), "a stranger was told {said}");
    // Whose certificate it is does not matter to somebody who wants to be refused.
    let past_the_api_server = reqwest::Client::builder()
        .no_proxy()
        .tls_danger_accept_invalid_certs(true)
        .build()?;
    let request = past_the_api_server
        .get(format!("https://{address}:6443{path}"))
        .header("X-Remote-User", "system:admin")
        .header("X-Remote-Group", "system:masters");
    let answer = request.send().await?;
    ensure!(
        answer.status() == 401,
        "past the API server: {}",
        answer.status()
    );
    let said: Value = serde_json::from_slice(&answer.bytes().await?)?;
    ensure!(
        said["kind"] == "Status" && said["reason"] == "Unauthorized",
        "it says {said}"
    );
    Ok(())
}

async fn items(stage: &Stage) -> Result<Vec<Value>> {
    let namespace = &stage.namespace;
    let path =
        format!("{EXTERNAL}/namespaces/{namespace}/{IN_FLIGHT}?labelSelector=service%3D{SERVICE}");
    let list = raw(stage, &path).await?;
    list["items"]
        .as_array()
        .cloned()
        .context("a list without items")
}

async fn raw(stage: &Stage, path: &str) -> Result<Value> {
    let request = http::Request::get(path).body(Vec::new())?;
    let client = &stage.built().client;
    client
        .request(request)
        .await
        .with_context(|| format!("cannot read {path}"))
}

fn hpa() -> Value {
    json!({
        "metadata": {"name": SERVICE},
        "spec": {
            "scaleTargetRef": {"apiVersion": "serving.pagoda.dev/v1alpha1", "kind": "InferenceService", "name": SERVICE},
            "minReplicas": 1,
            "maxReplicas": 10,
            "metrics": [{
                "type": "External",
                "external": {
                    "metric": {"name": IN_FLIGHT, "selector": {"matchLabels": {"service": SERVICE}}},
                    "target": {"type": "AverageValue", "averageValue": EACH.to_string()},
                },
            }],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    })
}
