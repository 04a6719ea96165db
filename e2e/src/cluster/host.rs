//! What a cluster changes on the host outside its own folder, written down before it is changed, so that `down` restores
//! it even when `up` was interrupted.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::network::FORWARD_SWITCH;
use super::node::mount_points;
use super::paths::Paths;
use crate::process::run;

const NETNS_FOLDER: &str = "/run/netns";

/// The host before the first change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostBefore {
    /// `net.ipv4.ip_forward`.
    ip_forward: String,
    /// Whether `ip netns` had already made its folder a mount of its own, which it does for the first namespace.
    netns_folder_mounted: bool,
    /// Folders that have to be made as mount points.
    missing_folders: Vec<PathBuf>,
}

impl HostBefore {
    /// Looks at the host and writes down what it is like.
    pub(super) fn record(paths: &Paths) -> Result<Self> {
        let ip_forward = fs::read_to_string(FORWARD_SWITCH)
            .context("cannot read net.ipv4.ip_forward")?
            .trim()
            .to_owned();
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let netns_folder_mounted = mounts
            .lines()
            .any(|line| line.split(' ').nth(4) == Some(NETNS_FOLDER));
        let missing_folders = mount_points()
            .into_iter()
            .filter(|folder| !folder.exists())
            .collect();
        let before = Self {
            ip_forward,
            netns_folder_mounted,
            missing_folders,
        };
        let file = paths.host_file();
        fs::write(&file, serde_json::to_vec_pretty(&before)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(before)
    }

    /// What [`HostBefore::record`] wrote, if it did.
    pub(super) fn load(paths: &Paths) -> Option<Self> {
        serde_json::from_slice(&fs::read(paths.host_file()).ok()?).ok()
    }

    /// Makes the folders that mounts need.
    pub(super) fn make_missing_folders(&self) -> Result<()> {
        let make = |folder: &PathBuf| {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
        };
        self.missing_folders.iter().try_for_each(make)
    }

    /// Puts everything back. Folders that somebody has put something into by now stay.
    pub(super) fn restore(&self) -> Result<()> {
        fs::write(FORWARD_SWITCH, &self.ip_forward)
            .context("cannot restore net.ipv4.ip_forward")?;
        for folder in mount_points()
            .iter()
            .filter(|folder| self.missing_folders.contains(folder))
        {
            fs::remove_dir(folder).ok();
        }
        let is_empty = fs::read_dir(NETNS_FOLDER).is_ok_and(|mut folder| folder.next().is_none());
        if !self.netns_folder_mounted && is_empty {
            run(Command::new("umount").arg(NETNS_FOLDER)).ok();
            fs::remove_dir(NETNS_FOLDER).ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;

    #[test]
    fn what_was_written_down_is_found_again_and_nothing_is_found_where_nothing_was() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(Cache::at(folder.path()), "local");
        assert_eq!(HostBefore::load(&paths), None);
        fs::create_dir_all(paths.root()).unwrap();
        let before = HostBefore::record(&paths).unwrap();
        assert_eq!(HostBefore::load(&paths), Some(before));
    }
}
