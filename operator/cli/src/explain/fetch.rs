//! Asks the operator through the API server's proxy to pods: whoever may do that needs no other way to it.

use anyhow::{Context, Result, anyhow, bail};
use http::Request;
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::ListParams,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use pagoda_crds::names;
use pagoda_operator_core::explain::{DecisionLog, NoDecisions};

use super::Arguments;

/// An hour of decisions is far smaller.
const MOST_BYTES: usize = 32 << 20;
const OPERATOR: &str = "app.kubernetes.io/name=pagoda-operator";

/// What an operator said.
enum Said {
    Log(DecisionLog),
    /// Another one leads.
    StandsBy(String),
}

/// The decisions that the leading operator remembers.
pub async fn decisions(arguments: &Arguments) -> Result<DecisionLog> {
    let (client, namespace) = connect(arguments).await?;
    let system = &arguments.system_namespace;
    let pods = operators(&client, system).await?;
    if pods.is_empty() {
        bail!(
            "no pod of the operator runs in namespace {system}: say with --system-namespace where it does"
        );
    }
    let mut others = Vec::new();
    for pod in &pods {
        match ask(&client, system, pod, &namespace, &arguments.name).await {
            Ok(Said::Log(log)) => return Ok(log),
            Ok(Said::StandsBy(words)) => others.push(format!("{pod}: {words}")),
            Err(Refusal::Final(error)) => return Err(error),
            Err(Refusal::OfOne(error)) => others.push(format!("{pod}: {error:#}")),
        }
    }
    bail!(
        "no operator that leads answered:\n  {}",
        others.join("\n  ")
    )
}

async fn connect(arguments: &Arguments) -> Result<(Client, String)> {
    // Two providers could be linked in; rustls refuses to guess. One that is set already will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = match &arguments.context {
        None => Config::infer()
            .await
            .context("found no kubeconfig: set KUBECONFIG")?,
        Some(context) => {
            let options = KubeConfigOptions {
                context: Some(context.clone()),
                ..KubeConfigOptions::default()
            };
            let file = Kubeconfig::read().context("failed to read the kubeconfig")?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .with_context(|| format!("the kubeconfig's context {context} cannot be used"))?
        }
    };
    let namespace = arguments.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
    let client = Client::try_from(config).context("failed to set up the connection")?;
    Ok((client, namespace))
}

/// Names of the operator's pods that run.
async fn operators(client: &Client, namespace: &str) -> Result<Vec<String>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let found = match api.list(&ListParams::default().labels(OPERATOR)).await {
        Ok(found) => found,
        Err(kube::Error::Api(status)) if status.code == 403 => bail!(
            "not allowed to list pods in namespace {namespace}, which takes the verb list on pods there: {}",
            status.message
        ),
        Err(error) => return Err(error).context("failed to list the operator's pods"),
    };
    let running = found.items.into_iter().filter(|pod| {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        phase == Some("Running")
    });
    Ok(running.filter_map(|pod| pod.metadata.name).collect())
}

/// Why one operator said nothing of use.
enum Refusal {
    /// Another may do better.
    OfOne(anyhow::Error),
    /// None will.
    Final(anyhow::Error),
}

async fn ask(
    client: &Client,
    system: &str,
    pod: &str,
    namespace: &str,
    name: &str,
) -> Result<Said, Refusal> {
    let port = names::OPERATOR_PORT;
    let path =
        format!("/api/v1/namespaces/{system}/pods/{pod}:{port}/proxy/decisions/{namespace}/{name}");
    let request = Request::get(path).body(Body::empty());
    let request = request.map_err(|_| {
        Refusal::Final(anyhow!(
            "{namespace}/{name} is no name of an InferenceService"
        ))
    })?;
    let one = |error: kube::Error| Refusal::OfOne(anyhow!(error).context("failed to ask it"));
    let response = client.send(request).await.map_err(one)?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), MOST_BYTES).collect();
    let body = body
        .await
        .map_err(|error| Refusal::OfOne(anyhow!("its answer cannot be read: {error}")))?;
    understand(status, &body.to_bytes(), system)
}

fn understand(status: u16, body: &[u8], system: &str) -> Result<Said, Refusal> {
    let words = || {
        let told: Option<NoDecisions> = serde_json::from_slice(body).ok();
        told.map(|told| told.message).unwrap_or_default()
    };
    match status {
        200 => serde_json::from_slice(body)
            .map(Said::Log)
            .map_err(|error| Refusal::OfOne(anyhow!("its answer is of another version: {error}"))),
        401 | 403 => Err(Refusal::Final(anyhow!(
            "the API server does not let you ask the operator: that takes the verb get on pods/proxy in namespace {system}. It says: {}",
            words()
        ))),
        // An operator of an earlier release answers so as well, without a word.
        404 if words().is_empty() => Err(Refusal::OfOne(anyhow!(
            "it is of a release that remembers no decisions"
        ))),
        404 => Err(Refusal::Final(anyhow!("{}", words()))),
        503 => Ok(Said::StandsBy(words())),
        other => Err(Refusal::OfOne(anyhow!("it answered {other} {}", words()))),
    }
}
