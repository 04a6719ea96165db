//! The operator as a process of this machine, with the account it has in the cluster and no more: the tests of faults and
//! the benchmarks start it, measure it, stop it in mid-work and end it.
//!
//! It reaches pods and gateways as it does in the cluster, because the local cluster's pod network has a route from the host.
//! The operator that the chart installed must rest meanwhile ([`rest_installed`]), or two look after the same services.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::Kubeconfig;
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::json;

use crate::charts::SYSTEM_NAMESPACE;
use crate::cluster::Cluster;
use crate::process::ProcessIdentity;

/// The chart's Deployment, service account and Lease.
const OPERATOR: &str = "pagoda-operator";
const LEASE_ROLE: &str = "pagoda-e2e-leases";
const TOKEN_SECONDS: i64 = 6 * 3600;
const POLL: Duration = Duration::from_millis(100);

/// Leave to act as the installed operator's service account.
#[derive(Clone)]
pub struct OperatorAccount {
    token: String,
    server: String,
    /// PEM, base64.
    authority: String,
}

impl OperatorAccount {
    /// A token for the chart's service account, valid for six hours. The account has the rights that the chart gives it.
    pub async fn issue(cluster: &Cluster) -> Result<Self> {
        Self::issue_by(cluster.client().await?, &cluster.paths().kubeconfig()).await
    }

    /// The same, asked by a `client` of the administrator whose kubeconfig tells where the cluster is.
    pub async fn issue_by(client: Client, kubeconfig: &Path) -> Result<Self> {
        let api: Api<ServiceAccount> = Api::namespaced(client, SYSTEM_NAMESPACE);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let issued = api
            .create_token_request(OPERATOR, &PostParams::default(), &request)
            .await
            .context("the operator has no account: run `pagoda-e2e install-charts` first")?;
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let place = kubeconfig
            .clusters
            .into_iter()
            .find_map(|named| named.cluster);
        let place = place.context("the kubeconfig names no cluster")?;
        Ok(Self {
            token: issued
                .status
                .context("a token request without an answer")?
                .token,
            server: place.server.context("the cluster has no address")?,
            authority: place
                .certificate_authority_data
                .context("the cluster's authority is not in its kubeconfig")?,
        })
    }

    /// Writes a kubeconfig of this account, readable by its owner alone. With `server` (such as `http://127.0.0.1:4711`, a
    /// [fault proxy](crate::faults::FaultProxy)) requests go there instead of to the API server.
    pub fn write_kubeconfig(&self, file: &Path, server: Option<&str>) -> Result<()> {
        let cluster = match server {
            Some(server) => json!({"server": server}),
            None => json!({"server": self.server, "certificate-authority-data": self.authority}),
        };
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": OPERATOR, "user": {"token": self.token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": OPERATOR}}],
            "current-context": "local",
        });
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true).mode(0o600);
        options
            .open(file)
            .and_then(|mut file| file.write_all(kubeconfig.to_string().as_bytes()))
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

/// How to start an operator.
#[derive(Debug, Clone)]
pub struct OperatorCommand {
    /// The program: a debug build for tests, a release build for figures.
    pub program: PathBuf,
    /// Of an [`OperatorAccount`].
    pub kubeconfig: PathBuf,
    /// Its name in the Lease.
    pub identity: String,
    /// Lease in the system namespace. One other than the chart's needs [`allow_leases`].
    pub lease: String,
    /// Namespaces it looks after; empty for all.
    pub namespaces: Vec<String>,
    /// Image of the engine with its tag.
    pub engine_image: String,
    /// Its log, JSON lines; appended to.
    pub log: PathBuf,
    /// Further flags.
    pub arguments: Vec<String>,
    /// Further environment variables.
    pub environment: Vec<(String, String)>,
}

impl OperatorCommand {
    fn command(&self, admin: SocketAddr) -> Result<Command> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("cannot open {}", self.log.display()))?;
        let mut command = Command::new(&self.program);
        command
            .args([
                format!("--engine-image={}", self.engine_image),
                format!("--lease-name={}", self.lease),
                format!("--identity={}", self.identity),
                format!("--listen={admin}"),
            ])
            .args(&self.arguments)
            .env_clear()
            .env("KUBECONFIG", &self.kubeconfig)
            .env("RUST_LOG", "info,pagoda_operator=debug,kube=warn")
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if !self.namespaces.is_empty() {
            command.arg(format!("--watch-namespaces={}", self.namespaces.join(",")));
        }
        command.envs(self.environment.iter().cloned());
        Ok(command)
    }
}

