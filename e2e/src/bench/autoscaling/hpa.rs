//! HorizontalPodAutoscalers, scaled by the cluster's own controller on the metric that the operator serves.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::burst::MOST_PODS;
use super::fleet::TARGET;
use crate::bed::services::Key;

const METRIC: &str = "pagoda_in_flight_requests";
const CONCURRENCY: usize = 16;
/// Certificates are made and the aggregation layer hears of them.
const PATIENCE: Duration = Duration::from_mins(2);

/// Waits until the API server passes the metric of a service on.
pub(super) async fn wait_for_metric(client: &Client, (namespace, name): &Key) -> Result<()> {
    let path = format!(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{METRIC}?labelSelector=service%3D{name}"
    );
    let began = Instant::now();
    loop {
        let request = http::Request::get(&path).body(Vec::new())?;
        let answer = client.request::<Value>(request).await;
        let is_there = answer.as_ref().is_ok_and(|list| {
            list["items"]
                .as_array()
                .is_some_and(|items| !items.is_empty())
        });
        if is_there {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!(
                "after {} s the API server has no external metric of {namespace}/{name}: {}",
                PATIENCE.as_secs(),
                answer.map_or_else(|error| error.to_string(), |list| list.to_string())
            );
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// As a user writes them who keeps the HPA: the operator's external metric of the service, the same target.
pub(super) async fn create_all(client: &Client, keys: &[Key]) -> Result<()> {
    stream::iter(keys)
        .map(Ok)
        .try_for_each_concurrent(CONCURRENCY, |(namespace, name)| async move {
            let hpa = json!({
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": name},
                "spec": {
                    "scaleTargetRef": {"apiVersion": "serving.pagoda.dev/v1alpha1", "kind": "InferenceService", "name": name},
                    "minReplicas": 1,
                    "maxReplicas": MOST_PODS,
                    "metrics": [{"type": "External", "external": {
                        "metric": {"name": METRIC, "selector": {"matchLabels": {"service": name}}},
                        "target": {"type": "AverageValue", "averageValue": TARGET.to_string()},
                    }}],
                },
            });
            let api: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), namespace);
            api.create(&PostParams::default(), &serde_json::from_value(hpa)?)
                .await
                .map(drop)
                .context("cannot create an HPA")
        })
        .await
}
