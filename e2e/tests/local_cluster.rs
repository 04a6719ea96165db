//! The local cluster itself, from nothing to nothing. Needs root and no other local cluster, so `cargo test` leaves it out:
//! `cargo test -p pagoda-e2e --test local_cluster`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pagoda_e2e::cache::Cache;
use pagoda_e2e::cluster::{Cluster, NODE_NAME, State};
use pagoda_e2e::images::{ImageName, Program};
use pagoda_e2e::process::{ProcessIdentity, in_network_namespace, terminate};
use pagoda_e2e::progress::Progress;

const PATIENCE: Duration = Duration::from_mins(1);

/// Ends the cluster however the test ends.
struct Guard(Cluster);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0
            .down(&Progress::start())
            .expect("the cluster can be ended");
    }
}

fn identity(cluster: &Cluster, component: &str) -> Option<ProcessIdentity> {
    State::load(cluster.paths()).unwrap()?.process(component)
}

/// Every file system mounted, cgroup and process that carries the cluster's name or lives in its namespace.
fn traces(cluster: &Cluster) -> Vec<String> {
    let root = cluster.paths().root();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut found: Vec<String> = mounts
        .lines()
        .filter(|line| line.contains(&*root.to_string_lossy()))
        .map(str::to_owned)
        .collect();
    let name = cluster.paths().netns_name();
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup")
        .unwrap()
        .flatten()
        .map(|entry| entry.path().join(&name));
    let places = hierarchies.chain([
        root,
        cluster.paths().netns_file(),
        Path::new("/sys/class/net").join(&name),
        Path::new("/sys/fs/cgroup").join(&name),
    ]);
    found.extend(
        places
            .filter(|place| place.exists())
            .map(|place: PathBuf| place.display().to_string()),
    );
    found.extend(
        in_network_namespace(&cluster.paths().netns_file())
            .unwrap()
            .iter()
            .map(|process| format!("{process:?}")),
    );
    found
}

fn load_pause_as_a_workload(cluster: &Cluster) -> String {
    let name = ImageName::new("pagoda/selftest", "1");
    let archive = cluster.paths().root().join("selftest.tar");
    Program::at(cluster.paths().program("pause"), "/pause")
        .archive(&name, &archive)
        .unwrap();
    cluster.containerd().import(&archive).unwrap();
    name.short()
}

#[test]
fn runs_pods_survives_the_death_of_its_parts_and_leaves_nothing() {
    let guard = Guard(Cluster::named(Cache::from_env().unwrap(), "selftest").unwrap());
    let (cluster, progress) = (&guard.0, Progress::start());
    cluster.up(&progress).unwrap();
    let kubectl = cluster.kubectl();
    let image = load_pause_as_a_workload(cluster);
    kubectl
        .run(&[
            "run",
            "selftest",
            "--image",
            &image,
            "--image-pull-policy=Never",
        ])
        .unwrap();
    let is_running = |kubectl: &pagoda_e2e::kubectl::Kubectl| {
        let pod = kubectl.get(&["pod/selftest"])?;
        Ok((pod["status"]["phase"] == "Running").then(|| pod["metadata"]["uid"].to_string()))
    };
    let uid = kubectl
        .wait_for("default", "the pod runs", PATIENCE, is_running)
        .unwrap();
    let containerd = identity(cluster, "containerd");
    for component in ["apiserver", "etcd", "kubelet"] {
        let before = identity(cluster, component).unwrap();
        terminate(&[before], Duration::ZERO).unwrap();
        assert_eq!(identity(cluster, component), None);
        cluster.up(&progress).unwrap();
        assert!(
            identity(cluster, component).is_some_and(|now| now != before),
            "{component} was not started again"
        );
    }
    assert_eq!(
        identity(cluster, "containerd"),
        containerd,
        "what runs is left alone"
    );
    assert_eq!(
        kubectl
            .wait_for("default", "the pod still runs", PATIENCE, is_running)
            .unwrap(),
        uid
    );
    kubectl.claim_gpus(NODE_NAME, 8).unwrap();
    let node = kubectl.get(&["node", NODE_NAME]).unwrap();
    assert_eq!(node["status"]["allocatable"]["nvidia.com/gpu"], "8");
    assert!(!traces(cluster).is_empty());
    cluster.down(&progress).unwrap();
    assert_eq!(traces(cluster), Vec::<String>::new());
}