/// An operator that runs on this machine; killed when dropped.
#[derive(Debug)]
pub struct OperatorProcess {
    child: Mutex<Child>,
    identity: ProcessIdentity,
    admin: SocketAddr,
    log: PathBuf,
    http: reqwest::Client,
}

impl OperatorProcess {
    /// Starts the program; it leads later, see [`Self::wait_until_leading`].
    pub fn start(command: &OperatorCommand) -> Result<Self> {
        let admin = free_loopback_address()?;
        let child = command.command(admin)?.spawn().with_context(|| {
            format!(
                "cannot start {}: build it with `cargo build --workspace --bin pagoda-operator`",
                command.program.display()
            )
        })?;
        let pid = child.id().cast_signed();
        Ok(Self {
            identity: ProcessIdentity::observe(pid).context("the operator ended at once")?,
            child: Mutex::new(child),
            admin,
            log: command.log.clone(),
            http: reqwest::Client::builder()
                .no_proxy()
                .timeout(Duration::from_secs(5))
                .build()
                .context("failed to build the HTTP client")?,
        })
    }

    /// The process.
    pub fn identity(&self) -> ProcessIdentity {
        self.identity
    }

    /// Where it tells its health and metrics.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Its log as far as it is written.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends SIGTERM, SIGKILL, SIGSTOP, SIGCONT, ... to it and to no other.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.identity.signal(signal)
    }

    /// Resident memory in bytes; 0 when it has ended.
    pub fn resident_bytes(&self) -> u64 {
        self.identity.resident_bytes()
    }

    /// Processor time it has used, user and system together.
    pub fn cpu_time(&self) -> Duration {
        self.identity.cpu_time()
    }

    /// How it ended; `None` while it runs.
    pub fn exit_status(&self) -> Result<Option<ExitStatus>> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(child.try_wait()?)
    }

    /// Waits until it ends by itself or by a signal.
    pub async fn wait_for_exit(&self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            ensure!(
                Instant::now() < deadline,
                "the operator still runs after {} s; its log ends\n{}",
                limit.as_secs(),
                self.log_tail()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// SIGTERM, and SIGKILL after ten seconds; how it ended.
    pub async fn stop(&self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        if let Ok(status) = self.wait_for_exit(Duration::from_secs(10)).await {
            return Ok(status);
        }
        self.signal(Signal::KILL)?;
        self.wait_for_exit(Duration::from_secs(5)).await
    }

    /// Answer of one of its admin paths, such as `/healthz`: status and text.
    pub async fn ask(&self, path: &str) -> Result<(u16, String)> {
        let response = self
            .http
            .get(format!("http://{}{path}", self.admin))
            .send()
            .await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// All its metrics as text.
    pub async fn metrics(&self) -> Result<String> {
        Ok(self.ask("/metrics").await?.1)
    }

    /// One metric summed over its labels; 0 when there is no such series yet.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        sum_of(&self.metrics().await?, name)
    }

    /// Waits until it holds the lease and has read the cluster.
    pub async fn wait_until_leading(&self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exit_status()? {
                bail!(
                    "the operator ended ({status}); its log ends\n{}",
                    self.log_tail()
                );
            }
            let leads = self
                .metric("pagoda_operator_leader")
                .await
                .unwrap_or_default()
                > 0.0;
            if leads
                && self
                    .ask("/readyz")
                    .await
                    .is_ok_and(|(status, _)| status == 200)
            {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "the operator does not lead after {} s; its log ends\n{}",
                limit.as_secs(),
                self.log_tail()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        // One that ended already is no error; one that is stopped ends by SIGKILL all the same.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The kernel gives such ports from another half of its range than those of outgoing connections, so that nobody takes it
/// before the operator does.
fn free_loopback_address() -> Result<SocketAddr> {
    let listener =
        TcpListener::bind(("127.0.0.1", 0)).context("no free port on the loopback interface")?;
    Ok(listener.local_addr()?)
}

/// The sum over all series of the metric `name` in an OpenMetrics or Prometheus text.
fn sum_of(text: &str, name: &str) -> Result<f64> {
    let series = text
        .lines()
        .filter(|line| line.split(['{', ' ']).next() == Some(name));
    let values = series.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>());
    values
        .sum::<Result<f64, _>>()
        .with_context(|| format!("{name} has a value that is no number"))
}

/// Lets the operator's account use any Lease of the system namespace, not only the chart's, so that several operators can
/// run beside one another. Undone by [`forbid_leases`].
pub async fn allow_leases(client: &Client) -> Result<()> {
    let parameters = PatchParams::apply("e2e").force();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": LEASE_ROLE},
        "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": LEASE_ROLE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": LEASE_ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": SYSTEM_NAMESPACE}],
    });
    let roles: Api<Role> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    roles
        .patch(LEASE_ROLE, &parameters, &Patch::Apply(&role))
        .await?;
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    bindings
        .patch(LEASE_ROLE, &parameters, &Patch::Apply(&binding))
        .await?;
    Ok(())
}

