//! Ends a cluster and removes every trace of it, whether or not its state is still known.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::cgroups::{self, CgroupTree};
use super::host::HostBefore;
use super::network;
use super::paths::Paths;
use super::state::State;
use crate::process::{ProcessIdentity, in_network_namespace, run, terminate};
use crate::progress::Progress;

/// Nobody gets notice: all they could save is about to be removed.
const NO_GRACE: Duration = Duration::ZERO;

/// Removes the cluster at `paths`. What `state` does not know (it may be lost) is found by namespace, cgroup and name.
pub(super) fn tear_down(paths: &Paths, state: Option<&State>, progress: &Progress) -> Result<()> {
    let tree = state.map_or_else(|| lost_tree(paths), |state| state.cgroups.clone());
    if !leaves_traces(paths, &tree) {
        return Ok(());
    }
    progress.step(format!("removing the cluster {}", paths.name));
    end_processes(paths, state, &tree)?;
    unmount_below(&paths.root())?;
    network::remove(paths)?;
    cgroups::remove(&tree)?;
    HostBefore::load(paths).map_or(Ok(()), |before| before.restore())?;
    if paths.root().exists() {
        fs::remove_dir_all(paths.root())
            .with_context(|| format!("cannot remove {}", paths.root().display()))?;
    }
    Ok(())
}

fn lost_tree(paths: &Paths) -> CgroupTree {
    cgroups::expected(&paths.netns_name())
}

fn leaves_traces(paths: &Paths, tree: &CgroupTree) -> bool {
    paths.root().exists()
        || paths.netns_file().exists()
        || tree.folders.iter().any(|folder| folder.exists())
}

/// The kubelet goes first, for it would start pods again; then the pods; then all else that lives in the node's network
/// namespace, shims of containerd included.
fn end_processes(paths: &Paths, state: Option<&State>, tree: &CgroupTree) -> Result<()> {
    let known = |name: &str| state.and_then(|state| state.process(name));
    terminate(known("kubelet").as_slice(), NO_GRACE)?;
    terminate(&cgroups::processes(&tree.folders), NO_GRACE)?;
    let holder = state.map(|state| state.holder);
    let mut others: Vec<ProcessIdentity> = in_network_namespace(&paths.netns_file())?;
    others.retain(|process| Some(*process) != holder);
    terminate(&others, NO_GRACE)?;
    // The mount namespace goes with its holder, so that one is last.
    terminate(&in_network_namespace(&paths.netns_file())?, NO_GRACE)?;
    // Whatever a dying kubelet or containerd may still have started.
    terminate(&cgroups::processes(&tree.folders), NO_GRACE)
}

/// Mounts made in the node's mount namespace have gone with it; these are any that a user's own tools made meanwhile.
fn unmount_below(folder: &Path) -> Result<()> {
    for point in mounts_below(folder, &fs::read_to_string("/proc/self/mountinfo")?)
        .into_iter()
        .rev()
    {
        run(Command::new("umount").arg("--lazy").arg(&point))
            .with_context(|| format!("cannot unmount {}", point.display()))?;
    }
    Ok(())
}

/// Mount points strictly below `folder`, in the order they were made. The kernel writes a space as `\040`.
fn mounts_below(folder: &Path, mountinfo: &str) -> Vec<PathBuf> {
    let points = mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(point.replace("\\040", " ")));
    points
        .filter(|point| point.starts_with(folder) && point != folder)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_mounts_below_the_folder_only_by_whole_names() {
        let text = "1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /c/local/run/a\\040b rw - tmpfs t rw\n3 1 0:3 / /c/local2/x rw - tmpfs t rw\n4 1 0:3 / /c/local rw - tmpfs t rw\n";
        assert_eq!(
            mounts_below(Path::new("/c/local"), text),
            [PathBuf::from("/c/local/run/a b")]
        );
    }
}
