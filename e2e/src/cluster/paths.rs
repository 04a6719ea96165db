//! Where the files of one cluster are. Everything but the programs is below one folder, which `down` removes.

use std::path::PathBuf;

use crate::cache::Cache;

/// The files of the cluster `name`.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The cache the cluster lives in.
    pub cache: Cache,
    /// The cluster's name.
    pub name: String,
}

impl Paths {
    pub(super) fn new(cache: Cache, name: &str) -> Self {
        Self {
            cache,
            name: name.to_owned(),
        }
    }

    /// The folder that holds all of it.
    pub fn root(&self) -> PathBuf {
        self.cache.cluster(&self.name)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root().join("kubeconfig")
    }

    /// One log a component.
    pub fn log(&self, component: &str) -> PathBuf {
        self.logs().join(format!("{component}.log"))
    }

    /// The folder of the components' logs; pods' logs are in `pods` below it.
    pub fn logs(&self) -> PathBuf {
        self.root().join("logs")
    }

    /// Where our containerd listens.
    pub fn containerd_socket(&self) -> PathBuf {
        self.run().join("containerd.sock")
    }

    /// One of the programs in the cache.
    pub fn program(&self, name: &str) -> PathBuf {
        self.cache.bin().join(name)
    }

    /// The network namespace of the node, as `ip netns` shows it.
    pub fn netns_name(&self) -> String {
        format!("pagoda-{}", self.name)
    }

    /// The file that holds the node's network namespace.
    pub fn netns_file(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(self.netns_name())
    }

    pub(super) fn state_file(&self) -> PathBuf {
        self.root().join("state.json")
    }

    pub(super) fn host_file(&self) -> PathBuf {
        self.root().join("host.json")
    }

    pub(super) fn lock_file(&self) -> PathBuf {
        self.cache.cluster(&format!("{}.lock", self.name))
    }

    pub(super) fn certificates(&self) -> PathBuf {
        self.root().join("certificates")
    }

    pub(super) fn config(&self, file: &str) -> PathBuf {
        self.root().join("config").join(file)
    }

    pub(super) fn run(&self) -> PathBuf {
        self.root().join("run")
    }

    pub(super) fn data(&self, of: &str) -> PathBuf {
        self.root().join("data").join(of)
    }
}
