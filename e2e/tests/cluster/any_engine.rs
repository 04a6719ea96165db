//! Another OpenAI-compatible server under the same operator, gateway and autoscaler: llama.cpp's own, with the real model.

use anyhow::{Context, Result, ensure};
use pagoda_e2e::images::LLAMA_SERVER_IMAGE;
use serde_json::{Value, json};

use crate::bed::{Bed, PATIENCE, eventually, on_cluster, pod_name};
use crate::faults::replace;
use crate::load::Load;
use crate::manifests::on_cpu;

const MODEL_IMAGE: &str = "image://pagoda/smollm2-135m-instruct:q4_1//model.gguf";

/// llama-server with the test model, two sequences at a time.
fn llama_server(name: &str) -> Value {
    let mut manifest = on_cpu(name, MODEL_IMAGE);
    manifest["spec"]["engine"] = json!({
        "image": LLAMA_SERVER_IMAGE,
        "args": [
            "--host", "0.0.0.0", "--port", "9000", "--model", "$(PAGODA_MODEL_PATH)", "--alias", "$(PAGODA_QUALIFIED_NAME)",
            "--metrics", "--parallel", "2", "--ctx-size", "1024", "--threads", "2",
        ],
        "port": 9000,
        "healthPath": "/health",
        "maxSequences": 2,
    });
    manifest
}

#[test]
fn llama_server_answers_behind_the_gateway_and_drains_without_a_cut_stream() {
    on_cluster("llama", |bed| async move {
        let mut manifest = llama_server("llama");
        manifest["spec"]["scaling"] = json!({"minReplicas": 2, "maxReplicas": 2});
        bed.apply(&manifest).await?;
        bed.ready("llama").await?;
        let pods = bed.ready_pods("llama", 2).await?;
        let reply = bed.answers("llama").await?;
        ensure!(!reply.text.is_empty(), "it says nothing: {reply:?}");

        let load = Load::start(&bed.gateway, &bed.chat("llama", 48), 3);
        let victim = eventually("a pod has a stream", PATIENCE, async || {
            for pod in &pods {
                if processing(&bed, &pod_name(pod)).await? > 0.0 {
                    return Ok(pod.clone());
                }
            }
            anyhow::bail!("none has")
        })
        .await?;
        replace(&bed, "llama", &victim).await?;
        load.stop().await.unharmed()
    });
}

#[test]
fn the_autoscaler_reads_llama_servers_own_metrics() {
    on_cluster("llama-scales", |bed| async move {
        let mut manifest = llama_server("llama");
        manifest["spec"]["scaling"] = json!({
            "minReplicas": 1, "maxReplicas": 2, "scaleDownStabilizationSeconds": 5,
            "targets": [{"metric": "InFlightRequests", "averageValue": "2"}],
        });
        bed.apply(&manifest).await?;
        bed.ready("llama").await?;
        let load = Load::start(&bed.gateway, &bed.chat("llama", 32), 4);
        bed.ready_pods("llama", 2).await?;
        load.stop().await.unharmed()?;
        // Pods whose metrics cannot be read are partial knowledge, under which nothing shrinks.
        bed.ready_pods("llama", 1).await?;
        bed.answers("llama").await.map(drop)
    });
}

/// Requests that a pod's server works on, in its own words.
async fn processing(bed: &Bed, pod: &str) -> Result<f64> {
    let path = format!(
        "/api/v1/namespaces/{}/pods/{pod}:9000/proxy/metrics",
        bed.namespace
    );
    let text = bed
        .client
        .request_text(http::Request::get(path).body(Vec::new())?)
        .await?;
    text.lines()
        .find_map(|line| line.strip_prefix("llamacpp:requests_processing "))
        .context("it has no such metric")?
        .trim()
        .parse()
        .context("it has no number")
}
