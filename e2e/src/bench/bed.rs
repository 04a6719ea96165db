//! What measuring and chaos stand on: a control plane of one's own with fake nodes, the charts in it, the operator and a
//! gateway as processes beside this one, and a stand-in for all pods.

pub mod audit;
pub mod services;
pub mod stand_in;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use pagoda_e2e::cache::Cache;
use pagoda_e2e::charts::{self, SYSTEM_NAMESPACE};
use pagoda_e2e::cluster::ControlPlane;
use pagoda_e2e::operator_process::{OperatorAccount, OperatorCommand, OperatorProcess};
use pagoda_e2e::progress::Progress;
use pagoda_e2e::sandbox;
use pagoda_e2e::sources::Sources;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use audit::AuditLog;
use stand_in::StandIn;

/// The lease that the chart's role names.
pub const LEASE: &str = "pagoda-operator";
const GATEWAY: &str = "pagoda-gateway";
/// Account of the client without an operator.
const BARE: &str = "bench-bare-client";
const LEAD_PATIENCE: Duration = Duration::from_mins(1);

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
        // The first process of a process namespace has no default action for signals.
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            done = body() => done,
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
            _ = terminate.recv() => Ok(ExitCode::from(143)),
        }
    })
}

/// The bed. All of it ends with the value.
pub struct Bed {
    /// As administrator.
    pub client: Client,
    pub plane: ControlPlane,
    program: PathBuf,
    /// Neither is there where [`Sources`] stand for gateways and pods.
    _gateway: Option<Gateway>,
    _stand_in: Option<StandIn>,
}

/// The gateway, at the addresses of the chart's fake gateway pods. Killed when dropped.
struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Bed {
    /// Starts everything but the operator.
    pub async fn start(
        cache: &Cache,
        workspace: &Path,
        nodes: usize,
        progress: &Progress,
    ) -> Result<Self> {
        let gateway = program("pagoda-gateway")?;
        let stand_in = StandIn::start().await?;
        let bed = Self::install(cache, workspace, nodes, &[], progress).await?;
        Ok(Self {
            _gateway: Some(start_gateway(&bed.plane, &gateway)?),
            _stand_in: Some(stand_in),
            ..bed
        })
    }

    /// The same with one gateway and pods whose load is set. `settings` are further `KEY=VALUE` for the chart.
    pub async fn start_with_sources(
        cache: &Cache,
        workspace: &Path,
        nodes: usize,
        settings: &[String],
        progress: &Progress,
    ) -> Result<(Self, Sources)> {
        let mut sources = Sources::start(&program("pagoda-engine")?).await?;
        let one = "gateway.replicas=1".to_owned();
        let settings: Vec<String> = std::iter::once(one).chain(settings.to_vec()).collect();
        let bed = Self::install(cache, workspace, nodes, &settings, progress).await?;
        sources.follow(bed.client.clone());
        Ok((bed, sources))
    }

    async fn install(
        cache: &Cache,
        workspace: &Path,
        nodes: usize,
        settings: &[String],
        progress: &Progress,
    ) -> Result<Self> {
        let program = program("pagoda-operator")?;
        let plane = ControlPlane::start(cache, nodes, progress)?;
        let images = charts::pullable_images("registry.invalid/pagoda", "bench");
        charts::install(
            &plane.target(),
            &workspace.join("charts"),
            &images,
            settings,
            progress,
        )?;
        Ok(Self {
            client: plane.client().await?,
            plane,
            program,
            _gateway: None,
            _stand_in: None,
        })
    }

    /// Starts an operator with a token of its own, by which the audit log tells it from others. Its requests go to
    /// `server` when one is given, otherwise straight to the API server.
    pub async fn operator(&self, identity: &str, server: Option<&str>) -> Result<OperatorProcess> {
        self.operator_with(identity, server, &[]).await
    }

    async fn operator_with(
        &self,
        identity: &str,
        server: Option<&str>,
        flags: &[&str],
    ) -> Result<OperatorProcess> {
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
            arguments: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            // As the chart runs it.
            environment: vec![("RUST_LOG".to_owned(), "info,kube=warn".to_owned())],
        })
    }

    /// The same, leading.
    pub async fn leading_operator(&self, identity: &str) -> Result<OperatorProcess> {
        self.leading_operator_with(identity, &[]).await
    }

    /// The same with further flags.
    pub async fn leading_operator_with(
        &self,
        identity: &str,
        flags: &[&str],
    ) -> Result<OperatorProcess> {
        let operator = self.operator_with(identity, None, flags).await?;
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
        let options = KubeConfigOptions::default();
        let kubeconfig = serde_json::from_value(kubeconfig_of(&self.plane, "default", BARE)?)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
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

/// A kubeconfig with a token of a service account, as JSON: a `Kubeconfig` hides its token when it is written.
fn kubeconfig_of(plane: &ControlPlane, namespace: &str, account: &str) -> Result<Value> {
    let words = [
        "create",
        "token",
        account,
        "--namespace",
        namespace,
        "--duration=6h",
    ];
    let token = plane.kubectl().run(&words)?;
    let mut config = serde_json::to_value(Kubeconfig::read_from(plane.kubeconfig())?)?;
    config["users"][0]["user"] = json!({"token": token.trim()});
    Ok(config)
}

fn start_gateway(plane: &ControlPlane, program: &Path) -> Result<Gateway> {
    let config = kubeconfig_of(plane, SYSTEM_NAMESPACE, GATEWAY)?;
    let file = plane.file("gateway.kubeconfig");
    fs::write(&file, config.to_string())?;
    let log = File::create(plane.file("gateway.log"))?;
    let child = Command::new(program)
        .env_clear()
        .env("KUBECONFIG", file)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok(Gateway(child))
}

/// A program that goes into an image, which `./bench` built beside this one.
fn program(name: &str) -> Result<PathBuf> {
    let beside = std::env::current_exe()
        .context("cannot tell where this program lies")?
        .with_file_name(name);
    ensure!(
        beside.is_file(),
        "there is no {}: run this through ./bench, which builds it",
        beside.display()
    );
    Ok(beside)
}
