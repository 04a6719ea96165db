//! A control plane without a real node: etcd, kube-apiserver, controller-manager and scheduler, and kwok, which plays the
//! kubelets of nodes whose pods are ready at once. For thousands of services, and for faults that nobody else may suffer.
//!
//! Runs in the caller's own namespaces (see [`crate::sandbox`]) as the caller's children, so it needs no lock, no root of
//! its own and no tear-down, and several may run at a time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::network::NODE_ADDRESS;
use super::paths::Paths;
use super::{READY_TIMEOUT, binaries, certificates, components};
use crate::cache::Cache;
use crate::charts::Target;
use crate::kubectl::Kubectl;
use crate::process::ProcessIdentity;
use crate::progress::Progress;
use crate::sandbox;

/// Thousands of services need more than the local cluster's 254 addresses.
const SERVICE_RANGE: &str = "198.19.0.0/16";
/// As many pods as one /24 has addresses for.
const PODS_PER_NODE: usize = 250;
const LARGEST_NODES: usize = 100;
/// Runs at a time.
const SLOTS: usize = 8;
const POLL: Duration = Duration::from_millis(50);

/// What kwok does to nodes and pods.
const STAGES: &str = include_str!("../../cluster/kwok.yaml");

/// Writes are recorded with who did them; what was in them only for leases, whose holder tells who leads.
const AUDIT_POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - level: None
    verbs: [get, list, watch]
  - level: None
    userGroups: ["system:nodes"]
  - level: None
    users: ["system:kube-controller-manager", "system:kube-scheduler", "system:apiserver", "pagoda-admin"]
  - level: None
    userGroups: ["system:serviceaccounts:kube-system"]
  - level: Request
    resources: [{group: coordination.k8s.io, resources: [leases]}]
  - level: Metadata
"#;

/// A running control plane. Ends with the value, and its files with it.
#[derive(Debug)]
pub struct ControlPlane {
    paths: Paths,
    children: BTreeMap<&'static str, Child>,
    /// Further flags, each with the component that gets it.
    flags: Vec<(&'static str, String)>,
    /// Holds the folder for as long as it is in use.
    _lock: File,
}

impl ControlPlane {
    /// Builds the programs that are not there yet. Needs the network, so it comes before [`sandbox::enter`].
    pub fn prepare(cache: &Cache, progress: &Progress) -> Result<()> {
        binaries::ensure(cache, progress)?;
        binaries::ensure_kwok(cache, progress)
    }

    /// Starts one with `nodes` fake nodes (at most 100) of 250 pods each, and waits until it takes pods.
    pub fn start(cache: &Cache, nodes: usize, progress: &Progress) -> Result<Self> {
        Self::start_with_flags(cache, nodes, Vec::new(), progress)
    }

    /// The same with further flags, such as `("controller-manager", "--v=4")`, after all others.
    pub fn start_with_flags(
        cache: &Cache,
        nodes: usize,
        flags: Vec<(&'static str, String)>,
        progress: &Progress,
    ) -> Result<Self> {
        if !sandbox::is_inside() {
            bail!("a control plane of one's own runs only inside a sandbox");
        }
        if nodes > LARGEST_NODES {
            bail!(
                "{nodes} fake nodes are more than there are pod addresses for: at most {LARGEST_NODES}"
            );
        }
        let (paths, lock) = free_slot(cache)?;
        let mut plane = Self {
            paths,
            children: BTreeMap::new(),
            flags,
            _lock: lock,
        };
        plane.write_files()?;
        for name in ["etcd", "apiserver"] {
            plane.spawn(name)?;
        }
        plane.wait_for_api()?;
        for name in ["controller-manager", "scheduler", "kwok"] {
            plane.spawn(name)?;
        }
        plane.add_nodes(nodes)?;
        progress.step(format!(
            "a control plane with {nodes} fake nodes runs: API server, etcd, controller-manager, scheduler, kwok"
        ));
        Ok(plane)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.paths.kubeconfig()
    }

    /// A client with the administrator's kubeconfig.
    pub async fn client(&self) -> Result<kube::Client> {
        // One crypto provider a process; a second call finds the first one's, which is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kubeconfig = kube::config::Kubeconfig::read_from(self.kubeconfig())?;
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        Ok(kube::Client::try_from(config)?)
    }

    /// helm and kubectl as administrator.
    pub fn target(&self) -> Target {
        Target::with_kubeconfig(self.program("helm"), &self.kubeconfig(), self.kubectl())
    }

    /// The process of a component that runs.
    pub fn process(&self, name: &str) -> Option<ProcessIdentity> {
        ProcessIdentity::observe(self.children.get(name)?.id().cast_signed())
    }

    /// kubectl as administrator.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::with_kubeconfig(self.paths.program("kubectl"), &self.paths.kubeconfig())
    }

