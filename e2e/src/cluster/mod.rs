//! A real Kubernetes on one machine: kube-apiserver, controller-manager, scheduler, kubelet, kube-proxy and etcd, with
//! containerd and runc, in one network namespace and one mount namespace that hold the node.
//!
//! What is where, and why: `e2e/cluster/README.md`.

mod binaries;
mod certificates;
mod cgroups;
mod components;
mod configuration;
mod containerd;
mod control_plane;
mod host;
mod network;
mod node;
mod paths;
mod prerequisites;
mod state;
mod teardown;

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache::Cache;
use crate::charts;
use crate::kubectl::Kubectl;
use crate::progress::Progress;

pub use containerd::Containerd;
pub use control_plane::ControlPlane;
pub use network::{HOST_ADDRESS, NODE_ADDRESS};
pub use paths::Paths;
pub use state::State;

/// The cluster that `./demo` and `./test` share.
pub const DEFAULT_NAME: &str = "local";
/// The only node of a local cluster.
pub const NODE_NAME: &str = "pagoda";

/// How long a node that has just been started may take until pods can be scheduled to it.
const READY_TIMEOUT: Duration = Duration::from_mins(2);

/// The local cluster called `name`, running or not.
#[derive(Debug, Clone)]
pub struct Cluster {
    paths: Paths,
}

/// What `cluster status` shows of one component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentStatus {
    /// `etcd`, `apiserver`, ...
    pub name: String,
    /// Its process, when it runs.
    pub pid: Option<i32>,
    /// Resident memory.
    pub resident_bytes: u64,
}

impl Cluster {
    /// Names a cluster; starts nothing. `name` is at most 8 lower-case letters, digits and dashes, because network
    /// interfaces are called after it.
    pub fn named(cache: Cache, name: &str) -> Result<Self> {
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 8 || !name.chars().all(valid) || name.starts_with('-') {
            bail!(
                "cluster name {name:?} cannot be used: give 1 to 8 lower-case letters, digits or dashes"
            );
        }
        Ok(Self {
            paths: Paths::new(cache, name),
        })
    }

    /// The cluster that `./demo` and `./test` share, in the cache that the environment names.
    pub fn local() -> Result<Self> {
        Self::named(Cache::from_env()?, DEFAULT_NAME)
    }

    /// Where this cluster keeps its files.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// kubectl with this cluster's administrator kubeconfig.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::with_kubeconfig(self.paths.program("kubectl"), &self.paths.kubeconfig())
    }

    /// A client with this cluster's administrator kubeconfig. Neither KUBECONFIG nor the user's current context is looked at.
    pub async fn client(&self) -> Result<kube::Client> {
        // One crypto provider a process; a second call finds the first one's, which is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let kubeconfig = kube::config::Kubeconfig::read_from(self.paths.kubeconfig())?;
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        Ok(kube::Client::try_from(config)?)
    }

    /// This cluster's own containerd.
    pub fn containerd(&self) -> Containerd {
        Containerd::at(self.paths.containerd_socket())
    }

    /// Makes the cluster run: does nothing when it does, restarts what has died, creates it where there is none, and
    /// creates it anew when its node is gone (a reboot) or it was made by another version of this program. Idempotent.
    ///
    /// Fails with what to do or which log to read.
    pub fn up(&self, progress: &Progress) -> Result<()> {
        let _lock = self.lock()?;
        require_root()?;
        prerequisites::ensure(&self.paths, progress)?;
        let stamp = binaries::ensure(&self.paths.cache, progress)?;
        let mut state = match State::load(&self.paths)? {
            Some(state) if state.can_be_resumed(&self.paths, &stamp) => state,
            found => {
                self.clear(found.as_ref(), progress)?;
                node::create(&self.paths, &stamp, progress)?
            }
        };
        let started = components::start_missing(&self.paths, &mut state, progress)?;
        if started > 0 {
            progress.step(format!(
                "node {NODE_NAME} is Ready; KUBECONFIG={}",
                self.paths.kubeconfig().display()
            ));
        }
        Ok(())
    }

    /// Builds the programs a cluster is made of, kubectl and helm among them, and returns the folder they are in.
    pub fn programs(&self, progress: &Progress) -> Result<PathBuf> {
        let _lock = self.lock()?;
        binaries::ensure(&self.paths.cache, progress)?;
        Ok(self.paths.cache.bin())
    }

    /// Ends everything [`Cluster::up`] started, pods included, and removes every trace of it but the programs built.
    /// A cluster that does not run is no error.
    pub fn down(&self, progress: &Progress) -> Result<()> {
        let _lock = self.lock()?;
        require_root()?;
        teardown::tear_down(&self.paths, State::load(&self.paths)?.as_ref(), progress)
    }

    /// Each component with its process; empty when there is no cluster.
    pub fn status(&self) -> Result<Vec<ComponentStatus>> {
        let Some(state) = State::load(&self.paths)? else {
            return Ok(Vec::new());
        };
        Ok(state.component_status())
    }

    /// Where the gateway takes OpenAI requests, such as `http://198.19.0.17:80`: the host reaches service addresses. Fails,
    /// saying what to run, when the cluster is down or has no gateway.
    pub fn gateway_url(&self) -> Result<String> {
        charts::gateway_url(&self.kubectl())
    }

    /// Shell lines that point kubectl and helm at this cluster.
    pub fn environment(&self) -> String {
        let kubeconfig = self.paths.kubeconfig();
        let bin = self.paths.cache.bin();
        format!(
            "export KUBECONFIG='{}'\nexport PATH='{}':\"$PATH\"\nexport NO_PROXY=\"198.18.0.0/15${{NO_PROXY:+,$NO_PROXY}}\"\nexport no_proxy=\"$NO_PROXY\"\n",
            kubeconfig.display(),
            bin.display()
        )
    }

    fn clear(&self, found: Option<&State>, progress: &Progress) -> Result<()> {
        if found.is_some() {
            progress.step(
                "the cluster found here is incomplete or of another version: removing it first",
            );
        }
        teardown::tear_down(&self.paths, found, progress)
    }

    /// One `up` or `down` at a time; the lock goes with the returned file.
    fn lock(&self) -> Result<File> {
        let path = self.paths.lock_file();
        fs::create_dir_all(self.paths.cache.cluster("")).context("cannot make the cache folder")?;
        let file =
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        file.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }
}

fn require_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "a local cluster needs root (network namespaces, cgroups, mounts): run this as root, or use a cluster of yours with --context NAME"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_name_that_cannot_become_an_interface_name() {
        for name in ["", "ninechars", "Upper", "a b", "-x", "../x"] {
            assert!(
                Cluster::named(Cache::at("/nowhere"), name).is_err(),
                "{name:?}"
            );
        }
        assert!(Cluster::named(Cache::at("/nowhere"), "local").is_ok());
    }

    #[test]
    fn the_environment_names_the_kubeconfig_and_puts_our_programs_first() {
        let text = Cluster::named(Cache::at("/c"), "local")
            .unwrap()
            .environment();
        assert!(text.contains("export KUBECONFIG='/c/cluster/local/kubeconfig'"));
        assert!(text.contains("export PATH='/c/bin':\"$PATH\""));
    }
}
