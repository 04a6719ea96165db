//! What one test stands on: a namespace, a gateway of its own, and an operator that looks after both.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Resource};
use pagoda_e2e::charts::SYSTEM_NAMESPACE;
use pagoda_e2e::eventually::eventually;
use pagoda_e2e::operator_process::{OperatorAccount, OperatorCommand, OperatorProcess};
use pagoda_e2e::sources::{Fault, ServiceLoad};
use serde_json::{Value, json};

use crate::ground::{Built, Ground};

/// How long a test waits for what takes seconds.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// How long a test looks whether something happens that must not. Longer than each of its services' windows together.
pub const LOOK: Duration = Duration::from_secs(12);
/// Open requests that each pod of [`elastic`] should carry.
pub const EACH: u64 = 8;

/// One test's place.
pub struct Stage {
    ground: Ground,
    pub namespace: String,
    pub gateway: Ipv4Addr,
    command: Mutex<OperatorCommand>,
    current: Mutex<Option<Arc<OperatorProcess>>>,
}

impl Stage {
    /// Makes the namespace and the gateway, and starts an operator that leads.
    pub async fn set(ground: Ground, name: &str, number: u8) -> Result<Self> {
        let built = ground.built();
        let namespace = format!("t-{name}-{number}");
        let gateway = Ipv4Addr::new(198, 19, 100, number);
        create(
            Api::<Namespace>::all(built.client.clone()),
            json!({"metadata": {"name": namespace}}),
        )
        .await?;
        built.sources.add_gateway(gateway, &namespace);
        let kubeconfig = built.plane.file(&format!("{namespace}.kubeconfig"));
        OperatorAccount::issue_by(built.client.clone(), &built.plane.kubeconfig())
            .await?
            .write_kubeconfig(&kubeconfig, None)?;
        let command = OperatorCommand {
            program: built.operator.clone(),
            kubeconfig,
            identity: namespace.clone(),
            lease: namespace.clone(),
            namespaces: vec![namespace.clone()],
            engine_image: "registry.invalid/pagoda/engine:test".to_owned(),
            log: built.plane.file(&format!("{namespace}.log")),
            arguments: vec![format!("--gateway-service={namespace}")],
            environment: Vec::new(),
        };
        let stage = Self {
            ground: ground.clone(),
            namespace,
            gateway,
            command: Mutex::new(command),
            current: Mutex::default(),
        };
        stage.add_gateway().await?;
        stage.start().await?;
        Ok(stage)
    }

