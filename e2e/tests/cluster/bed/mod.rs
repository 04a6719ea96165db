//! What one test stands on: a namespace of its own on the local cluster, and the gateway's address.

mod kubectl;

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use futures::FutureExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Config, Resource};
use pagoda_e2e::cluster::Cluster;
pub use pagoda_e2e::eventually::eventually;
use pagoda_e2e::openai::{Chat, OpenAi, Reply};
use serde_json::{Value, json};

/// How long a test waits for what takes seconds, before it gives up.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Identity of one object, and of one version of it.
pub type Versions = BTreeMap<String, (String, String)>;

/// One test's place on the cluster.
pub struct Bed {
    pub client: Client,
    pub gateway: OpenAi,
    pub namespace: String,
    cluster: Cluster,
}

/// Runs `test` in a namespace of its own. When it fails, prints what the cluster knows, then fails.
pub fn on_cluster<F, Fut>(name: &str, test: F)
where
    F: FnOnce(Arc<Bed>) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let bed = Arc::new(
            Bed::new(name)
                .await
                .expect("./test e2e brings the cluster up first"),
        );
        let outcome = AssertUnwindSafe(test(bed.clone())).catch_unwind().await;
        let outcome =
            outcome.unwrap_or_else(|_| Err(anyhow!("the test panicked; its message stands above")));
        if outcome.is_err() {
            eprintln!("{}", bed.autopsy().await);
        }
        bed.delete_namespace().await;
        if let Err(error) = outcome {
            panic!("{error:?}");
        }
    });
}

impl Bed {
    async fn new(name: &str) -> Result<Self> {
        let cluster = Cluster::local()?;
        let gateway = OpenAi::new(&cluster.gateway_url()?)?;
        // Only ever the cluster that is ours: neither KUBECONFIG nor the user's current context is looked at.
        let kubeconfig = Kubeconfig::read_from(cluster.paths().kubeconfig())?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let bed = Self {
            client,
            gateway,
            namespace: format!("t-{name}-{}", std::process::id()),
            cluster,
        };
        let namespaces: Api<Namespace> = Api::all(bed.client.clone());
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": bed.namespace}});
        namespaces
            .patch(
                &bed.namespace,
                &PatchParams::apply("e2e"),
                &Patch::Apply(&namespace),
            )
            .await?;
        Ok(bed)
    }

    async fn delete_namespace(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        if let Err(error) = namespaces
            .delete(&self.namespace, &DeleteParams::default())
            .await
        {
            eprintln!("failed to delete namespace {}: {error}", self.namespace);
        }
    }

    /// The service's name as a request's `model`, unique on the cluster.
    pub fn model(&self, service: &str) -> String {
        format!("{}/{service}", self.namespace)
    }

    /// A chat with `service` that takes exactly so many tokens.
    pub fn chat(&self, service: &str, max_tokens: u32) -> Chat {
        Chat {
            model: self.model(service),
            prompt: "Count to ten.".to_owned(),
            max_tokens,
            ignore_eos: true,
        }
    }

    /// Asks `service` once, streaming, and wants a whole answer.
    pub async fn answers(&self, service: &str) -> Result<Reply> {
        let reply = tokio::time::timeout(
            PATIENCE,
            self.gateway.stream(&self.chat(service, 8), |_| ()),
        )
        .await??;
        ensure!(
            reply.is_whole(),
            "no whole answer from {service}: {reply:?}"
        );
        Ok(reply)
    }

