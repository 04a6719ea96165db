//! Where the demo runs: a local cluster that it makes, or a cluster of the user's that was named.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{NAMESPACE, SERVICE, SIMULATED};
use crate::cache::Cache;
use crate::charts::{self, SYSTEM_NAMESPACE, Target, pullable_images};
use crate::cluster::Cluster;
use crate::images::{self, Archive, ImageName, LoadedImages};
use crate::kubectl::Kubectl;
use crate::process::{find_program, run};
use crate::progress::Progress;

/// Image that carries the model of the sample, below the registry.
const MODEL_IMAGE: &str = "pagoda/smollm2-135m-instruct";
const MODEL_TAG: &str = "q4_1";
/// Not `latest`: Kubernetes would pull that one.
const KIND_TAG: &str = "dev";
const MODEL_FILE: &str = "smollm2-135m-instruct-q4_1.gguf";
/// The clone this program was built from: its charts and sources are what the demo shows.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A cluster, and how its images get there.
pub struct Place {
    kubectl: Kubectl,
    cache: Cache,
    kind: Kind,
}

enum Kind {
    Local(Cluster),
    Named { context: String, images: ImagesOf },
}

/// How a cluster of the user's comes to our images.
#[derive(Debug, PartialEq)]
enum ImagesOf {
    /// Somebody pushed them; the nodes pull.
    Registry { registry: String, tag: String },
    /// A `kind` cluster of this name on this machine; we load them into its nodes.
    KindNodes(String),
}

/// A cluster of the user's, as the command line names it.
pub struct Named {
    pub context: String,
    pub registry: Option<String>,
    pub tag: String,
}

impl Named {
    fn images(&self) -> Result<ImagesOf> {
        if let Some(registry) = &self.registry {
            return Ok(ImagesOf::Registry {
                registry: registry.trim_end_matches('/').to_owned(),
                tag: self.tag.clone(),
            });
        }
        let kind = self
            .context
            .strip_prefix("kind-")
            .filter(|_| find_program("kind").is_some());
        let cluster = kind.context(
            "a cluster of your own must be able to pull the images: write them with `pagoda-e2e images archive FOLDER`, push them \
             to a registry that its nodes reach, and name it with --registry (and --tag); a `kind` cluster needs no registry",
        )?;
        Ok(ImagesOf::KindNodes(cluster.to_owned()))
    }
}

impl Place {
    /// The named cluster, or the local one. Touches nothing yet.
    pub fn new(named: Option<Named>) -> Result<Self> {
        let cache = Cache::from_env()?;
        let Some(named) = named else {
            let cluster = Cluster::local()?;
            return Ok(Self {
                kubectl: cluster.kubectl(),
                cache,
                kind: Kind::Local(cluster),
            });
        };
        let images = named.images()?;
        let kubectl = Kubectl::with_context(&named.context);
        Ok(Self {
            kubectl,
            cache,
            kind: Kind::Named {
                context: named.context,
                images,
            },
        })
    }

    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// A cluster that answers.
    pub fn cluster_up(&self) -> Result<()> {
        match &self.kind {
            Kind::Local(cluster) => cluster.up(&Progress::start()),
            Kind::Named { context, .. } => self
                .kubectl
                .run(&["version"])
                .map(drop)
                .with_context(|| format!("the cluster of context {context} does not answer")),
        }
    }

    /// Our images and the model's where the cluster finds them.
    pub fn load_images(&self) -> Result<LoadedImages> {
        match &self.kind {
            Kind::Local(cluster) => {
                let progress = Progress::start();
                let images = images::load_product(cluster, Path::new(WORKSPACE), &progress)?;
                images::load_model(
                    cluster,
                    &self.model_file()?,
                    &ImageName::new(MODEL_IMAGE, MODEL_TAG),
                    &progress,
                )?;
                Ok(images)
            }
            Kind::Named {
                images: ImagesOf::Registry { registry, tag },
                ..
            } => Ok(pullable_images(registry, tag)),
            Kind::Named {
                images: ImagesOf::KindNodes(cluster),
                ..
            } => self.load_into_kind(cluster),
        }
    }

