//! Makes a node: certificates, configuration, network, cgroup, and the process that keeps its namespaces.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::cgroups::{self, CgroupTree};
use super::host::HostBefore;
use super::paths::Paths;
use super::state::{LAYOUT_VERSION, State};
use super::{certificates, configuration, network, prerequisites};
use crate::process::{ProcessIdentity, run, spawn_detached};
use crate::progress::Progress;

/// Folders with fixed places, each hidden in the node's mount namespace behind one of the cluster's own, so that the
/// host's are not touched and nothing is left there.
const PRIVATE_FOLDERS: [(&str, &str); 4] = [
    ("/var/lib/kubelet", "data/kubelet"),
    ("/var/lib/cni", "data/cni"),
    ("/var/log/containers", "logs/containers"),
    ("/run/containerd", "run/private"),
];

/// Keeps the namespaces: binds the private folders, says so, and becomes `pause`.
const HOLDER_SCRIPT: &str = r#"set -e
ready=$1 pause=$2
shift 2
while [ $# -gt 0 ]; do mount --bind "$1" "$2"; shift 2; done
: > "$ready"
exec "$pause"
"#;

/// Creates everything but the components and returns the state, saved. What was there before must have been torn down.
pub(super) fn create(paths: &Paths, binaries_stamp: &str, progress: &Progress) -> Result<State> {
    progress.step("making certificates, network and cgroup of a new node");
    make_folders(paths)?;
    let before = HostBefore::record(paths)?;
    let admin = certificates::write_all(&paths.certificates())?;
    fs::copy(admin, paths.kubeconfig())?;
    let cgroups = cgroups::create(&paths.netns_name(), &paths.program("pause"))?;
    write_configuration(paths, &cgroups)?;
    network::create(paths, progress)?;
    before.make_missing_folders()?;
    let holder = start_holder(paths)?;
    let state = State {
        layout_version: LAYOUT_VERSION,
        binaries_stamp: binaries_stamp.to_owned(),
        holder,
        processes: std::collections::BTreeMap::new(),
        cgroups,
    };
    state.save(paths)?;
    Ok(state)
}

fn make_folders(paths: &Paths) -> Result<()> {
    let root = paths.root();
    let private = PRIVATE_FOLDERS.map(|(_, own)| root.join(own));
    let others = [
        paths.config("cni"),
        paths.logs().join("pods"),
        paths.run(),
        paths.data("etcd"),
        paths.data("volume-plugins"),
    ];
    for folder in private.iter().chain(&others) {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    // Keys, and the pods' volumes, are in there.
    Ok(fs::set_permissions(
        &root,
        fs::Permissions::from_mode(0o700),
    )?)
}

fn write_configuration(paths: &Paths, cgroups: &CgroupTree) -> Result<()> {
    let plugins = prerequisites::cni_folder()
        .context("the CNI plug-ins have gone: install containernetworking-plugins")?;
    let name_servers = network::name_servers();
    let pretty = |value| serde_json::to_string_pretty(&value);
    let files = [
        (
            "containerd.toml",
            configuration::containerd(paths, plugins, snapshotter(&paths.root())?),
        ),
        ("cni/10-pagoda.conflist", pretty(configuration::cni(paths))?),
        (
            "kubelet.json",
            pretty(configuration::kubelet(paths, cgroups, &name_servers))?,
        ),
        ("proxy.json", pretty(configuration::proxy(paths))?),
        ("resolv.conf", configuration::resolv_conf(&name_servers)),
    ];
    for (name, text) in files {
        let file = paths.config(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// overlayfs cannot stand on overlayfs, which is what a container's own root usually is; there, layers are copied.
fn snapshotter(folder: &Path) -> Result<&'static str> {
    let kind = run(Command::new("stat")
        .args(["--file-system", "--format=%T"])
        .arg(folder))?;
    Ok(if kind.trim().starts_with("overlay") {
        "native"
    } else {
        "overlayfs"
    })
}

/// Fixed places that the node's mount namespace needs to exist.
pub(super) fn mount_points() -> Vec<PathBuf> {
    PRIVATE_FOLDERS
        .iter()
        .map(|(place, _)| PathBuf::from(place))
        .collect()
}

fn start_holder(paths: &Paths) -> Result<ProcessIdentity> {
    let (ready, pause, root) = (
        paths.run().join("node-ready"),
        paths.program("pause"),
        paths.root(),
    );
    let enter = format!("--net={}", paths.netns_file().display());
    let fixed = [
        "unshare",
        "--mount",
        "--propagation",
        "slave",
        "--",
        "nsenter",
        &enter,
        "--",
        "sh",
        "-c",
        HOLDER_SCRIPT,
        "sh",
    ];
    let mut arguments: Vec<OsString> = fixed.map(OsString::from).into();
    arguments.extend([ready.clone().into(), pause.into()]);
    for (place, own) in PRIVATE_FOLDERS {
        arguments.extend([root.join(own).into(), place.into()]);
    }
    let holder = spawn_detached(
        &arguments,
        &[("PATH", super::components::SYSTEM_PATH.to_owned())],
        &paths.log("node"),
    )?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ready.exists() {
        if !holder.is_alive() || Instant::now() > deadline {
            bail!(
                "the node's namespaces could not be made: see {}",
                paths.log("node").display()
            );
        }
        sleep(Duration::from_millis(10));
    }
    Ok(holder)
}