    /// The InferenceServices of this namespace.
    pub fn services(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &inference_services())
    }

    /// Objects of a built-in kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Server-side apply of an InferenceService, as a GitOps tool does it.
    pub async fn apply(&self, manifest: &Value) -> Result<DynamicObject> {
        let name = manifest["metadata"]["name"]
            .as_str()
            .context("the manifest has no name")?;
        let params = PatchParams::apply("e2e").force();
        self.services()
            .patch(name, &params, &Patch::Apply(manifest))
            .await
            .with_context(|| format!("failed to apply {name}"))
    }

    /// Server-side apply of any built-in object of this namespace.
    pub async fn apply_object<K>(&self, manifest: &Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let name = manifest["metadata"]["name"]
            .as_str()
            .context("the manifest has no name")?;
        self.api::<K>()
            .patch(
                name,
                &PatchParams::apply("e2e").force(),
                &Patch::Apply(manifest),
            )
            .await?;
        Ok(())
    }

    /// The service as JSON.
    pub async fn service(&self, name: &str) -> Result<Value> {
        Ok(serde_json::to_value(self.services().get(name).await?)?)
    }

    /// Waits until `Ready` is true for the generation that is there now.
    pub async fn ready(&self, name: &str) -> Result<()> {
        eventually(&format!("{name} is Ready"), PATIENCE, async || {
            let service = self.service(name).await?;
            let ready = condition(&service, "Ready").unwrap_or_default();
            let current =
                service["status"]["observedGeneration"] == service["metadata"]["generation"];
            ensure!(
                current && ready["status"] == "True",
                "conditions are {}",
                service["status"]["conditions"]
            );
            Ok(())
        })
        .await
    }

    /// Waits until the condition of `kind` is false with this reason; its message.
    pub async fn fails_with(&self, name: &str, kind: &str, reason: &str) -> Result<String> {
        eventually(
            &format!("{name} says {kind}=False {reason}"),
            PATIENCE,
            async || {
                let service = self.service(name).await?;
                let found = condition(&service, kind).unwrap_or_default();
                ensure!(
                    found["status"] == "False" && found["reason"] == reason,
                    "conditions are {}",
                    service["status"]["conditions"]
                );
                Ok(found["message"].as_str().unwrap_or_default().to_owned())
            },
        )
        .await
    }

    /// Pods of a service, those that are going included.
    pub async fn pods(&self, service: &str) -> Result<Vec<Pod>> {
        Ok(self.api::<Pod>().list(&of_service(service)).await?.items)
    }

    /// Waits until exactly `count` pods exist, all of them ready and none of them going.
    pub async fn ready_pods(&self, service: &str, count: usize) -> Result<Vec<Pod>> {
        eventually(
            &format!("{service} has {count} ready pods and no other"),
            PATIENCE,
            async || {
                let pods = self.pods(service).await?;
                let ready = pods.iter().filter(|pod| is_ready(pod)).count();
                ensure!(
                    pods.len() == count && ready == count,
                    "{} pods, {ready} of them ready",
                    pods.len()
                );
                Ok(pods)
            },
        )
        .await
    }

    /// A metric as the pod itself tells it, over all its labels, read through the API server; `None` when it has none of it.
    pub async fn pod_metric(&self, pod: &str, metric: &str) -> Result<Option<f64>> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:8000/proxy/metrics",
            self.namespace
        );
        let text = self
            .client
            .request_text(http::Request::get(path).body(Vec::new())?)
            .await?;
        let samples = text
            .lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(metric));
        let values = samples.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>());
        let values = values
            .collect::<Result<Vec<f64>, _>>()
            .with_context(|| format!("{metric} has no number"))?;
        Ok((!values.is_empty()).then(|| values.iter().sum()))
    }

    /// Kind and name of each child, with its uid and version.
    pub async fn children(&self, service: &str) -> Result<Versions> {
        let mut found = Versions::new();
        for kind in child_kinds() {
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &self.namespace, &kind);
            for object in api.list(&of_service(service)).await? {
                let meta = object.metadata;
                let version = (
                    meta.uid.unwrap_or_default(),
                    meta.resource_version.unwrap_or_default(),
                );
                found.insert(
                    format!("{}/{}", kind.kind, meta.name.unwrap_or_default()),
                    version,
                );
            }
        }
        Ok(found)
    }

    /// Waits until the children are there and two looks a second apart find the same versions.
    pub async fn settled_children(&self, service: &str) -> Result<Versions> {
        eventually(
            &format!("the children of {service} come to rest"),
            PATIENCE,
            async || {
                let first = self.children(service).await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
                ensure!(first.len() == child_kinds().len(), "children are {first:?}");
                ensure!(first == self.children(service).await?, "they still change");
                Ok(first)
            },
        )
        .await
    }
}

/// The custom resource, addressed without linking its types: tests stand outside.
fn inference_services() -> ApiResource {
    let kind = GroupVersionKind::gvk("serving.pagoda.dev", "v1alpha1", "InferenceService");
    ApiResource::from_gvk_with_plural(&kind, "inferenceservices")
}

/// Every kind that a service owns directly.
fn child_kinds() -> [ApiResource; 5] {
    [
        ApiResource::erase::<Deployment>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<PodDisruptionBudget>(&()),
        ApiResource::erase::<ServiceAccount>(&()),
        ApiResource::erase::<ConfigMap>(&()),
    ]
}

/// Selects what belongs to a service.
pub fn of_service(service: &str) -> ListParams {
    ListParams::default().labels(&format!("serving.pagoda.dev/service={service}"))
}

/// The condition of this type.
pub fn condition(service: &Value, kind: &str) -> Option<Value> {
    let conditions = service["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
        .cloned()
}

/// True for a pod that is ready and not being deleted.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none()
        && conditions
            .iter()
            .any(|found| found.type_ == "Ready" && found.status == "True")
}

/// The pod's name.
pub fn pod_name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

/// The pod's uid.
pub fn pod_uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

/// Restarts of all of the pod's containers.
pub fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default();
    statuses.iter().map(|status| status.restart_count).sum()
}
