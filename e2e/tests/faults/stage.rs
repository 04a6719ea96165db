//! What one test of a fault stands on: a namespace, an operator of its own that looks after it, and the proxy between that
//! operator and the API server.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use pagoda_e2e::charts::SYSTEM_NAMESPACE;
use pagoda_e2e::cluster::Cluster;
use pagoda_e2e::faults::{Counts, FaultProxy, Match};
use pagoda_e2e::images;
use pagoda_e2e::operator_process::{
    OperatorAccount, OperatorCommand, OperatorProcess, debug_program, scratch_folder,
};
use serde_json::{Value, json};

use crate::bed::{Bed, PATIENCE, Versions, condition, eventually, of_service, on_cluster};
use crate::manifests::{simulated, with};

/// How long nothing may be written before a service counts as at rest, and for how long its rest is watched.
const QUIET: Duration = Duration::from_secs(5);
/// The kubelet starts a container that ended again after a while.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// Names the program to test when it is not the debug build beside this one.
const PROGRAM_VARIABLE: &str = "PAGODA_OPERATOR_PROGRAM";

/// One test's place.
pub struct Stage {
    pub bed: Arc<Bed>,
    pub cluster: Cluster,
    pub proxy: FaultProxy,
    command: OperatorCommand,
    current: Mutex<Arc<OperatorProcess>>,
    restarts: AtomicU32,
}

/// Runs `test` in a namespace of its own beside an operator that leads and looks after that namespace alone. When it fails,
/// the operator's last words and what passed the proxy are part of the reason.
pub fn on_stage<F, Fut>(name: &str, test: F)
where
    F: FnOnce(Arc<Stage>) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    on_stage_with(name, |_| Ok(()), test);
}

/// As [`on_stage`], with `prepare` changing how the operator is started.
pub fn on_stage_with<P, F, Fut>(name: &str, prepare: P, test: F)
where
    P: FnOnce(&mut OperatorCommand) -> Result<()>,
    F: FnOnce(Arc<Stage>) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    on_cluster(name, |bed| async move {
        let stage = Arc::new(Stage::start(bed, prepare).await?);
        let outcome = test(stage.clone()).await;
        let outcome = outcome.and_then(|()| stage.ensure_sound());
        stage.leave().await;
        outcome.map_err(|error| error.context(stage.report()))
    });
}

impl Stage {
    async fn start(
        bed: Arc<Bed>,
        prepare: impl FnOnce(&mut OperatorCommand) -> Result<()>,
    ) -> Result<Self> {
        let cluster = Cluster::local()?;
        let proxy = FaultProxy::start(&cluster).await?;
        let mut command = command(&cluster, &bed.namespace, "first", &proxy).await?;
        prepare(&mut command)?;
        let operator = OperatorProcess::start(&command)?;
        operator.wait_until_leading(PATIENCE).await?;
        Ok(Self {
            bed,
            cluster,
            proxy,
            command,
            current: Mutex::new(Arc::new(operator)),
            restarts: AtomicU32::new(0),
        })
    }