    fn load_into_kind(&self, cluster: &str) -> Result<LoadedImages> {
        let folder = self.cache.images();
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("failed to make {}", folder.display()))?;
        let mut archives =
            images::write_product(Path::new(WORKSPACE), &folder, KIND_TAG, &Progress::start())?;
        let model = folder.join("model.tar");
        Archive::of_data(self.model_file()?, "/model.gguf")
            .archive(&ImageName::new(MODEL_IMAGE, MODEL_TAG), &model)?;
        archives.push(model);
        for archive in archives {
            run(Command::new("kind")
                .args(["load", "image-archive", "--name", cluster])
                .arg(archive))?;
        }
        Ok(pullable_images("docker.io/pagoda", KIND_TAG))
    }

    pub fn install_charts(&self, images: &LoadedImages) -> Result<()> {
        charts::install(
            &self.target()?,
            &PathBuf::from(WORKSPACE).join("charts"),
            images,
            &[],
            &Progress::start(),
        )
    }

    fn target(&self) -> Result<Target> {
        match &self.kind {
            Kind::Local(cluster) => Ok(Target::local(cluster)),
            Kind::Named { context, .. } => Target::context(context, &self.cache.bin()),
        }
    }

    /// The sample as this place can run it: the model's image comes from the user's registry where there is one.
    pub fn localised(&self, sample: &str) -> String {
        match &self.kind {
            Kind::Local(_)
            | Kind::Named {
                images: ImagesOf::KindNodes(_),
                ..
            } => sample.to_owned(),
            Kind::Named {
                images: ImagesOf::Registry { registry, .. },
                ..
            } => sample.replace("image://pagoda/", &format!("image://{registry}/")),
        }
    }

    fn model_file(&self) -> Result<PathBuf> {
        let file = self.cache.root().join("models").join(MODEL_FILE);
        if !file.exists() {
            run(&mut Command::new(
                Path::new(WORKSPACE).join("e2e/fetch-model"),
            ))?;
        }
        Ok(file)
    }

    /// The gateway as it is reached from here; a forwarded port lasts as long as the value.
    pub fn gateway(&self) -> Result<Gateway> {
        match &self.kind {
            Kind::Local(_) => Gateway::at_service(&self.kubectl),
            Kind::Named { .. } => Gateway::forwarded(&self.kubectl),
        }
    }

    /// What a shell must be told before `kubectl` means this cluster.
    pub fn shell_setup(&self) -> String {
        match &self.kind {
            Kind::Local(cluster) => cluster.environment(),
            Kind::Named { .. } => String::new(),
        }
    }

    /// `kubectl`, and what must follow it.
    pub fn kubectl_words(&self) -> String {
        match &self.kind {
            Kind::Local(_) => "kubectl".to_owned(),
            Kind::Named { context, .. } => format!("kubectl --context {context}"),
        }
    }

    /// What to type before a client reaches the gateway, and where it is then. Our own port-forward ends with us.
    pub fn gateway_words(&self, gateway: &Gateway) -> (Option<String>, String) {
        match &self.kind {
            Kind::Local(_) => (None, gateway.url().to_owned()),
            Kind::Named { .. } => (
                Some(format!(
                    "{} port-forward --namespace {SYSTEM_NAMESPACE} service/pagoda-gateway 8080:80 &",
                    self.kubectl_words()
                )),
                "http://127.0.0.1:8080".to_owned(),
            ),
        }
    }

    /// How the load generator is told which cluster to watch.
    pub fn kubeconfig_words(&self) -> Vec<String> {
        match &self.kind {
            Kind::Local(cluster) => vec![format!(
                "--kubeconfig={}",
                cluster.paths().kubeconfig().display()
            )],
            Kind::Named { context, .. } => vec![format!("--context={context}")],
        }
    }

    /// What the other `./demo` commands need to mean this cluster.
    pub fn demo_words(&self) -> String {
        match &self.kind {
            Kind::Local(_) => String::new(),
            Kind::Named {
                context,
                images: ImagesOf::KindNodes(_),
            } => format!(" --context {context}"),
            Kind::Named {
                context,
                images: ImagesOf::Registry { registry, tag },
            } => format!(" --context {context} --registry {registry} --tag {tag}"),
        }
    }

    /// Components of a local cluster, pods of Pagoda, services.
    pub fn print_status(&self) -> Result<()> {
        if let Kind::Local(cluster) = &self.kind {
            let components = cluster.status()?;
            if components.is_empty() {
                println!("there is no local cluster; ./demo makes one");
                return Ok(());
            }
            for component in components {
                let state = component.pid.map_or("not running".to_owned(), |pid| {
                    format!("pid {pid}, {} MiB", component.resident_bytes >> 20)
                });
                println!("{:<20} {state}", component.name);
            }
            println!("logs: {}", cluster.paths().logs().display());
        }
        println!(
            "{}",
            self.kubectl
                .run(&["get", "pods", "--namespace", SYSTEM_NAMESPACE])?
        );
        println!(
            "{}",
            self.kubectl
                .run(&["get", "isvc", "--all-namespaces", "--output", "wide"])?
        );
        Ok(())
    }

    /// Removes all that `up` and `load` brought.
    pub fn down(&self) -> Result<()> {
        match &self.kind {
            Kind::Local(cluster) => cluster.down(&Progress::start())?,
            Kind::Named { .. } => self.uninstall()?,
        }
        println!(
            "nothing is left running; programs, images and models stay in {} (remove it to free the space)",
            self.cache.root().display()
        );
        Ok(())
    }

    fn uninstall(&self) -> Result<()> {
        let services = [
            "inferenceservice",
            SERVICE,
            SIMULATED,
            "--namespace",
            NAMESPACE,
            "--ignore-not-found",
        ];
        let delete: Vec<&str> = ["delete"].into_iter().chain(services).collect();
        self.kubectl.run(&delete)?;
        charts::uninstall(&self.target()?, &Progress::start())
    }
}

