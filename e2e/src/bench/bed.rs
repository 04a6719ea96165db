//! What measuring and chaos stand on: a control plane of one's own with fake nodes, the charts in it, the operator as a
//! process beside this one, and a stand-in for all pods and gateways.

pub mod audit;
pub mod services;
pub mod stand_in;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use pagoda_e2e::cache::Cache;
use pagoda_e2e::charts;
use pagoda_e2e::cluster::ControlPlane;
use pagoda_e2e::operator_process::{OperatorAccount, OperatorCommand, OperatorProcess};
use pagoda_e2e::progress::Progress;
use pagoda_e2e::sandbox;
use serde_json::json;

use audit::AuditLog;
use stand_in::StandIn;

/// The lease that the chart's role names.
pub const LEASE: &str = "pagoda-operator";
/// Account of the client without an operator.
const BARE: &str = "bench-bare-client";
const LEAD_PATIENCE: Duration = Duration::from_secs(60);

/// Runs `body` inside a sandbox, entering one first when this process is not yet inside.
pub fn inside<F>(cache: &Cache, body: impl FnOnce() -> F) -> Result<ExitCode>
where
    F: Future<Output = Result<ExitCode>>,
{
    if !sandbox::is_inside() {
        ControlPlane::prepare(cache, &Progress::start())?;
        return sandbox::enter();
    }
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(async {
        tokio::select! {
            done = body() => done,
            // The first process of a process namespace has no default action for signals.
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
        }
    })
}

/// The bed. All of it ends with the value.
pub struct Bed {
    /// As administrator.
    pub client: Client,
    pub plane: ControlPlane,
    program: PathBuf,
    _stand_in: StandIn,
}

impl Bed {
    /// Starts everything but the operator.
    pub async fn start(
        cache: &Cache,
        workspace: &Path,
        nodes: usize,
        progress: &Progress,
    ) -> Result<Self> {
        let program = operator_program()?;
        let stand_in = StandIn::start().await?;
        let plane = ControlPlane::start(cache, nodes, progress)?;
        let images = charts::pullable_images("registry.invalid/pagoda", "bench");
        charts::install(
            &plane.target(),
            &workspace.join("charts"),
            &images,
            &[],
            progress,
        )?;
        Ok(Self {
            client: plane.client().await?,
            plane,
            program,
            _stand_in: stand_in,
        })
    }

    /// Starts an operator with a token of its own, by which the audit log tells it from others. Its requests go to
    /// `server` when one is given, otherwise straight to the API server.
    pub async fn operator(&self, identity: &str, server: Option<&str>) -> Result<OperatorProcess> {
        let account =
            OperatorAccount::issue_by(self.client.clone(), &self.plane.kubeconfig()).await?;
        let kubeconfig = self.plane.file(&format!("{identity}.kubeconfig"));
        account.write_kubeconfig(&kubeconfig, server)?;
        OperatorProcess::start(&OperatorCommand {
            program: self.program.clone(),
            kubeconfig,
            identity: identity.to_owned(),
            lease: LEASE.to_owned(),
            namespaces: Vec::new(),
            engine_image: "registry.invalid/pagoda/engine:bench".to_owned(),
            log: self.plane.file(&format!("{identity}.log")),
            arguments: Vec::new(),
            // As the chart runs it.
            environment: vec![("RUST_LOG".to_owned(), "info,kube=warn".to_owned())],
        })
    }

    /// The same, leading.
    pub async fn leading_operator(&self, identity: &str) -> Result<OperatorProcess> {
        let operator = self.operator(identity, None).await?;
        operator.wait_until_leading(LEAD_PATIENCE).await?;
        Ok(operator)
    }

    /// A client that is no administrator, so that the API server's fairness treats it as it treats the operator.
    pub async fn bare_client(&self) -> Result<Client> {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": BARE, "namespace": "default"}});
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": BARE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": BARE, "namespace": "default"}],
        });
        let kubectl = self.plane.kubectl();
        kubectl.apply_text("default", &format!("{account}\n---\n{binding}"))?;
        let token = kubectl.run(&[
            "create",
            "token",
            BARE,
            "--namespace=default",
            "--duration=6h",
        ])?;
        let mut config = serde_json::to_value(Kubeconfig::read_from(self.plane.kubeconfig())?)?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        let options = KubeConfigOptions::default();
        let config =
            kube::Config::from_custom_kubeconfig(serde_json::from_value(config)?, &options).await?;
        Ok(Client::try_from(config)?)
    }

    /// Reads the audit log from its beginning.
    pub fn audit(&self) -> AuditLog {
        AuditLog::at(self.plane.audit_log())
    }

    /// Seconds of processor time that the cluster's own parts have used.
    pub fn cluster_cpu_seconds(&self) -> Vec<(&'static str, f64)> {
        [
            "apiserver",
            "etcd",
            "controller-manager",
            "scheduler",
            "kwok",
        ]
        .into_iter()
        .filter_map(|name| Some((name, self.plane.process(name)?.cpu_time().as_secs_f64())))
        .collect()
    }
}

/// The program that goes into the image, which `./bench` built beside this one.
fn operator_program() -> Result<PathBuf> {
    let beside = std::env::current_exe()
        .context("cannot tell where this program lies")?
        .with_file_name("pagoda-operator");
    ensure!(
        beside.is_file(),
        "there is no {}: run this through ./bench, which builds it",
        beside.display()
    );
    Ok(beside)
}
