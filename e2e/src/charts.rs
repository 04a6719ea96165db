//! Installs the product's charts with helm, into the local cluster or into a context that the user named.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cluster::Cluster;
use crate::images::{LoadedImage, LoadedImages, PRODUCT_IMAGES};
use crate::kubectl::Kubectl;
use crate::process::{find_program, run};
use crate::progress::Progress;

/// Where the operator and the gateway live.
pub const SYSTEM_NAMESPACE: &str = "pagoda-system";
const TIMEOUT: &str = "180s";

/// A cluster to install into.
#[derive(Debug, Clone)]
pub struct Target {
    helm: PathBuf,
    /// `--kubeconfig FILE` or `--kube-context NAME`.
    arguments: [String; 2],
    kubectl: Kubectl,
    /// `KEY=VALUE` that every install here has, before those of the caller.
    settings: &'static [&'static str],
}

/// The local cluster has what is off in the chart because a cluster has one server of it, which may be another.
const LOCAL: [&str; 2] = ["metricsApi.enabled=true", "keda.enabled=true"];

impl Target {
    /// The local cluster.
    pub fn local(cluster: &Cluster) -> Self {
        let arguments = [
            "--kubeconfig".to_owned(),
            cluster.paths().kubeconfig().display().to_string(),
        ];
        Self {
            helm: cluster.paths().program("helm"),
            arguments,
            kubectl: cluster.kubectl(),
            settings: &LOCAL,
        }
    }

    /// A cluster of ours by its administrator's kubeconfig.
    pub fn with_kubeconfig(helm: PathBuf, kubeconfig: &Path, kubectl: Kubectl) -> Self {
        Self {
            helm,
            arguments: ["--kubeconfig".to_owned(), kubeconfig.display().to_string()],
            kubectl,
            settings: &[],
        }
    }

    /// The user's context `name`, with the user's own helm and kubectl, or helm from `bin` when there is none.
    pub fn context(name: &str, bin: &Path) -> Result<Self> {
        let own = || Some(bin.join("helm")).filter(|file| file.exists());
        let helm = find_program("helm")
            .or_else(own)
            .context("helm is missing: install it from https://helm.sh")?;
        Ok(Self {
            helm,
            arguments: ["--kube-context".to_owned(), name.to_owned()],
            kubectl: Kubectl::with_context(name),
            settings: &[],
        })
    }

    /// `helm upgrade` of a chart that is installed, with `flags` and no values of its own; an error is what helm said.
    pub fn upgrade(&self, chart: &str, folder: &Path, flags: &[&str]) -> Result<()> {
        let mut command = self.helm(&["upgrade", chart]);
        command
            .arg(folder)
            .args(["--namespace", SYSTEM_NAMESPACE])
            .args(flags);
        run(command.stdin(Stdio::null())).map(drop)
    }

    /// `helm uninstall` of `chart`, waiting until its objects are gone. A chart that is not installed is no error.
    pub fn uninstall(&self, chart: &str) -> Result<()> {
        let mut command = self.helm(&["uninstall", chart, "--namespace", SYSTEM_NAMESPACE]);
        command.args(["--ignore-not-found", "--wait", "--timeout", TIMEOUT]);
        run(command.stdin(Stdio::null())).map(drop)
    }

    fn helm(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.helm);
        command.args(&self.arguments).args(arguments);
        if self.arguments[0] == "--kubeconfig" {
            // A proxy that the user's environment names does not lead to a cluster on this machine.
            command.env_remove("HTTPS_PROXY").env_remove("https_proxy");
        }
        command
    }
}

/// The images a user's cluster pulls: `REGISTRY/operator:TAG` and so on.
pub fn pullable_images(registry: &str, tag: &str) -> LoadedImages {
    let image = |name: &str| LoadedImage {
        repository: format!("{}/{name}", registry.trim_end_matches('/')),
        tag: tag.to_owned(),
    };
    PRODUCT_IMAGES
        .iter()
        .map(|product| (product.name.to_owned(), image(product.name)))
        .collect()
}