    /// The operator that runs, or that ran last.
    pub fn operator(&self) -> Arc<OperatorProcess> {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How often the operator was started again.
    pub fn restarts(&self) -> u32 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Starts the operator again after it has ended; it need not lead yet.
    pub fn start_again(&self) -> Result<()> {
        let next = OperatorProcess::start(&self.command)?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        self.restarts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// From now on an operator that ends is started again, as the kubelet does it, until the returned value is dropped.
    pub fn supervise(self: &Arc<Self>) -> Supervision {
        let stage = self.clone();
        Supervision(tokio::spawn(async move {
            loop {
                tokio::time::sleep(RESTART_DELAY).await;
                if matches!(stage.operator().exit_status(), Ok(Some(_)))
                    && let Err(error) = stage.start_again()
                {
                    eprintln!("{error:#}");
                }
            }
        }))
    }

    /// Another operator on the same lease and namespace behind a proxy of its own; it does not lead while the first does.
    pub async fn second(&self) -> Result<(FaultProxy, OperatorProcess)> {
        let proxy = FaultProxy::start(&self.cluster).await?;
        let command = command(&self.cluster, &self.bed.namespace, "second", &proxy).await?;
        let operator = OperatorProcess::start(&command)?;
        Ok((proxy, operator))
    }

    /// Applies services that have children and no pods, and waits until they are ready.
    pub async fn services_at_rest(&self, names: &[String]) -> Result<BTreeMap<String, Versions>> {
        for name in names {
            self.bed.apply(&at_zero(name)).await?;
        }
        for name in names {
            self.bed.ready(name).await?;
        }
        self.rests().await?;
        let mut children = BTreeMap::new();
        for name in names {
            children.insert(name.clone(), self.bed.settled_children(name).await?);
        }
        Ok(children)
    }

    /// Waits until the operator has written nothing but its lease for a while.
    pub async fn rests(&self) -> Result<()> {
        eventually("the operator comes to rest", PATIENCE, async || {
            self.quiet().await
        })
        .await
    }

    /// Fails when the operator writes anything but its lease in the next seconds.
    pub async fn quiet(&self) -> Result<()> {
        let before = self.proxy.counts();
        tokio::time::sleep(QUIET).await;
        let written = self.written_since(&before);
        ensure!(written.is_empty(), "the operator wrote\n{written}");
        Ok(())
    }

    /// What the operator has written since `before`, but for its lease.
    pub fn written_since(&self, before: &Counts) -> Counts {
        written(&self.proxy.counts().since(before))
    }

    /// The service's child of this kind.
    pub async fn child(&self, kind: &str, service: &str) -> Result<DynamicObject> {
        let found = self
            .children_of_kind(kind)
            .list(&of_service(service))
            .await?;
        let first = found.items.into_iter().next();
        first.with_context(|| format!("{service} has no {kind}"))
    }

    /// Objects of one of [`CHILD_KINDS`] in the test's namespace.
    pub fn children_of_kind(&self, kind: &str) -> Api<DynamicObject> {
        let group = match kind {
            "Deployment" => "apps",
            "PodDisruptionBudget" => "policy",
            _ => "",
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        Api::namespaced_with(self.bed.client.clone(), &self.bed.namespace, &resource)
    }

    /// Changes a service so that each of its pods and its configuration must change.
    pub async fn change(&self, name: &str, max_sequences: u32) -> Result<()> {
        let patch = json!({"spec": {"engine": {"maxSequences": max_sequences}}});
        self.bed
            .services()
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    /// Whether the configuration of a service's pods has this `maxSequences`.
    pub async fn has_configured(&self, name: &str, max_sequences: u32) -> Result<()> {
        let maps = self.bed.api::<ConfigMap>().list(&of_service(name)).await?;
        let texts = maps
            .items
            .iter()
            .filter_map(|map| map.data.as_ref()?.get("engine.json"));
        let found: Vec<Value> = texts
            .filter_map(|text| {
                Some(serde_json::from_str::<Value>(text).ok()?["maxSequences"].take())
            })
            .collect();
        ensure!(
            found.contains(&json!(max_sequences)),
            "maxSequences is {found:?}"
        );
        Ok(())
    }

    /// Waits until a change of [`Self::change`] has arrived in the children and the service is ready.
    pub async fn carried_out(&self, name: &str, max_sequences: u32) -> Result<()> {
        eventually(
            &format!("the change of {name} is carried out"),
            PATIENCE,
            async || self.has_configured(name, max_sequences).await,
        )
        .await?;
        self.bed.ready(name).await
    }

    /// Deletes the service's child of this kind; its uid.
    pub async fn delete_child(&self, kind: &str, service: &str) -> Result<String> {
        let child = self.child(kind, service).await?;
        let name = child.name_any();
        self.children_of_kind(kind)
            .delete(&name, &DeleteParams::default())
            .await?;
        child.uid().context("a child without a uid")
    }

    /// Waits until the service has a child of this kind again, another than that of `uid`.
    pub async fn made_anew(&self, kind: &str, service: &str, uid: &str) -> Result<DynamicObject> {
        eventually(
            &format!("the {kind} of {service} is there again"),
            PATIENCE,
            async || {
                let child = self.child(kind, service).await?;
                ensure!(
                    child.uid().as_deref() != Some(uid),
                    "it is still the old one"
                );
                ensure!(child.metadata.deletion_timestamp.is_none(), "it is going");
                Ok(child)
            },
        )
        .await
    }

    fn ensure_sound(&self) -> Result<()> {
        let log = self.operator().log();
        ensure!(!log.contains("panicked at"), "the operator panicked");
        Ok(())
    }

    async fn leave(&self) {
        self.proxy.heal().await;
        let _ = self.operator().stop().await;
        let leases: Api<Lease> = Api::namespaced(self.bed.client.clone(), SYSTEM_NAMESPACE);
        if let Err(error) = leases
            .delete(&self.command.lease, &DeleteParams::default())
            .await
        {
            eprintln!("failed to delete lease {}: {error}", self.command.lease);
        }
    }

    fn report(&self) -> String {
        format!(
            "the operator was started again {} times; its log ends\n{}\nrequests were\n{}",
            self.restarts(),
            self.operator().log_tail(),
            self.proxy.counts()
        )
    }
}

/// Ends the supervision when dropped.
pub struct Supervision(tokio::task::JoinHandle<()>);

impl Drop for Supervision {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn command(
    cluster: &Cluster,
    namespace: &str,
    identity: &str,
    proxy: &FaultProxy,
) -> Result<OperatorCommand> {
    let folder = scratch_folder(cluster, namespace)?;
    let kubeconfig = folder.join(format!("{identity}.kubeconfig"));
    OperatorAccount::issue(cluster)
        .await?
        .write_kubeconfig(&kubeconfig, Some(&proxy.url()))?;
    let images = images::recorded(cluster)?;
    let engine = images
        .get("engine")
        .context("the engine's image is not loaded")?;
    let program = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from);
    Ok(OperatorCommand {
        program: program.map_or_else(debug_program, Ok)?,
        kubeconfig,
        identity: identity.to_owned(),
        lease: namespace.to_owned(),
        namespaces: vec![namespace.to_owned()],
        engine_image: engine.reference(),
        log: folder.join(format!("{identity}.log")),
        arguments: Vec::new(),
        environment: Vec::new(),
    })
}

/// Writes other than those of leases.
pub fn written(counts: &Counts) -> Counts {
    counts.only(&Match::writes().except("leases"))
}

/// A service that has all its children and no pod: nothing but the operator's own work is there to see.
pub fn at_zero(name: &str) -> Value {
    let scaling = json!({"minReplicas": 0, "maxReplicas": 1, "managedBy": "External"});
    let manifest = with(simulated(name), &["spec", "scaling"], scaling);
    with(manifest, &["spec", "replicas"], json!(0))
}

/// `prefix-0`, `prefix-1`, ...
pub fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{prefix}-{number}"))
        .collect()
}

/// Every kind that a service has children of.
pub const CHILD_KINDS: [&str; 5] = [
    "Deployment",
    "Service",
    "PodDisruptionBudget",
    "ServiceAccount",
    "ConfigMap",
];

/// The Lease that the stage's operators contend for.
pub async fn lease(stage: &Stage) -> Result<Value> {
    let leases: Api<Lease> = Api::namespaced(stage.bed.client.clone(), SYSTEM_NAMESPACE);
    Ok(serde_json::to_value(
        leases.get(&stage.command.lease).await?,
    )?)
}

/// The InferenceServices of any namespace.
pub fn services_in(stage: &Stage, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("serving.pagoda.dev", "v1alpha1", "InferenceService");
    let resource = ApiResource::from_gvk_with_plural(&kind, "inferenceservices");
    Api::namespaced_with(stage.bed.client.clone(), namespace, &resource)
}

/// Waits until the service's condition `Ready` is false for `reason` and its message holds each of `words`.
pub async fn says(stage: &Stage, service: &str, reason: &str, words: &[&str]) -> Result<()> {
    eventually(
        &format!("{service} says {reason} with {words:?}"),
        PATIENCE,
        async || {
            let service = stage.bed.service(service).await?;
            let ready = condition(&service, "Ready").unwrap_or_default();
            let message = ready["message"].as_str().unwrap_or_default();
            ensure!(
                ready["status"] == "False"
                    && ready["reason"] == reason
                    && words.iter().all(|word| message.contains(word)),
                "conditions are {}",
                service["status"]["conditions"]
            );
            Ok(())
        },
    )
    .await
}
