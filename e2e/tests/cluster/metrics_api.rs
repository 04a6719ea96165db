//! Pagoda's figures as other people's autoscalers read them: through the API server's aggregation layer, from the operator
//! that leads.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use pagoda_e2e::charts::SYSTEM_NAMESPACE;
use serde_json::{Value, json};

use crate::bed::{Bed, PATIENCE, condition, eventually, on_cluster};
use crate::load::Load;
use crate::manifests::{simulated, with};

const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";
const CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta2";
const IN_FLIGHT: &str = "pagoda_in_flight_requests";
/// A window of the rule, and the HPA's own period twice.
const AFTER_A_WINDOW: Duration = Duration::from_mins(3);

#[test]
fn an_hpa_of_ones_own_adds_and_removes_pods_by_pagodas_figure_and_pagoda_writes_none() {
    on_cluster("own-hpa", |bed| async move {
        external_service(&bed, "theirs").await?;
        bed.apply_object::<HorizontalPodAutoscaler>(&hpa("theirs", &[external("theirs", "4")]))
            .await?;

        let wave = Load::start(&bed.gateway, &bed.chat("theirs", 50), 12);
        bed.ready_pods("theirs", 3).await?;
        let hpas: Api<HorizontalPodAutoscaler> =
            Api::namespaced(bed.client.clone(), &bed.namespace);
        let asked = hpas.get("theirs").await?.status.unwrap_or_default();
        ensure!(
            asked.desired_replicas == 3 && asked.last_scale_time.is_some(),
            "the HPA says {asked:?}"
        );
        wave.stop().await.unharmed()?;

        eventually(
            "the HPA takes the pods away again",
            AFTER_A_WINDOW,
            async || {
                let pods = bed.pods("theirs").await?.len();
                ensure!(pods == 1, "{pods} pods");
                Ok(())
            },
        )
        .await?;
        let service = bed.service("theirs").await?;
        let told = condition(&service, "Autoscaling").unwrap_or_default();
        ensure!(
            told["status"] == "False" && told["reason"] == "ManagedExternally",
            "the condition is {told}"
        );
        Ok(())
    });
}

