//! kubectl as people run it, in a test's namespace.

use std::fmt::Write as _;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use pagoda_e2e::process::debug_program;
use tokio::io::AsyncWriteExt;

use super::Bed;

impl Bed {
    /// Runs kubectl in this namespace; whether it succeeded, and its output.
    pub async fn kubectl(&self, arguments: &[&str], input: Option<&str>) -> Result<(bool, String)> {
        let mut command = self.kubectl_command();
        command
            .args(["--namespace", &self.namespace])
            .args(arguments);
        converse(command, input).await
    }

    /// As [`Self::kubectl`], for objects that say themselves which namespace they are in.
    pub async fn kubectl_everywhere(
        &self,
        arguments: &[&str],
        input: Option<&str>,
    ) -> Result<(bool, String)> {
        let mut command = self.kubectl_command();
        command.args(arguments);
        converse(command, input).await
    }

    /// `kubectl edit` of a service by somebody whose editor is `editor`, a command that changes the file it is given.
    pub async fn kubectl_edit(&self, service: &str, editor: &str) -> Result<(bool, String)> {
        let mut command = self.kubectl_command();
        command
            .args(["--namespace", &self.namespace, "edit", "isvc", service])
            .env("KUBE_EDITOR", editor);
        converse(command, None).await
    }

    /// `pagoda explain` as a person runs it, with the cluster's kubeconfig; it must succeed.
    pub async fn explain(&self, service: &str, arguments: &[&str]) -> Result<String> {
        let mut command = tokio::process::Command::new(debug_program("pagoda")?);
        command
            .env("KUBECONFIG", self.cluster.paths().kubeconfig())
            .args(["explain", service, "--namespace", &self.namespace])
            .args(arguments);
        let (ok, output) = converse(command, None).await?;
        ensure!(ok, "pagoda explain {service} failed: {output}");
        Ok(output)
    }

    fn kubectl_command(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.cluster.paths().program("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(self.cluster.paths().kubeconfig());
        command
    }

    /// As [`Self::kubectl`], and it must succeed.
    pub async fn kubectl_ok(&self, arguments: &[&str], input: Option<&str>) -> Result<String> {
        let (ok, output) = self.kubectl(arguments, input).await?;
        ensure!(ok, "kubectl {} failed: {output}", arguments.join(" "));
        Ok(output)
    }

    /// What a person would look at first.
    pub(super) async fn autopsy(&self) -> String {
        let mut report = format!(
            "---- what the cluster knows about {} ----\n",
            self.namespace
        );
        let looks: [&[&str]; 7] = [
            &["get", "isvc", "--output", "yaml"],
            &["get", "deployments,pods,endpointslices", "--output", "wide"],
            &["describe", "pods"],
            &["get", "events", "--sort-by=.lastTimestamp"],
            &[
                "logs",
                "--selector",
                "app.kubernetes.io/name=pagoda-engine",
                "--all-containers",
                "--prefix",
                "--tail=30",
            ],
            &[
                "logs",
                "deployment/pagoda-operator",
                "--namespace",
                "pagoda-system",
                "--tail=40",
            ],
            &[
                "logs",
                "deployment/pagoda-gateway",
                "--namespace",
                "pagoda-system",
                "--tail=40",
            ],
        ];
        for look in looks {
            let output = match self.kubectl(look, None).await {
                Ok((_, output)) => output,
                Err(error) => format!("{error:#}"),
            };
            let _ = writeln!(report, "$ kubectl {}\n{output}", look.join(" "));
        }
        report
    }
}

/// Runs `command` with `input`; whether it succeeded, and its output.
async fn converse(
    mut command: tokio::process::Command,
    input: Option<&str>,
) -> Result<(bool, String)> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("failed to start kubectl")?;
    let mut stdin = child
        .stdin
        .take()
        .context("kubectl has no standard input")?;
    stdin
        .write_all(input.unwrap_or_default().as_bytes())
        .await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    let text = [output.stdout, output.stderr].concat();
    Ok((
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    ))
}
