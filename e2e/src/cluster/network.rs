//! One network namespace that is the node, and the host's side of it.
//!
//! All addresses are in 198.18.0.0/15, which is reserved for benchmarks, so no private range of the user's is hidden.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::paths::Paths;
use crate::process::run;
use crate::progress::Progress;

/// The host, as the node and its pods reach it.
pub const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The node, as the host and the pods reach it: API server on 6443, node ports.
pub const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// `KUBERNETES_SERVICE_HOST` in the pods: the first address of [`SERVICE_RANGE`].
pub(super) const API_SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// Node, pods and services together.
const WHOLE_RANGE: &str = "198.18.0.0/15";
/// Addresses of pods.
pub(super) const POD_RANGE: &str = "198.18.64.0/20";
/// Addresses of services.
pub(super) const SERVICE_RANGE: &str = "198.19.0.0/24";

/// Whether the host passes packets on between its interfaces.
pub(super) const FORWARD_SWITCH: &str = "/proc/sys/net/ipv4/ip_forward";
const RESOLV_CONFS: [&str; 2] = ["/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"];

/// Makes the namespace, the pair of interfaces, the routes, and the way from the pods to the outside.
pub(super) fn create(paths: &Paths, progress: &Progress) -> Result<()> {
    refuse_taken_address(&run(
        Command::new("ip").args(["-oneline", "-4", "address", "show"])
    )?)?;
    let (name, node) = (paths.netns_name(), format!("{NODE_ADDRESS}/30"));
    let (host, netns) = (format!("{HOST_ADDRESS}/30"), name.as_str());
    let commands: [&[&str]; 9] = [
        &["netns", "add", netns],
        &[
            "link", "add", netns, "type", "veth", "peer", "name", "eth0", "netns", netns,
        ],
        &["address", "add", &host, "dev", netns],
        &["link", "set", netns, "up"],
        &["-netns", netns, "link", "set", "lo", "up"],
        &["-netns", netns, "address", "add", &node, "dev", "eth0"],
        &["-netns", netns, "link", "set", "eth0", "up"],
        &[
            "-netns",
            netns,
            "route",
            "add",
            "default",
            "via",
            &HOST_ADDRESS.to_string(),
        ],
        &[
            "route",
            "add",
            WHOLE_RANGE,
            "via",
            &NODE_ADDRESS.to_string(),
            "dev",
            netns,
        ],
    ];
    for arguments in commands {
        run(Command::new("ip").args(arguments)).context("cannot set up the node's network")?;
    }
    let enter = format!("--net={}", paths.netns_file().display());
    run(Command::new("nsenter").args([
        &enter,
        "--",
        "sh",
        "-c",
        &format!("echo 1 > {FORWARD_SWITCH}"),
    ]))?;
    open_way_out(&name, progress);
    Ok(())
}

fn refuse_taken_address(addresses: &str) -> Result<()> {
    let mark = format!("inet {HOST_ADDRESS}/");
    let Some(line) = addresses.lines().find(|line| line.contains(&mark)) else {
        return Ok(());
    };
    let interface = line
        .split_whitespace()
        .nth(1)
        .unwrap_or("another interface");
    bail!(
        "{HOST_ADDRESS} is already an address of {interface}: one local cluster runs at a time; end that one \
         (`pagoda-e2e cluster down --name NAME` for an interface called pagoda-NAME)"
    )
}

/// Pods reach the network beyond this machine through the host's address. Without it the cluster works all the same, so
/// a machine that cannot do it gets a warning.
fn open_way_out(name: &str, progress: &Progress) {
    let outcome = fs::write(FORWARD_SWITCH, "1")
        .map_err(anyhow::Error::from)
        .and_then(|()| add_rules(name));
    if let Err(error) = outcome {
        progress.step(format!(
            "warning: pods will reach this machine only, not the network beyond it: {error:#}"
        ));
    }
}