#[test]
fn an_hpa_reads_figures_of_a_service_of_its_object_and_of_its_pods() {
    on_cluster("metric-kinds", |bed| async move {
        external_service(&bed, "told").await?;
        let object = json!({
            "type": "Object",
            "object": {
                "metric": {"name": IN_FLIGHT},
                "describedObject": {"apiVersion": "serving.pagoda.dev/v1alpha1", "kind": "InferenceService", "name": "told"},
                "target": {"type": "AverageValue", "averageValue": "50"},
            },
        });
        let pods = json!({
            "type": "Pods",
            "pods": {"metric": {"name": IN_FLIGHT}, "target": {"type": "AverageValue", "averageValue": "50"}},
        });
        let all = [external("told", "50"), object, pods];
        bed.apply_object::<HorizontalPodAutoscaler>(&hpa("told", &all))
            .await?;
        let load = Load::start(&bed.gateway, &bed.chat("told", 50), 3);
        eventually("the HPA has read all three", PATIENCE, async || {
            let hpa = bed.api::<HorizontalPodAutoscaler>().get("told").await?;
            let status = serde_json::to_value(hpa.status.context("the HPA has no status")?)?;
            let current = status["currentMetrics"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let read = |kind: &str, place: &str| {
                current.iter().any(|metric| {
                    let value = metric[place]["current"]["averageValue"].as_str();
                    metric["type"] == kind && value.is_some_and(|value| value != "0")
                })
            };
            ensure!(
                read("External", "external") && read("Object", "object") && read("Pods", "pods"),
                "the HPA's status is {status}"
            );
            Ok(())
        })
        .await?;
        load.stop().await.unharmed()
    });
}

#[test]
fn a_figure_that_nobody_knows_has_no_item_and_one_that_is_zero_has() {
    on_cluster("no-item", |bed| async move {
        external_service(&bed, "quiet").await?;
        eventually("silence is known", PATIENCE, async || {
            let items = items(&bed, "quiet").await?;
            ensure!(
                items.len() == 1 && items[0]["value"] == "0",
                "the items are {items:?}"
            );
            Ok(())
        })
        .await?;
        let nobody = items(&bed, "nobody").await?;
        ensure!(
            nobody.is_empty(),
            "of a service that is not there is told {nobody:?}"
        );
        let unknown = raw(
            &bed,
            &format!("{EXTERNAL}/namespaces/{}/pagoda_nonsense", bed.namespace),
        )
        .await;
        let said = format!("{:#}", unknown.expect_err("there is no such metric"));
        ensure!(
            said.contains("there is no metric pagoda_nonsense"),
            "{said}"
        );
        Ok(())
    });
}

#[test]
fn who_has_no_right_to_a_namespaces_metrics_and_who_goes_past_the_api_server_get_none() {
    on_cluster("no-right", |bed| async move {
        external_service(&bed, "mine").await?;
        bed.apply_object::<ServiceAccount>(
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger"}}),
        )
        .await?;
        let path = format!("{EXTERNAL}/namespaces/{}/{IN_FLIGHT}", bed.namespace);
        let stranger = format!("--as=system:serviceaccount:{}:stranger", bed.namespace);
        let (ok, said) = bed
            .kubectl(&["get", "--raw", &path, &stranger], None)
            .await?;
        ensure!(
            !ok && said.contains("Forbidden"),
            "a stranger was told: {said}"
        );

        let (_, address) = place(&bed).await?;
        // Whose certificate it is does not matter to somebody who wants to be refused.
        let http = reqwest::Client::builder()
            .no_proxy()
            .tls_danger_accept_invalid_certs(true)
            .build()?;
        for user in ["system:admin", ""] {
            let url = format!("https://{address}{path}");
            let answer = http
                .get(url)
                .header("X-Remote-User", user)
                .header("X-Remote-Group", "system:masters");
            let answer = answer.send().await?;
            ensure!(
                answer.status() == 401,
                "without the API server: {}",
                answer.status()
            );
            let status: Value = serde_json::from_slice(&answer.bytes().await?)?;
            ensure!(
                status["kind"] == "Status" && status["reason"] == "Unauthorized",
                "{status}"
            );
        }
        Ok(())
    });
}

#[test]
fn the_api_server_believes_the_certificate_and_finds_the_operator_that_leads() {
    on_cluster("place", |bed| async move {
        for api in [
            "v1beta1.external.metrics.k8s.io",
            "v1beta2.custom.metrics.k8s.io",
        ] {
            let query = "jsonpath={.status.conditions[?(@.type==\"Available\")].status} {.spec.insecureSkipTLSVerify}";
            let (ok, said) = bed
                .kubectl(&["get", "apiservice", api, "--output", query], None)
                .await?;
            ensure!(ok && said.trim() == "True", "{api}: {said}");
        }
        for path in [EXTERNAL, CUSTOM] {
            let list = raw(&bed, path).await?;
            ensure!(list["kind"] == "APIResourceList", "{list}");
        }
        eventually(
            "the leader stands behind the Service",
            PATIENCE,
            async || {
                let (address, _) = place(&bed).await?;
                let leader = leader_address(&bed).await?;
                ensure!(
                    address == leader,
                    "{address} does, and the leader is at {leader}"
                );
                Ok(())
            },
        )
        .await
    });
}

async fn external_service(bed: &Bed, name: &str) -> Result<()> {
    let scaling =
        json!({"minReplicas": 1, "maxReplicas": 4, "windowSeconds": 5, "managedBy": "External"});
    bed.apply(&with(simulated(name), &["spec", "scaling"], scaling))
        .await?;
    bed.ready(name).await
}

fn external(service: &str, each: &str) -> Value {
    json!({
        "type": "External",
        "external": {
            "metric": {"name": IN_FLIGHT, "selector": {"matchLabels": {"service": service}}},
            "target": {"type": "AverageValue", "averageValue": each},
        },
    })
}

fn hpa(service: &str, metrics: &[Value]) -> Value {
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": service},
        "spec": {
            "scaleTargetRef": {"apiVersion": "serving.pagoda.dev/v1alpha1", "kind": "InferenceService", "name": service},
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": metrics,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    })
}

async fn items(bed: &Bed, service: &str) -> Result<Vec<Value>> {
    let namespace = &bed.namespace;
    let path =
        format!("{EXTERNAL}/namespaces/{namespace}/{IN_FLIGHT}?labelSelector=service%3D{service}");
    let list = raw(bed, &path).await?;
    list["items"]
        .as_array()
        .cloned()
        .context("a list without items")
}

async fn raw(bed: &Bed, path: &str) -> Result<Value> {
    let request = http::Request::get(path).body(Vec::new())?;
    let text = bed.client.request_text(request).await?;
    Ok(serde_json::from_str(&text)?)
}

/// Address of whoever stands behind the metrics' Service, with and without its port.
async fn place(bed: &Bed) -> Result<(String, String)> {
    let slices: Api<EndpointSlice> = Api::namespaced(bed.client.clone(), SYSTEM_NAMESPACE);
    let slice = slices.get("pagoda-metrics-ipv4").await?;
    let address = slice
        .endpoints
        .first()
        .and_then(|endpoint| endpoint.addresses.first());
    let address = address
        .context("nobody stands behind the metrics' Service")?
        .clone();
    let ports = slice.ports.into_iter().flatten();
    let port = ports
        .filter(|port| port.name.as_deref() == Some("https"))
        .find_map(|port| port.port);
    let port = port.context("the slice has no port https")?;
    let whole = format!("{address}:{port}");
    Ok((address, whole))
}

async fn leader_address(bed: &Bed) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(bed.client.clone(), SYSTEM_NAMESPACE);
    let lease = leases.get("pagoda-operator").await?;
    let holder = lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .unwrap_or_default();
    // The pod's name, and the number of its process.
    let pod = holder
        .rsplit_once('_')
        .map_or(holder.as_str(), |(pod, _)| pod);
    let pods: Api<Pod> = Api::namespaced(bed.client.clone(), SYSTEM_NAMESPACE);
    let status = pods.get(pod).await?.status;
    status
        .and_then(|status| status.pod_ip)
        .context("the leader has no address")
}