/// `helm upgrade --install` of `pagoda-crds` and `pagoda` from `charts`, waiting until their pods are ready. `settings`
/// are further `KEY=VALUE` for the `pagoda` chart. On failure the error shows the pods, their events and their logs.
pub fn install(
    target: &Target,
    charts: &Path,
    images: &LoadedImages,
    settings: &[String],
    progress: &Progress,
) -> Result<()> {
    for chart in ["pagoda-crds", "pagoda"] {
        let folder = charts.join(chart);
        if !folder.join("Chart.yaml").exists() {
            bail!(
                "there is no chart in {}: run this in the repository or name its charts with --charts",
                folder.display()
            );
        }
        let values = if chart == "pagoda" {
            // Former charts do not know the values.
            let knows = folder.join("templates/metrics-api.yaml").exists();
            let own = target.settings.iter().filter(|_| knows);
            let own = own.map(|setting| (*setting).to_owned());
            let all: Vec<String> = own.chain(settings.iter().cloned()).collect();
            values(images, &all)
        } else {
            Vec::new()
        };
        progress.step(format!("helm upgrade --install {chart}"));
        install_or_upgrade(target, chart, &folder, &values)?;
    }
    progress.step(format!("the charts are installed in {SYSTEM_NAMESPACE}"));
    Ok(())
}

/// Removes what [`install`] installed, the CRDs and with them every InferenceService included.
pub fn uninstall(target: &Target, progress: &Progress) -> Result<()> {
    for chart in ["pagoda", "pagoda-crds"] {
        progress.step(format!("helm uninstall {chart}"));
        target.uninstall(chart)?;
    }
    Ok(())
}

/// Where the gateway takes OpenAI requests inside the cluster `kubectl` speaks to, such as `http://198.19.0.17:80`; the
/// host reaches that address when the cluster is a local one. Fails, saying what to run, when there is no gateway.
pub fn gateway_url(kubectl: &Kubectl) -> Result<String> {
    let query = "jsonpath={.spec.clusterIP}:{.spec.ports[?(@.name==\"http\")].port}";
    let arguments = [
        "get",
        "service",
        "pagoda-gateway",
        "--namespace",
        SYSTEM_NAMESPACE,
        "--output",
        query,
    ];
    let missing =
        "the gateway is not there: run `pagoda-e2e cluster up`, then `pagoda-e2e install-charts`";
    Ok(format!(
        "http://{}",
        kubectl.run(&arguments).context(missing)?
    ))
}

fn values(images: &LoadedImages, settings: &[String]) -> Vec<String> {
    let of_image = |(name, image): (&String, &LoadedImage)| {
        [("repository", &image.repository), ("tag", &image.tag)]
            .map(|(key, value)| format!("--set-string={name}.image.{key}={value}"))
    };
    images
        .iter()
        .flat_map(of_image)
        .chain(settings.iter().map(|setting| format!("--set={setting}")))
        .collect()
}

fn install_or_upgrade(
    target: &Target,
    chart: &str,
    folder: &Path,
    values: &[String],
) -> Result<()> {
    let mut command = target.helm(&["upgrade", "--install", chart]);
    command
        .arg(folder)
        .args([
            "--namespace",
            SYSTEM_NAMESPACE,
            "--create-namespace",
            "--wait",
            "--timeout",
            TIMEOUT,
        ])
        .args(values);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", target.helm.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!(
        "helm could not install {chart}: {}\n{}",
        said.trim(),
        target.kubectl.dump(SYSTEM_NAMESPACE)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_is_told_repository_and_tag_of_every_image() {
        let words = values(
            &pullable_images("registry.example/pagoda/", "1.0"),
            &["gateway.replicas=2".to_owned()],
        );
        assert!(words.contains(
            &"--set-string=engine.image.repository=registry.example/pagoda/engine".to_owned()
        ));
        assert!(words.contains(&"--set-string=operator.image.tag=1.0".to_owned()));
        assert_eq!(words.len(), 7);
        assert_eq!(words[6], "--set=gateway.replicas=2");
    }
}