    /// One of the programs that were built.
    pub fn program(&self, name: &str) -> PathBuf {
        self.paths.program(name)
    }

    /// A file for whoever uses this control plane, below its own folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.paths.root().join(name)
    }

    /// Every write but the cluster's own parts', one JSON event a line.
    pub fn audit_log(&self) -> PathBuf {
        self.paths.log("audit")
    }

    /// Ends the component `name` as a power cut would. One that does not run is no error.
    pub fn kill(&mut self, name: &str) -> Result<()> {
        if let Some(mut child) = self.children.remove(name) {
            child.kill().ok();
            child.wait()?;
        }
        Ok(())
    }

    /// Starts a component that was killed, and waits for it when it is the API server.
    pub fn restart(&mut self, name: &'static str) -> Result<()> {
        self.kill(name)?;
        self.spawn(name)?;
        if name == "apiserver" {
            self.wait_for_api()?;
        }
        Ok(())
    }

    /// Adds the fake nodes `node-0` up to `count`, those that are there stay, and waits until all are ready.
    pub fn add_nodes(&mut self, count: usize) -> Result<()> {
        let list = json!({
            "apiVersion": "v1",
            "kind": "List",
            "items": (0..count).map(node).collect::<Vec<_>>(),
        });
        let kubectl = self.kubectl();
        kubectl.apply_text("default", &list.to_string())?;
        self.wait("the fake nodes", || {
            let query = "jsonpath={range .items[*]}{.status.conditions[?(@.type==\"Ready\")].status}{.spec.taints[*].key}{\"\\n\"}{end}";
            let answer = kubectl.run(&["get", "nodes", "--output", query]);
            answer.is_ok_and(|answer| {
                answer.lines().filter(|line| *line == "True").count() >= count
            })
        })
    }

    fn write_files(&self) -> Result<()> {
        let root = self.paths.root();
        for folder in [
            self.paths.logs(),
            self.paths.data("etcd"),
            root.join("config"),
        ] {
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let admin = certificates::write_all(&self.paths.certificates())?;
        fs::copy(admin, self.paths.kubeconfig())?;
        fs::write(self.paths.config("kwok.yaml"), STAGES)?;
        Ok(fs::write(
            self.paths.config("audit-policy.yaml"),
            AUDIT_POLICY,
        )?)
    }

    fn spawn(&mut self, name: &'static str) -> Result<()> {
        let words = self.command(name)?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.paths.log(name))?;
        let child = Command::new(&words[0])
            .args(&words[1..])
            .env_clear()
            .env("PATH", components::SYSTEM_PATH)
            .env("HOME", self.paths.root())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        self.children.insert(name, child);
        Ok(())
    }

