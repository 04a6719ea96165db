//! Our containerd, spoken to through `ctr`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::run;

/// A containerd by its socket; all calls are in the namespace that Kubernetes uses.
#[derive(Debug, Clone)]
pub struct Containerd {
    socket: PathBuf,
}

impl Containerd {
    pub(super) fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command
            .arg("--address")
            .arg(&self.socket)
            .args(["--namespace", "k8s.io"])
            .args(arguments);
        command
    }

    /// Whether it answers.
    pub(super) fn is_ready(&self) -> bool {
        self.socket.exists() && run(&mut self.ctr(&["images", "list", "--quiet"])).is_ok()
    }

    /// Names of all images, such as `docker.io/pagoda/engine:dev`.
    pub fn images(&self) -> Result<Vec<String>> {
        let names = run(&mut self.ctr(&["images", "list", "--quiet"]))
            .context("cannot list the cluster's images")?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Imports a docker archive under the names it carries.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let mut command = self.ctr(&["images", "import"]);
        run(command.arg(archive))
            .with_context(|| format!("cannot import {}", archive.display()))?;
        Ok(())
    }

    /// Gives the image `from` the further name `to`, taking it from any other image.
    pub fn tag(&self, from: &str, to: &str) -> Result<()> {
        run(&mut self.ctr(&["images", "tag", "--force", from, to]))
            .with_context(|| format!("cannot name {from} {to}"))?;
        Ok(())
    }
}