    /// A Service without a selector and the slice that stands for its one gateway.
    async fn add_gateway(&self) -> Result<()> {
        let client = &self.built().client;
        let ports = json!([{"name": "http", "port": 8080}, {"name": "admin", "port": 8081}]);
        create(
            Api::<Service>::namespaced(client.clone(), SYSTEM_NAMESPACE),
            json!({"metadata": {"name": self.namespace}, "spec": {"ports": ports}}),
        )
        .await?;
        create(
            Api::<EndpointSlice>::namespaced(client.clone(), SYSTEM_NAMESPACE),
            json!({
                "metadata": {"name": self.namespace, "labels": {"kubernetes.io/service-name": self.namespace}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [self.gateway.to_string()], "conditions": {"ready": true, "serving": true}}],
                "ports": ports,
            }),
        )
        .await
    }

    /// Starts an operator, as the one before it was started, and waits until it leads.
    pub async fn start(&self) -> Result<()> {
        let command = lock(&self.command).clone();
        let operator = Arc::new(OperatorProcess::start(&command)?);
        *lock(&self.current) = Some(operator.clone());
        operator.wait_until_leading(PATIENCE).await
    }

    /// Ends the operator, changes how it is started, and starts it.
    pub async fn start_with(&self, change: impl FnOnce(&mut OperatorCommand)) -> Result<()> {
        self.operator()?.stop().await?;
        change(&mut lock(&self.command));
        self.start().await
    }

    /// The operator that runs.
    pub fn operator(&self) -> Result<Arc<OperatorProcess>> {
        lock(&self.current).clone().context("no operator runs")
    }

    /// The shared parts.
    pub fn built(&self) -> &Built {
        self.ground.built()
    }

    /// Load of one of the test's services.
    pub fn load(&self, service: &str) -> Arc<ServiceLoad> {
        self.built().sources.service(&self.namespace, service)
    }

    /// What is wrong with the test's gateway.
    pub fn set_gateway_fault(&self, fault: Fault) {
        self.built().sources.set_gateway_fault(self.gateway, fault);
    }

    /// Server-side apply of an InferenceService.
    pub async fn apply(&self, manifest: &Value) -> Result<()> {
        self.apply_as("e2e", manifest).await
    }

    /// The same as another field manager.
    pub async fn apply_as(&self, manager: &str, manifest: &Value) -> Result<()> {
        let name = manifest["metadata"]["name"].as_str().context("no name")?;
        let parameters = PatchParams::apply(manager).force();
        self.services()
            .patch(name, &parameters, &Patch::Apply(manifest))
            .await
            .with_context(|| format!("cannot apply {name}"))?;
        Ok(())
    }

    /// Creates an object of the test's namespace.
    pub async fn create<K>(&self, manifest: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::Serialize
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        create(
            Api::<K>::namespaced(self.built().client.clone(), &self.namespace),
            manifest,
        )
        .await
    }

    /// The service as JSON.
    pub async fn service(&self, name: &str) -> Result<Value> {
        Ok(serde_json::to_value(self.services().get(name).await?)?)
    }

    fn services(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("serving.pagoda.dev", "v1alpha1", "InferenceService");
        let resource = ApiResource::from_gvk_with_plural(&kind, "inferenceservices");
        Api::namespaced_with(self.built().client.clone(), &self.namespace, &resource)
    }

    /// Waits until so many pods are asked for, and so many are ready.
    pub async fn has(&self, service: &str, replicas: i64) -> Result<()> {
        let key = self.key(service);
        let what = format!("{service} has {replicas} pods");
        self.eventually(&what, async || {
            let (asked, ready) = (
                self.built().seen.now(&key),
                self.load(service).pods() as i64,
            );
            ensure!(
                asked == Some(replicas) && ready == replicas,
                "{asked:?} are asked for, {ready} are ready"
            );
            Ok(())
        })
        .await
    }

    /// Waits until so many pods are asked for, whatever becomes of them.
    pub async fn asks_for(&self, service: &str, replicas: i64) -> Result<()> {
        let key = self.key(service);
        let what = format!("{replicas} pods of {service} are asked for");
        self.eventually(&what, async || {
            let asked = self.built().seen.now(&key);
            ensure!(asked == Some(replicas), "{asked:?} are asked for");
            Ok(())
        })
        .await
    }

    /// A load of four pods' worth, followed: the beginning of most tests. The numbers of pods that were seen until then are
    /// no part of what is checked later.
    pub async fn at_four(&self, manifest: &Value) -> Result<()> {
        let name = manifest["metadata"]["name"].as_str().context("no name")?;
        self.load(name).set_in_flight(4 * EACH);
        self.apply(manifest).await?;
        self.has(name, 4).await
    }

    /// Fails when any number of pods of the service since `since` was below `least` or above `most`.
    pub fn stayed_within(
        &self,
        service: &str,
        since: Instant,
        least: i64,
        most: i64,
    ) -> Result<()> {
        let changes = self.built().seen.of(&self.key(service));
        let wrong: Vec<i64> = changes
            .iter()
            .filter(|(at, replicas)| *at >= since && !(least..=most).contains(replicas))
            .map(|(_, replicas)| *replicas)
            .collect();
        ensure!(
            wrong.is_empty(),
            "{service} was given {wrong:?} pods, and {least} to {most} were due"
        );
        Ok(())
    }

    /// Waits until the condition `Autoscaling` has one of these reasons; the condition.
    pub async fn says(&self, service: &str, reasons: &[&str]) -> Result<Value> {
        self.eventually(&format!("{service} says {reasons:?}"), async || {
            let found = self.condition(service, "Autoscaling").await?;
            let reason = found["reason"].as_str().unwrap_or_default();
            ensure!(reasons.contains(&reason), "it says {found}");
            Ok(found)
        })
        .await
    }

    /// A condition of the service; null when it is not there.
    pub async fn condition(&self, service: &str, kind: &str) -> Result<Value> {
        let service = self.service(service).await?;
        let conditions = service["status"]["conditions"].as_array();
        let mut all = conditions.into_iter().flatten();
        let found = all.find(|condition| condition["type"] == kind);
        Ok(found.cloned().unwrap_or_default())
    }

    /// Waits until `probe` succeeds; when it never does, its last word is the reason.
    pub async fn eventually<T>(
        &self,
        what: &str,
        probe: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        eventually(what, PATIENCE, probe).await
    }

    fn key(&self, service: &str) -> (String, String) {
        (self.namespace.clone(), service.to_owned())
    }

    /// Fails when the operator ended or panicked.
    pub fn ensure_sound(&self) -> Result<()> {
        let operator = self.operator()?;
        ensure!(
            !operator.log().contains("panicked at"),
            "the operator panicked"
        );
        ensure!(operator.exit_status()?.is_none(), "the operator ended");
        Ok(())
    }

    /// Ends the operator and takes the namespace away.
    pub async fn leave(&self) {
        if let Ok(operator) = self.operator() {
            operator.stop().await.ok();
        }
        let namespaces: Api<Namespace> = Api::all(self.built().client.clone());
        if let Err(error) = namespaces
            .delete(&self.namespace, &DeleteParams::default())
            .await
        {
            eprintln!("failed to delete namespace {}: {error}", self.namespace);
        }
    }

    /// What a person would look at first.
    pub fn report(&self) -> String {
        let tail = self.operator().map(|operator| operator.log_tail());
        format!(
            "in {}; the operator's log ends\n{}",
            self.namespace,
            tail.unwrap_or_default()
        )
    }
}

async fn create<K>(api: Api<K>, manifest: Value) -> Result<()>
where
    K: Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(manifest)?)
        .await?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A service that follows its open requests within seconds in both directions, so that what must not shrink would.
pub fn elastic(name: &str, least: u32, most: u32) -> Value {
    json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "engine": {"executor": "simulated"},
            "hardware": {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}},
            "scaling": {
                "minReplicas": least,
                "maxReplicas": most,
                "idleSeconds": 3,
                "windowSeconds": 3,
                "scaleDownStabilizationSeconds": 2,
                "panic": {"windowSeconds": 1},
                "targets": [{"metric": "InFlightRequests", "averageValue": EACH.to_string()}],
            },
        },
    })
}

/// The same manifest with the value at `path` (segments of keys) set.
pub fn with(mut manifest: Value, path: &[&str], value: Value) -> Value {
    let mut place = &mut manifest;
    for key in path {
        place = &mut place[*key];
    }
    *place = value;
    manifest
}