/// The rules in the host's tables, each marked with the interface's name.
fn rules(name: &str) -> [Vec<&str>; 3] {
    [
        vec![
            "nat",
            "POSTROUTING",
            "-s",
            WHOLE_RANGE,
            "!",
            "-d",
            WHOLE_RANGE,
            "-m",
            "comment",
            "--comment",
            name,
            "-j",
            "MASQUERADE",
        ],
        vec![
            "filter",
            "FORWARD",
            "-i",
            name,
            "-m",
            "comment",
            "--comment",
            name,
            "-j",
            "ACCEPT",
        ],
        vec![
            "filter",
            "FORWARD",
            "-o",
            name,
            "-m",
            "comment",
            "--comment",
            name,
            "-j",
            "ACCEPT",
        ],
    ]
}

/// A firewall that drops forwarded packets does so at the end of its chain, so ours go first.
fn add_rules(name: &str) -> Result<()> {
    for rule in rules(name) {
        run(Command::new("iptables")
            .args(["-w", "-t", rule[0], "-I"])
            .args(&rule[1..]))?;
    }
    Ok(())
}

/// Undoes [`create`], as far as it was done.
pub(super) fn remove(paths: &Paths) -> Result<()> {
    let name = paths.netns_name();
    for rule in rules(&name) {
        // An interrupted `up` may have left a rule twice; the first refusal says that none is left.
        while run(Command::new("iptables")
            .args(["-w", "-t", rule[0], "-D"])
            .args(&rule[1..]))
        .is_ok()
        {}
    }
    if Path::new("/sys/class/net").join(&name).exists() {
        run(Command::new("ip").args(["link", "delete", &name]))
            .context("cannot delete the host's interface")?;
    }
    if paths.netns_file().exists() {
        run(Command::new("ip").args(["netns", "delete", &name]))
            .context("cannot delete the node's network namespace")?;
    }
    Ok(())
}

/// The name servers pods are given: the host's, but for those that only the host itself reaches. Where none is left, the
/// host's address, so that a look-up fails at once instead of waiting.
pub(super) fn name_servers() -> Vec<Ipv4Addr> {
    let found = RESOLV_CONFS
        .iter()
        .map(|file| reachable_name_servers(&fs::read_to_string(file).unwrap_or_default()));
    found
        .into_iter()
        .find(|servers| !servers.is_empty())
        .unwrap_or_else(|| vec![HOST_ADDRESS])
}

fn reachable_name_servers(resolv_conf: &str) -> Vec<Ipv4Addr> {
    let server = |line: &str| {
        line.trim()
            .strip_prefix("nameserver")?
            .trim()
            .parse::<Ipv4Addr>()
            .ok()
    };
    resolv_conf
        .lines()
        .filter_map(server)
        .filter(|address| !address.is_loopback())
        .take(3)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_not_given_a_name_server_that_listens_on_the_hosts_loopback_only() {
        let text = "# made by hand\nnameserver 127.0.0.53\nnameserver 192.0.2.7\nnameserver fd00::1\noptions edns0\n";
        assert_eq!(reachable_name_servers(text), [Ipv4Addr::new(192, 0, 2, 7)]);
    }

    #[test]
    fn refuses_to_take_an_address_that_is_in_use_and_names_its_interface() {
        let text = "1: lo    inet 127.0.0.1/8 scope host lo\n9: pagoda-x    inet 198.18.0.1/30 scope global pagoda-x\n";
        let error = refuse_taken_address(text).unwrap_err().to_string();
        assert!(error.contains("pagoda-x"), "{error}");
        assert!(refuse_taken_address("1: lo    inet 127.0.0.1/8 scope host lo\n").is_ok());
        assert!(refuse_taken_address("2: e    inet 198.18.0.10/30 scope global e\n").is_ok());
    }

    #[test]
    fn every_rule_in_the_hosts_tables_carries_the_clusters_name() {
        for rule in rules("pagoda-local") {
            assert!(
                rule.windows(2)
                    .any(|pair| pair == ["--comment", "pagoda-local"])
            );
        }
    }
}
