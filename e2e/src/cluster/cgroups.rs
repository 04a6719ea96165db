//! A cgroup of our own above all pods, so that another kubelet on this machine never sees them, and `down` finds them all.
//!
//! Version 1 has one tree a controller, version 2 one tree; where systemd runs on version 2 it owns that tree, and we
//! ask it to delegate a branch. In all three cases the kubelet's `cgroupfs` driver then manages what is below.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::process::{ProcessIdentity, run};

const MOUNT: &str = "/sys/fs/cgroup";
/// What a kubelet wants to find enabled, where the kernel has it.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"];

/// The folders that are ours, and how the kubelet calls them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CgroupTree {
    /// One folder a hierarchy; removed on `down`.
    pub(super) folders: Vec<PathBuf>,
    /// `cgroupRoot` of the kubelet.
    pub(super) kubelet_root: String,
    /// The systemd service whose branch it is.
    pub(super) systemd_unit: Option<String>,
}

/// Makes the tree called `name`. `pause` is the program that keeps a delegated service alive.
pub(super) fn create(name: &str, pause: &Path) -> Result<CgroupTree> {
    if !Path::new(MOUNT).join("cgroup.controllers").exists() {
        return create_v1(name);
    }
    if Path::new("/run/systemd/system").exists() {
        create_delegated(name, pause)
    } else {
        create_v2(name)
    }
}

/// What a tree called `name` would consist of, for when its state is lost.
pub(super) fn expected(name: &str) -> CgroupTree {
    let mounts = v1_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    let own = mounts
        .into_iter()
        .chain([PathBuf::from(MOUNT)])
        .map(|mount| mount.join(name));
    let delegated = Path::new(MOUNT).join(format!("system.slice/{name}.service/node"));
    let systemd_unit = delegated.exists().then(|| format!("{name}.service"));
    CgroupTree {
        folders: own
            .chain([delegated])
            .filter(|folder| folder.exists())
            .collect(),
        systemd_unit,
        ..CgroupTree::default()
    }
}

fn create_v1(name: &str) -> Result<CgroupTree> {
    let mounts = v1_mounts(&fs::read_to_string("/proc/self/mountinfo")?);
    if !mounts.iter().any(|mount| mount.ends_with("memory")) {
        bail!(
            "no cgroup controllers are mounted below {MOUNT}: pods cannot be run here (in a container, start it with --privileged)"
        );
    }
    let folders: Vec<PathBuf> = mounts.into_iter().map(|mount| mount.join(name)).collect();
    for folder in &folders {
        make(folder)?;
        inherit_cpuset(folder)?;
    }
    Ok(CgroupTree {
        folders,
        kubelet_root: format!("/{name}"),
        systemd_unit: None,
    })
}

/// A new version-1 cpuset holds no CPU, and no process can enter it until it does.
fn inherit_cpuset(folder: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let (own, parent) = (folder.join(file), folder.with_file_name(file));
        if own.exists() && fs::read_to_string(&own)?.trim().is_empty() {
            fs::write(&own, fs::read_to_string(parent)?)
                .with_context(|| format!("cannot set {}", own.display()))?;
        }
    }
    Ok(())
}

fn create_v2(name: &str) -> Result<CgroupTree> {
    let root = Path::new(MOUNT);
    if enable_controllers(root).is_err() {
        // A tree whose root holds processes (a container's) can pass no controllers on: they move into a leaf first.
        let leaf = root.join("init");
        make(&leaf)?;
        move_processes(root, &leaf)?;
        enable_controllers(root).context(
            "cannot enable cgroup controllers (in a container, start it with --privileged)",
        )?;
    }
    let folder = root.join(name);
    make(&folder)?;
    enable_controllers(&folder)?;
    Ok(CgroupTree {
        folders: vec![folder],
        kubelet_root: format!("/{name}"),
        systemd_unit: None,
    })
}

