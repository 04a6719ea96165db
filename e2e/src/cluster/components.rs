//! The components: how each is called, in which order they start, and when they are up.

use std::ffi::OsString;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::configuration::{PAUSE_REPOSITORY, PAUSE_TAG};
use super::containerd::Containerd;
use super::network::{NODE_ADDRESS, POD_RANGE, SERVICE_RANGE};
use super::paths::Paths;
use super::state::State;
use super::{NODE_NAME, READY_TIMEOUT};
use crate::images::{ImageName, Program};
use crate::kubectl::Kubectl;
use crate::process::{find_program, spawn_detached};
use crate::progress::Progress;

/// Where components find iptables, conntrack, mount and runc.
pub(super) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const POLL: Duration = Duration::from_millis(100);
const ETCD: &str = "http://127.0.0.1:2379";
/// What the readiness query prints when pods can be scheduled: a ready node without taints, and the default account.
const READY_ANSWER: &str = "Node True\nServiceAccount \n";
const READY_QUERY: &str = "jsonpath={range .items[*]}{.kind} {.status.conditions[?(@.type==\"Ready\")].status}{.spec.taints[*].key}{\"\\n\"}{end}";
/// The proxy settings that containerd may need to pull a user's images; nothing else talks to the outside.
const PROXY_VARIABLES: [&str; 6] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Starts what does not run and waits until pods can be scheduled. Returns how many components it started.
pub(super) fn start_missing(
    paths: &Paths,
    state: &mut State,
    progress: &Progress,
) -> Result<usize> {
    let mut started = 0;
    for name in ["containerd", "etcd", "apiserver"] {
        started += usize::from(start(paths, state, name, progress)?);
    }
    if started > 0 {
        wait_for_containerd(paths, state)?;
        load_pause(paths)?;
        wait_for_api(paths, state)?;
        progress.step("the API server answers");
    }
    for name in ["controller-manager", "scheduler", "proxy", "kubelet"] {
        started += usize::from(start(paths, state, name, progress)?);
    }
    wait_for_node(paths, state, progress)?;
    Ok(started)
}

fn start(paths: &Paths, state: &mut State, name: &str, progress: &Progress) -> Result<bool> {
    if state.is_running(name) {
        return Ok(false);
    }
    let again = if state.processes.contains_key(name) {
        " again: it had ended"
    } else {
        ""
    };
    progress.step(format!("starting {name}{again}"));
    let holder = state.holder.pid;
    let mut arguments: Vec<OsString> = [
        "nsenter",
        &format!("--net={}", paths.netns_file().display()),
        &format!("--mount=/proc/{holder}/ns/mnt"),
        "--",
    ]
    .map(OsString::from)
    .into();
    arguments.extend(command(paths, name)?.into_iter().map(OsString::from));
    let process = spawn_detached(&arguments, &environment(name), &paths.log(name))?;
    state.processes.insert(name.to_owned(), process);
    state.save(paths)?;
    Ok(true)
}

fn environment(name: &str) -> Vec<(&'static str, String)> {
    let fixed = [
        ("PATH", SYSTEM_PATH.to_owned()),
        ("HOME", "/root".to_owned()),
    ];
    let proxies = PROXY_VARIABLES
        .iter()
        .filter(|_| name == "containerd")
        .filter_map(|variable| Some((*variable, std::env::var(variable).ok()?)));
    fixed.into_iter().chain(proxies).collect()
}

/// Program and arguments of the component `name`.
pub(super) fn command(paths: &Paths, name: &str) -> Result<Vec<String>> {
    if name == "containerd" {
        let program = find_program("containerd")
            .context("containerd has gone: install it and run this again")?;
        let config = paths.config("containerd.toml");
        return Ok(vec![
            program.display().to_string(),
            "--config".to_owned(),
            config.display().to_string(),
        ]);
    }
    let flags = match name {
        "etcd" => etcd(paths),
        "apiserver" => api_server(paths),
        "controller-manager" => controller_manager(paths),
        "scheduler" => scheduler(paths),
        "kubelet" => kubelet(paths),
        "proxy" => vec![format!("--config={}", paths.config("proxy.json").display())],
        other => bail!("there is no component {other}"),
    };
    let program = paths.program("kubernetes").display().to_string();
    Ok([program, name.to_owned()]
        .into_iter()
        .chain(flags)
        .collect())
}

