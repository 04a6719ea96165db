//! What was started, so that it can be found again, restarted and ended. One JSON file, replaced atomically.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::ComponentStatus;
use super::cgroups::CgroupTree;
use super::paths::Paths;
use crate::process::ProcessIdentity;

/// Raised whenever a cluster made by an older version of this program cannot be taken over.
pub(super) const LAYOUT_VERSION: u32 = 3;

/// A cluster that was created, and perhaps still runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub(super) layout_version: u32,
    /// Which build of the programs made it.
    pub(super) binaries_stamp: String,
    /// The process that keeps the node's namespaces alive.
    pub(super) holder: ProcessIdentity,
    /// Components by name.
    pub(super) processes: BTreeMap<String, ProcessIdentity>,
    pub(super) cgroups: CgroupTree,
}

impl State {
    /// Reads the state; `None` when there is no cluster, or what is there cannot be read any more (then `down` still
    /// finds its processes by their namespace and cgroup).
    pub fn load(paths: &Paths) -> Result<Option<Self>> {
        let file = paths.state_file();
        match fs::read(&file) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    pub(super) fn save(&self, paths: &Paths) -> Result<()> {
        let file = paths.state_file();
        let fresh = file.with_extension("json.new");
        fs::write(&fresh, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&fresh, &file))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Whether starting what is missing is enough: the node's namespaces are still there, and it was made by this version.
    pub(super) fn can_be_resumed(&self, paths: &Paths, binaries_stamp: &str) -> bool {
        self.layout_version == LAYOUT_VERSION
            && self.binaries_stamp == binaries_stamp
            && self.holder.is_alive()
            && paths.netns_file().exists()
    }

    /// Whether the component `name` runs.
    pub(super) fn is_running(&self, name: &str) -> bool {
        self.processes
            .get(name)
            .is_some_and(|process| process.is_alive())
    }

    /// The process of the component `name`, if it runs.
    pub fn process(&self, name: &str) -> Option<ProcessIdentity> {
        self.processes
            .get(name)
            .copied()
            .filter(|process| process.is_alive())
    }

    pub(super) fn component_status(&self) -> Vec<ComponentStatus> {
        let status = |(name, process): (&String, &ProcessIdentity)| {
            let alive = Some(process).filter(|process| process.is_alive());
            ComponentStatus {
                name: name.clone(),
                pid: alive.map(|process| process.pid),
                resident_bytes: alive.map_or(0, |process| process.resident_bytes()),
            }
        };
        self.processes.iter().map(status).collect()
    }
}