fn create_delegated(name: &str, pause: &Path) -> Result<CgroupTree> {
    let unit = format!("{name}.service");
    let mut start = Command::new("systemd-run");
    start
        .args(["--quiet", "--collect", "--property=Delegate=yes"])
        .arg(format!("--unit={unit}"))
        .arg(pause);
    run(&mut start).context("systemd did not start the service whose cgroup holds the pods")?;
    let path =
        run(Command::new("systemctl").args(["show", "--property=ControlGroup", "--value", &unit]))?;
    let branch = PathBuf::from(format!("{MOUNT}{}", path.trim()));
    let (leaf, node) = (branch.join("keeper"), branch.join("node"));
    make(&leaf)?;
    make(&node)?;
    move_processes(&branch, &leaf)?;
    // systemd itself enables what it delegates, but for hugetlb, which it does not know and the kubelet asks for.
    for folder in branch
        .ancestors()
        .take_while(|folder| folder.starts_with(MOUNT))
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
    {
        enable_controllers(folder).ok();
    }
    enable_controllers(&node)?;
    Ok(CgroupTree {
        folders: vec![node],
        kubelet_root: format!("{}/node", path.trim()),
        systemd_unit: Some(unit),
    })
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the cgroup {}", folder.display()))
}

fn enable_controllers(folder: &Path) -> Result<()> {
    let available = fs::read_to_string(folder.join("cgroup.controllers"))?;
    for controller in CONTROLLERS.iter().filter(|controller| {
        available
            .split_whitespace()
            .any(|found| found == **controller)
    }) {
        let file = folder.join("cgroup.subtree_control");
        fs::write(&file, format!("+{controller}"))
            .with_context(|| format!("cannot enable {controller} in {}", file.display()))?;
    }
    Ok(())
}

fn move_processes(from: &Path, to: &Path) -> Result<()> {
    for pid in fs::read_to_string(from.join("cgroup.procs"))?.split_whitespace() {
        // Kernel threads cannot be moved, and a process may just have ended.
        fs::write(to.join("cgroup.procs"), pid).ok();
    }
    Ok(())
}

/// Mount points of the hierarchies in the text of `/proc/self/mountinfo`. Beside those of version 1 there may be one of
/// version 2 without controllers, in which runc makes its folders too.
fn v1_mounts(mountinfo: &str) -> Vec<PathBuf> {
    let mount_point = |line: &str| {
        let (fixed, kind) = line.split_once(" - ")?;
        let point = fixed.split(' ').nth(4)?;
        (["cgroup", "cgroup2"].contains(&kind.split(' ').next()?) && point.starts_with(MOUNT))
            .then(|| PathBuf::from(point))
    };
    mountinfo.lines().filter_map(mount_point).collect()
}

/// Every process in `folders` and below.
pub(super) fn processes(folders: &[PathBuf]) -> Vec<ProcessIdentity> {
    let mut found: Vec<ProcessIdentity> = folders
        .iter()
        .flat_map(|folder| with_children(folder))
        .flat_map(|folder| members(&folder))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn members(folder: &Path) -> Vec<ProcessIdentity> {
    let pids = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    pids.split_whitespace()
        .filter_map(|pid| ProcessIdentity::observe(pid.parse().ok()?))
        .collect()
}

/// `folder` and all folders below it, parents first.
fn with_children(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let mut next = 0;
    while let Some(folder) = found.get(next) {
        let children = fs::read_dir(folder).into_iter().flatten().flatten();
        let children: Vec<_> = children
            .filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|child| child.path())
            .collect();
        found.extend(children);
        next += 1;
    }
    found
}

/// Removes the tree; its processes must have ended. The kernel may still be busy with them for a moment.
pub(super) fn remove(tree: &CgroupTree) -> Result<()> {
    for folder in tree
        .folders
        .iter()
        .flat_map(|folder| with_children(folder).into_iter().rev())
    {
        remove_folder(&folder)?;
    }
    if let Some(unit) = &tree.systemd_unit {
        run(Command::new("systemctl").args(["stop", unit])).ok();
    }
    Ok(())
}

fn remove_folder(folder: &Path) -> Result<()> {
    for _ in 0..100 {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                sleep(Duration::from_millis(20));
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("cannot remove the cgroup {}", folder.display()));
            }
            _ => return Ok(()),
        }
    }
    bail!(
        "the cgroup {} is still busy: see the processes in its cgroup.procs",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_every_hierarchy_below_the_usual_folder() {
        let text = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
                    35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                    36 31 0:32 / /elsewhere/memory rw - cgroup cgroup rw,memory\n\
                    41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(
            v1_mounts(text),
            ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"].map(PathBuf::from)
        );
    }

    #[test]
    fn children_come_after_their_parents() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let found = with_children(folder.path());
        assert_eq!(
            found,
            [
                folder.path().to_owned(),
                folder.path().join("a"),
                folder.path().join("a/b")
            ]
        );
    }
}
