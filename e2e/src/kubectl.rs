//! kubectl as tests and the demo use it: against one named cluster, with failures that show what the cluster knows.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::process::{command_line, run};

const POLL: Duration = Duration::from_millis(200);

/// One cluster, through kubectl.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    /// `--kubeconfig FILE` or `--context NAME`.
    target: [String; 2],
    /// A local cluster is never behind the user's HTTP proxy.
    ignores_proxy: bool,
}

impl Kubectl {
    /// A cluster of ours by its kubeconfig file.
    pub fn with_kubeconfig(program: PathBuf, kubeconfig: &Path) -> Self {
        Self {
            program,
            target: ["--kubeconfig".to_owned(), kubeconfig.display().to_string()],
            ignores_proxy: true,
        }
    }

    /// A cluster of the user's by the name of its context; the user's own kubeconfig and kubectl are used.
    pub fn with_context(context: &str) -> Self {
        Self {
            program: PathBuf::from("kubectl"),
            target: ["--context".to_owned(), context.to_owned()],
            ignores_proxy: false,
        }
    }

    /// A command with the target set and no more, for callers that stream its output.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.target).args(arguments);
        if self.ignores_proxy {
            for name in [
                "HTTPS_PROXY",
                "https_proxy",
                "HTTP_PROXY",
                "http_proxy",
                "ALL_PROXY",
                "all_proxy",
            ] {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs kubectl and returns its standard output; a failure quotes what it said.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        run(self.command(arguments).stdin(Stdio::null()))
    }

    /// Like [`Kubectl::run`], with `input` on standard input.
    pub fn run_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let mut stdin = child
            .stdin
            .take()
            .context("kubectl's standard input is piped")?;
        // kubectl that refuses its flags ends without reading: its own words below say more than a broken pipe.
        stdin.write_all(input.as_bytes()).ok();
        drop(stdin);
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!(
                "`{}` failed: {}",
                command_line(&command),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Server-side apply of manifests in YAML or JSON; those without a namespace go into `namespace`.
    pub fn apply_text(&self, namespace: &str, manifests: &str) -> Result<String> {
        let arguments = [
            "apply",
            "--namespace",
            namespace,
            "--server-side",
            "--force-conflicts",
            "--filename",
            "-",
        ];
        self.run_with_input(&arguments, manifests)
    }

    /// `kubectl get ... --output json`, parsed.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let words: Vec<&str> = ["get", "--output", "json"]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        serde_json::from_str(&self.run(&words)?).context("kubectl printed no JSON")
    }

    /// Looks until `look` finds something; after `timeout` fails with `what`, the last error of `look`, and what the
    /// cluster knows about `namespace`.
    pub fn wait_for<T>(
        &self,
        namespace: &str,
        what: &str,
        timeout: Duration,
        mut look: impl FnMut(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + timeout;
        loop {
            let found = look(self);
            if let Ok(Some(found)) = found {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                let last = found
                    .err()
                    .map(|error| format!("; the last look failed: {error:#}"))
                    .unwrap_or_default();
                bail!(
                    "after {} s still not: {what}{last}\n{}",
                    timeout.as_secs(),
                    self.dump(namespace)
                );
            }
            sleep(POLL);
        }
    }

    /// What one would look at after a failure: objects, events and the last log lines of each pod in `namespace`.
    pub fn dump(&self, namespace: &str) -> String {
        let queries: [&[&str]; 3] = [
            &[
                "get",
                "pods,services,deployments,endpointslices",
                "--output",
                "wide",
            ],
            &["describe", "pods"],
            &["get", "events", "--sort-by=.lastTimestamp"],
        ];
        let mut text = String::new();
        let mut show = |arguments: &[&str]| {
            let words: Vec<&str> = ["--namespace", namespace]
                .iter()
                .chain(arguments)
                .copied()
                .collect();
            let answer = self
                .run(&words)
                .unwrap_or_else(|error| format!("{error:#}"));
            let _ = writeln!(
                text,
                "--- kubectl {}\n{}",
                words.join(" "),
                answer.trim_end()
            );
        };
        queries.into_iter().for_each(&mut show);
        let pods = self
            .run(&["--namespace", namespace, "get", "pods", "--output", "name"])
            .unwrap_or_default();
        for pod in pods.lines() {
            show(&["logs", pod, "--all-containers", "--prefix", "--tail=40"]);
        }
        text
    }

    /// Makes `node` claim `count` NVIDIA GPUs, which the scheduler then counts like real ones. Pods that ask for one start
    /// without any device. A kubelet that starts anew forgets them.
    pub fn claim_gpus(&self, node: &str, count: u32) -> Result<()> {
        let patch = gpu_patch(count).to_string();
        self.run(&[
            "patch",
            "node",
            node,
            "--subresource=status",
            "--type=json",
            "--patch",
            &patch,
        ])?;
        Ok(())
    }

    /// The program itself.
    pub fn program(&self) -> &Path {
        &self.program
    }
}

fn gpu_patch(count: u32) -> Value {
    let add = |field: &str| json!({"op": "add", "path": format!("/status/{field}/nvidia.com~1gpu"), "value": count.to_string()});
    json!([add("capacity"), add("allocatable")])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saying(script: &str) -> (tempfile::TempDir, Kubectl) {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("kubectl");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        (folder, Kubectl::with_kubeconfig(program, Path::new("/k")))
    }

    #[test]
    fn never_runs_without_naming_the_cluster() {
        let (_folder, kubectl) = saying("echo $@");
        assert_eq!(
            kubectl.run(&["get", "pods"]).unwrap().trim(),
            "--kubeconfig /k get pods"
        );
        assert_eq!(Kubectl::with_context("mine").target, ["--context", "mine"]);
    }

    #[test]
    fn applies_what_it_is_given() {
        let (_folder, kubectl) = saying("cat");
        assert_eq!(
            kubectl.apply_text("ns", "kind: List").unwrap(),
            "kind: List"
        );
    }

    #[test]
    fn a_wait_in_vain_says_what_was_awaited_and_what_the_last_look_met() {
        let (_folder, kubectl) = saying("echo none");
        let error = kubectl
            .wait_for(
                "ns",
                "a pod is Ready",
                Duration::ZERO,
                |_| -> Result<Option<()>> { bail!("refused") },
            )
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("a pod is Ready")
                && text.contains("refused")
                && text.contains("--- kubectl --namespace ns get events"),
            "{text}"
        );
    }

    #[test]
    fn gpus_are_claimed_in_capacity_and_in_what_can_be_allocated() {
        let patch = gpu_patch(8);
        assert_eq!(patch[0]["path"], "/status/capacity/nvidia.com~1gpu");
        assert_eq!(
            patch[1],
            json!({"op": "add", "path": "/status/allocatable/nvidia.com~1gpu", "value": "8"})
        );
    }
}
