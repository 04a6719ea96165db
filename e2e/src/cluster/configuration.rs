//! The configuration files of containerd, CNI, the kubelet and kube-proxy, as functions of what the machine is like.

use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};

use super::network::{NODE_ADDRESS, POD_RANGE};
use super::paths::Paths;
use super::{NODE_NAME, cgroups::CgroupTree};

/// The image that holds each pod's namespaces, loaded before the kubelet starts.
pub(super) const PAUSE_REPOSITORY: &str = "pagoda/pause";
pub(super) const PAUSE_TAG: &str = "local";

/// `containerd.toml`. The format's version 2 is read by containerd 1.6 to 2.x.
pub(super) fn containerd(paths: &Paths, cni_plugins: &Path, snapshotter: &str) -> String {
    let quoted = |path: &Path| json!(path).to_string();
    let (root, state) = (
        quoted(&paths.data("containerd")),
        quoted(&paths.run().join("containerd")),
    );
    let (socket, networks) = (
        quoted(&paths.containerd_socket()),
        quoted(&paths.config("cni")),
    );
    let plugins = quoted(cni_plugins);
    // Without CAP_SYS_RESOURCE runc may not lower an OOM score, and would fail; with it, nothing here needs a lower one.
    format!(
        r#"version = 2
oom_score = 0
root = {root}
state = {state}

[grpc]
address = {socket}

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/{PAUSE_REPOSITORY}:{PAUSE_TAG}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
max_container_log_line_size = 65536

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {plugins}
conf_dir = {networks}
"#
    )
}

/// The CNI network. `ptp` gives each pod its own pair of interfaces and routes between them, so that answers through a
/// service come back the way they went without the bridge netfilter module, which a small machine's kernel may lack.
pub(super) fn cni(paths: &Paths) -> Value {
    let addresses = json!({
        "type": "host-local",
        "dataDir": paths.run().join("addresses"),
        "ranges": [[{"subnet": POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    json!({
        "cniVersion": "0.4.0",
        "name": paths.netns_name(),
        "plugins": [
            {"type": "ptp", "ipMasq": false, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// The kubelet's configuration.
pub(super) fn kubelet(paths: &Paths, cgroups: &CgroupTree, name_servers: &[Ipv4Addr]) -> Value {
    let certificates = paths.certificates();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": certificates.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": certificates.join("kubelet-server.crt"),
        "tlsPrivateKeyFile": certificates.join("kubelet-server.key"),
        "containerRuntimeEndpoint": format!("unix://{}", paths.containerd_socket().display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.kubelet_root,
        "failCgroupV1": false,
        "failSwapOn": false,
        "oomScoreAdj": 0,
        // No cluster DNS runs. Naming the host's servers makes pods with the default DNS policy work without complaint.
        "clusterDNS": name_servers,
        "clusterDomain": "cluster.local",
        "resolvConf": paths.config("resolv.conf"),
        "podLogsDir": paths.logs().join("pods"),
        "volumePluginDir": paths.data("volume-plugins"),
        // Images come from no registry, so none may ever be collected; a small disk must not evict the pods either.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%"},
        "serializeImagePulls": false,
        "maxPods": 250,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        // The default of 10 s is what a node of many would use; tests wait for node conditions.
        "nodeStatusUpdateFrequency": "4s",
    })
}

/// kube-proxy's configuration. It must not touch the conntrack limits: they belong to the whole machine.
pub(super) fn proxy(paths: &Paths) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": paths.certificates().join("proxy.kubeconfig")},
        "hostnameOverride": NODE_NAME,
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "mode": "iptables",
        "clusterCIDR": POD_RANGE,
        "oomScoreAdj": 0,
        "iptables": {"minSyncPeriod": "100ms"},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    })
}

/// The pods' `resolv.conf`.
pub(super) fn resolv_conf(name_servers: &[Ipv4Addr]) -> String {
    let line = |server: &Ipv4Addr| format!("nameserver {server}\n");
    name_servers
        .iter()
        .map(line)
        .chain(["options timeout:2 attempts:2\n".to_owned()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;

    fn paths() -> Paths {
        Paths::new(Cache::at("/cache"), "local")
    }

    #[test]
    fn containerd_keeps_everything_in_the_clusters_folder() {
        let text = containerd(&paths(), Path::new("/usr/lib/cni"), "overlayfs");
        for line in text.lines().filter(|line| line.contains("\"/")) {
            assert!(
                line.contains("\"/cache/cluster/local/") || line.contains("bin_dir"),
                "{line}"
            );
        }
        assert!(text.contains("sandbox_image = \"docker.io/pagoda/pause:local\""));
    }

    #[test]
    fn the_kubelet_puts_pods_below_our_own_cgroup() {
        let tree = CgroupTree {
            kubelet_root: "/pagoda-local".to_owned(),
            ..CgroupTree::default()
        };
        let config = kubelet(&paths(), &tree, &[Ipv4Addr::new(192, 0, 2, 7)]);
        assert_eq!(config["cgroupRoot"], "/pagoda-local");
        assert_eq!(config["clusterDNS"], json!(["192.0.2.7"]));
    }

    #[test]
    fn kube_proxy_leaves_the_machines_conntrack_limits_alone() {
        let conntrack = &proxy(&paths())["conntrack"];
        assert_eq!(
            (&conntrack["maxPerCore"], &conntrack["min"]),
            (&json!(0), &json!(0))
        );
    }

    #[test]
    fn pods_look_names_up_at_the_servers_given() {
        assert_eq!(
            resolv_conf(&[Ipv4Addr::new(192, 0, 2, 7)]),
            "nameserver 192.0.2.7\noptions timeout:2 attempts:2\n"
        );
    }
}