/// Takes back what [`allow_leases`] gave.
pub async fn forbid_leases(client: &Client) -> Result<()> {
    let roles: Api<Role> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    bindings
        .delete(LEASE_ROLE, &DeleteParams::default())
        .await?;
    roles.delete(LEASE_ROLE, &DeleteParams::default()).await?;
    Ok(())
}

/// Environment variables that add what `file` says, such as `+600` or `-600` seconds, to the wall clock of a program that is
/// dynamically linked, as debug builds are; read anew at each look. The clock that only ever goes on stays as it is.
pub fn fake_clock(file: &Path) -> Result<Vec<(String, String)>> {
    // Debian keeps it in a folder of the architecture.
    let folders = fs::read_dir("/usr/lib")?.flatten();
    let library = folders
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .find(|file| file.exists())
        .context("libfaketime is missing: install it with `apt-get install libfaketime`")?;
    let settings = [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    Ok(settings
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec())
}

/// The debug build of the operator beside the running test or benchmark.
pub fn debug_program() -> Result<PathBuf> {
    crate::process::debug_program(OPERATOR)
}

/// Makes the folder for the logs and kubeconfigs of operators that run outside, below the cluster's own folder.
pub fn scratch_folder(cluster: &Cluster, name: &str) -> Result<PathBuf> {
    let folder = cluster.paths().root().join("operators").join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // An earlier run's log would be taken for this one's.
    for entry in fs::read_dir(&folder)?.flatten() {
        if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "log")
        {
            File::create(entry.path())?;
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_mixed_with_a_longer_name() {
        let text = "# HELP a x\na_total{k=\"1\"} 2\na_total{k=\"2\"} 3.5\na_total_more 100\nb 1\n";
        assert!((sum_of(text, "a_total").unwrap() - 5.5).abs() < 1e-9);
        assert!(sum_of(text, "absent").unwrap().abs() < 1e-9);
        assert!(sum_of("a many\n", "a").is_err());
    }

    #[test]
    fn a_kubeconfig_is_readable_by_its_owner_alone_and_trusts_nobody_else_through_the_proxy() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        let account = OperatorAccount {
            token: "t".to_owned(),
            server: "https://198.18.0.2:6443".to_owned(),
            authority: "QUJD".to_owned(),
        };
        account.write_kubeconfig(&file, None).unwrap();
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let direct = Kubeconfig::read_from(&file).unwrap();
        let place = direct.clusters[0].cluster.clone().unwrap();
        assert_eq!(place.certificate_authority_data.as_deref(), Some("QUJD"));
        account
            .write_kubeconfig(&file, Some("http://127.0.0.1:1"))
            .unwrap();
        let proxied = Kubeconfig::read_from(&file).unwrap();
        let place = proxied.clusters[0].cluster.clone().unwrap();
        assert_eq!(place.server.as_deref(), Some("http://127.0.0.1:1"));
        assert!(place.certificate_authority_data.is_none());
    }
}