/// A base URL of the gateway.
pub struct Gateway {
    url: String,
    forward: Option<Child>,
}

impl Gateway {
    pub fn url(&self) -> &str {
        &self.url
    }

    /// By the Service's own address, which the local cluster's host has a route to.
    fn at_service(kubectl: &Kubectl) -> Result<Self> {
        Ok(Self {
            url: charts::gateway_url(kubectl)?,
            forward: None,
        })
    }

    /// By `kubectl port-forward` to a port of this machine that the kernel picks.
    fn forwarded(kubectl: &Kubectl) -> Result<Self> {
        let mut command = kubectl.command(&[
            "port-forward",
            "--namespace",
            SYSTEM_NAMESPACE,
            "service/pagoda-gateway",
            ":80",
        ]);
        let mut forward = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start kubectl port-forward")?;
        let line = first_line(&mut forward)?;
        let Some(address) = forwarded_address(&line) else {
            forward.kill().ok();
            bail!("kubectl port-forward said '{}'", line.trim());
        };
        Ok(Self {
            url: format!("http://{address}"),
            forward: Some(forward),
        })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(forward) = &mut self.forward {
            // It may have ended by itself; then there is nothing to end.
            forward.kill().ok();
            forward.wait().ok();
        }
    }
}

/// The first line a program says. What it says later is read and dropped for as long as it runs: nobody to read it would
/// end the program, at the first connection in kubectl's case.
fn first_line(program: &mut Child) -> Result<String> {
    let output = program.stdout.take().context("it has no standard output")?;
    let mut output = BufReader::new(output);
    let mut line = String::new();
    output.read_line(&mut line)?;
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    Ok(line)
}

/// From `Forwarding from 127.0.0.1:40123 -> 8080`.
fn forwarded_address(line: &str) -> Option<&str> {
    line.strip_prefix("Forwarding from ")?.split(" ->").next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_says_more_than_its_first_line_lives_on() {
        let mut program = Command::new("sh")
            .args(["-c", "echo first; sleep 0.2; seq 100000; exit 7"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(first_line(&mut program).unwrap(), "first\n");
        assert_eq!(program.wait().unwrap().code(), Some(7));
    }

    #[test]
    fn the_forwarded_address_is_read_from_kubectls_line() {
        assert_eq!(
            forwarded_address("Forwarding from 127.0.0.1:40123 -> 8080\n"),
            Some("127.0.0.1:40123")
        );
        assert_eq!(forwarded_address("error: no pods"), None);
    }

    #[test]
    fn a_cluster_of_the_users_is_refused_without_a_registry_and_pulls_the_model_from_it() {
        let named = |registry: Option<&str>| Named {
            context: "mine".to_owned(),
            registry: registry.map(str::to_owned),
            tag: "1".to_owned(),
        };
        assert!(Place::new(Some(named(None))).is_err());
        let place = Place::new(Some(named(Some("registry.example/team/")))).unwrap();
        let sample = place.localised(include_str!("../../samples/smollm2.yaml"));
        assert!(
            sample.contains(
                "uri: image://registry.example/team/smollm2-135m-instruct:q4_1//model.gguf"
            ),
            "{sample}"
        );
    }

    #[test]
    fn the_sample_names_the_image_that_is_loaded() {
        let uri = format!("uri: image://{MODEL_IMAGE}:{MODEL_TAG}//model.gguf");
        assert!(include_str!("../../samples/smollm2.yaml").contains(&uri));
    }
}