    /// The local cluster's flags, and after them those that differ at scale.
    fn command(&self, name: &str) -> Result<Vec<String>> {
        if name == "kwok" {
            return Ok(self.kwok());
        }
        let mut words = components::command(&self.paths, name)?;
        let further = match name {
            "apiserver" => vec![
                format!("--service-cluster-ip-range={SERVICE_RANGE}"),
                format!("--audit-log-path={}", self.audit_log().display()),
                format!(
                    "--audit-policy-file={}",
                    self.paths.config("audit-policy.yaml").display()
                ),
                "--audit-log-maxsize=100000".to_owned(),
                "--bind-address=198.18.0.2".to_owned(),
            ],
            // The cluster's own controllers must not be what is measured.
            "controller-manager" => vec![
                "--kube-api-qps=5000".to_owned(),
                "--kube-api-burst=10000".to_owned(),
                // A fake kubelet that is late on a busy machine is no failed node; one that is deleted is.
                "--node-monitor-grace-period=1h".to_owned(),
                "--concurrent-gc-syncs=40".to_owned(),
                "--concurrent-deployment-syncs=20".to_owned(),
                "--concurrent-replicaset-syncs=20".to_owned(),
                "--concurrent-service-endpoint-syncs=20".to_owned(),
            ],
            "scheduler" => vec![
                "--kube-api-qps=5000".to_owned(),
                "--kube-api-burst=10000".to_owned(),
            ],
            _ => Vec::new(),
        };
        words.extend(further);
        let own = self
            .flags
            .iter()
            .filter(|(component, _)| *component == name);
        words.extend(own.map(|(_, flag)| flag.clone()));
        Ok(words)
    }

    fn kwok(&self) -> Vec<String> {
        vec![
            self.paths.program("kwok").display().to_string(),
            format!("--kubeconfig={}", self.paths.kubeconfig().display()),
            format!("--config={}", self.paths.config("kwok.yaml").display()),
            "--manage-all-nodes=true".to_owned(),
            "--node-lease-duration-seconds=40".to_owned(),
            "--server-address=127.0.0.1:10247".to_owned(),
        ]
    }

    fn wait_for_api(&mut self) -> Result<()> {
        let kubectl = self.kubectl();
        let namespaces = ["get", "namespace", "default", "kube-system"];
        self.wait("the API server", || {
            // The connection is tried first because it costs nothing; kubectl takes a tenth of a second to start.
            TcpStream::connect_timeout(&api_address(), POLL).is_ok()
                && kubectl.run(&["get", "--raw", "/readyz"]).is_ok()
                && kubectl.run(&namespaces).is_ok()
        })
    }

    fn wait(&mut self, what: &str, is_ready: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while !is_ready() {
            self.fail_when_ended()?;
            if Instant::now() > deadline {
                bail!("{what}: not ready after {} s", READY_TIMEOUT.as_secs());
            }
            sleep(POLL);
        }
        Ok(())
    }

    fn fail_when_ended(&mut self) -> Result<()> {
        for (name, child) in &mut self.children {
            if let Some(status) = child.try_wait()? {
                let log = self.paths.log(name);
                let text = fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(15)..].join("\n");
                bail!("{name} ended ({status}); its last words:\n{tail}");
            }
        }
        Ok(())
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            child.kill().ok();
            child.wait().ok();
        }
        fs::remove_dir_all(self.paths.root()).ok();
    }
}

fn api_address() -> SocketAddr {
    SocketAddr::from((NODE_ADDRESS, 6443))
}

/// A folder that no other run uses, emptied: a run that was killed leaves its files, not its lock.
fn free_slot(cache: &Cache) -> Result<(Paths, File)> {
    fs::create_dir_all(cache.cluster("")).context("cannot make the cache folder")?;
    for slot in 0..SLOTS {
        let paths = Paths::new(cache.clone(), &format!("plane-{slot}"));
        let lock = File::create(paths.lock_file())?;
        if lock.try_lock().is_ok() {
            fs::remove_dir_all(paths.root()).ok();
            fs::create_dir_all(paths.root())?;
            return Ok((paths, lock));
        }
    }
    bail!("{SLOTS} control planes run already: wait until one of them ends")
}

fn node(index: usize) -> Value {
    let room = json!({"cpu": "1000", "memory": "4000Gi", "pods": PODS_PER_NODE.to_string()});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": format!("node-{index}"),
            "labels": {"kubernetes.io/hostname": format!("node-{index}"), "kubernetes.io/os": "linux"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"podCIDR": format!("198.18.{}.0/24", 128 + index)},
        "status": {"allocatable": room, "capacity": room},
    })
}