fn etcd(paths: &Paths) -> Vec<String> {
    vec![
        format!("--data-dir={}", paths.data("etcd").display()),
        format!("--listen-client-urls={ETCD}"),
        format!("--advertise-client-urls={ETCD}"),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-advertise-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--initial-cluster=default=http://127.0.0.1:2380".to_owned(),
        // The data die with the cluster, so no write needs to reach the disk before it is answered.
        "--unsafe-no-fsync=true".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

fn api_server(paths: &Paths) -> Vec<String> {
    let file = |name: &str| paths.certificates().join(name).display().to_string();
    let mut flags = vec![
        format!("--advertise-address={NODE_ADDRESS}"),
        "--secure-port=6443".to_owned(),
        format!("--etcd-servers={ETCD}"),
        format!("--service-cluster-ip-range={SERVICE_RANGE}"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--enable-aggregator-routing=true".to_owned(),
        "--profiling=false".to_owned(),
    ];
    let files = [
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
        ("client-ca-file", "ca.crt"),
        ("kubelet-certificate-authority", "ca.crt"),
        ("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        ("kubelet-client-key", "apiserver-kubelet-client.key"),
        ("service-account-key-file", "service-accounts.pub"),
        ("service-account-signing-key-file", "service-accounts.key"),
        ("requestheader-client-ca-file", "front-proxy-ca.crt"),
        ("proxy-client-cert-file", "front-proxy-client.crt"),
        ("proxy-client-key-file", "front-proxy-client.key"),
    ];
    flags.extend(files.map(|(flag, name)| format!("--{flag}={}", file(name))));
    flags
}

fn controller_manager(paths: &Paths) -> Vec<String> {
    let file = |name: &str| paths.certificates().join(name).display().to_string();
    let mut flags = client_flags(&file("controller-manager.kubeconfig"));
    flags.extend([
        format!(
            "--service-account-private-key-file={}",
            file("service-accounts.key")
        ),
        format!("--root-ca-file={}", file("ca.crt")),
        format!("--cluster-signing-cert-file={}", file("ca.crt")),
        format!("--cluster-signing-key-file={}", file("ca.key")),
        "--use-service-account-credentials=true".to_owned(),
        "--allocate-node-cidrs=false".to_owned(),
        format!("--cluster-cidr={POD_RANGE}"),
    ]);
    flags
}

fn scheduler(paths: &Paths) -> Vec<String> {
    client_flags(
        &paths
            .certificates()
            .join("scheduler.kubeconfig")
            .display()
            .to_string(),
    )
}

/// There is one of each, so no election; and the default request rates are those of a shared control plane.
fn client_flags(kubeconfig: &str) -> Vec<String> {
    let names = [
        "kubeconfig",
        "authentication-kubeconfig",
        "authorization-kubeconfig",
    ];
    let files = names.map(|flag| format!("--{flag}={kubeconfig}"));
    let fixed = [
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ];
    files.into_iter().chain(fixed.map(str::to_owned)).collect()
}

fn kubelet(paths: &Paths) -> Vec<String> {
    vec![
        format!("--config={}", paths.config("kubelet.json").display()),
        format!(
            "--kubeconfig={}",
            paths.certificates().join("kubelet.kubeconfig").display()
        ),
        format!("--hostname-override={NODE_NAME}"),
        format!("--node-ip={NODE_ADDRESS}"),
    ]
}

fn wait_for_containerd(paths: &Paths, state: &State) -> Result<()> {
    let containerd = Containerd::at(paths.containerd_socket());
    wait_until(paths, state, "containerd", "answer", || {
        containerd.is_ready()
    })
}

fn load_pause(paths: &Paths) -> Result<()> {
    let containerd = Containerd::at(paths.containerd_socket());
    let name = ImageName::new(PAUSE_REPOSITORY, PAUSE_TAG);
    if containerd.images()?.contains(&name.full()) {
        return Ok(());
    }
    let archive = paths.run().join("pause.tar");
    Program::at(paths.program("pause"), "/pause").archive(&name, &archive)?;
    containerd.import(&archive)?;
    Ok(fs::remove_file(archive)?)
}

fn wait_for_api(paths: &Paths, state: &State) -> Result<()> {
    let address = SocketAddr::from((NODE_ADDRESS, 6443));
    let kubectl = kubectl(paths);
    wait_until(paths, state, "apiserver", "be ready", || {
        // The connection is tried first because it costs nothing; kubectl takes a tenth of a second to start.
        TcpStream::connect_timeout(&address, POLL).is_ok()
            && kubectl.run(&["get", "--raw", "/readyz"]).is_ok()
    })
}

/// The kubelet ends when containerd's CRI plug-in is not initialised yet, so it is started again a few times.
fn wait_for_node(paths: &Paths, state: &mut State, progress: &Progress) -> Result<()> {
    let kubectl = kubectl(paths);
    let is_ready = || {
        let objects = [
            "get",
            &format!("node/{NODE_NAME}"),
            "serviceaccount/default",
            "--namespace=default",
            "--output",
            READY_QUERY,
        ];
        kubectl
            .run(&objects)
            .is_ok_and(|answer| answer == READY_ANSWER)
    };
    for _ in 0..5 {
        match wait_until(paths, state, "kubelet", "make its node Ready", is_ready) {
            Err(_) if !state.is_running("kubelet") => {
                sleep(Duration::from_millis(300));
                start(paths, state, "kubelet", progress)?;
            }
            outcome => return outcome,
        }
    }
    bail!(
        "the kubelet ends again and again: see {}",
        paths.log("kubelet").display()
    )
}

fn kubectl(paths: &Paths) -> Kubectl {
    Kubectl::with_kubeconfig(paths.program("kubectl"), &paths.kubeconfig())
}

/// Waits until `is_done`, and fails when `component` ends before, or after [`READY_TIMEOUT`]; both name its log.
fn wait_until(
    paths: &Paths,
    state: &State,
    component: &str,
    what: &str,
    is_done: impl Fn() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    while !is_done() {
        let log = paths.log(component);
        if !state.is_running(component) {
            bail!(
                "{component} has ended instead of starting to {what}; the end of {}:\n{}",
                log.display(),
                tail(&log)
            );
        }
        if Instant::now() > deadline {
            bail!(
                "{component} did not {what} in {} s; the end of {}:\n{}",
                READY_TIMEOUT.as_secs(),
                log.display(),
                tail(&log)
            );
        }
        sleep(POLL);
    }
    Ok(())
}

/// The last lines of a log.
fn tail(log: &std::path::Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;

    #[test]
    fn every_kubernetes_component_is_the_one_program_with_its_name_first() {
        let paths = Paths::new(Cache::at("/cache"), "local");
        for name in [
            "etcd",
            "apiserver",
            "controller-manager",
            "scheduler",
            "kubelet",
            "proxy",
        ] {
            let words = command(&paths, name).unwrap();
            assert_eq!(words[..2], ["/cache/bin/kubernetes", name]);
            assert!(
                words[2..]
                    .iter()
                    .all(|flag| flag.starts_with("--") && flag.contains('=')),
                "{words:?}"
            );
        }
        assert!(command(&paths, "nothing").is_err());
    }

    #[test]
    fn only_containerd_is_given_the_users_proxy() {
        assert!(
            environment("kubelet")
                .iter()
                .all(|(name, _)| ["PATH", "HOME"].contains(name))
        );
    }
}
