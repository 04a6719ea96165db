//! Local cluster, images and charts for people and scripts: results on standard output, progress on standard error.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use pagoda_e2e::cache::Cache;
use pagoda_e2e::charts::{self, Target};
use pagoda_e2e::cluster::{Cluster, DEFAULT_NAME, NODE_NAME};
use pagoda_e2e::demo::{self, DemoArgs};
use pagoda_e2e::images::{self, ImageName, PRODUCT_IMAGES, ProductImage};
use pagoda_e2e::progress::Progress;

/// A real Kubernetes on this machine, with Pagoda on it.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The local Kubernetes itself.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// The product's images, and images that carry a model.
    #[command(subcommand)]
    Images(ImagesCommand),
    /// Install or upgrade the charts pagoda-crds and pagoda in pagoda-system.
    #[command(visible_alias = "charts")]
    InstallCharts(InstallCharts),
    /// From nothing to a streamed answer, with every wait shown.
    Demo(DemoArgs),
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Bring it up, or repair it; does nothing when it runs.
    Up(Local),
    /// End it and remove every trace of it but the programs built.
    Down(Local),
    /// Build Kubernetes, kubectl and helm, and start nothing; print the folder they are in.
    Programs(Local),
    /// Show each component; exit code 1 when one does not run.
    Status(Local),
    /// Print shell lines that set KUBECONFIG and PATH: eval "$(pagoda-e2e cluster env)".
    Env(Local),
    /// Make the node claim NVIDIA GPUs that are not there, for tests of scheduling.
    FakeGpus {
        /// How many.
        count: u32,
        #[command(flatten)]
        local: Local,
    },
}

#[derive(Debug, Subcommand)]
enum ImagesCommand {
    /// Build operator, gateway and engine (release, static) and load an image of each; print their references.
    BuildLoad(BuildLoad),
    /// Load an image that carries a model file at /model.gguf; print the source that names it.
    LoadModel {
        /// The model file.
        file: PathBuf,
        /// The image's name.
        #[arg(
            long,
            value_name = "REPOSITORY:TAG",
            default_value = "pagoda/test-model:dev"
        )]
        image: String,
        #[command(flatten)]
        local: Local,
    },
    /// Load an image of llama.cpp's own server, built from source the first time (minutes); print its name.
    LoadLlamaServer(Local),
    /// Build operator, gateway and engine and write a docker archive of each, for `docker load`, `kind load image-archive`.
    Archive {
        /// Where the archives go.
        folder: PathBuf,
        /// Tag of the images pagoda/NAME.
        #[arg(long, default_value = "dev")]
        tag: String,
        #[command(flatten)]
        workspace: Workspace,
    },
}

#[derive(Debug, Args)]
struct BuildLoad {
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    workspace: Workspace,
    /// A cluster of yours: nothing can be loaded into it, so this says what to do instead.
    #[arg(long)]
    context: Option<String>,
    /// Build and load only these, and leave the others as they are.
    #[arg(long, value_name = "IMAGE", value_delimiter = ',', value_parser = ["operator", "gateway", "engine"])]
    only: Vec<String>,
    /// Also load an image that carries this model file; print the source that names it.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// The name of that image.
    #[arg(
        long,
        value_name = "REPOSITORY:TAG",
        default_value = "pagoda/test-model:dev"
    )]
    model_image: String,
}

#[derive(Debug, Args)]
struct InstallCharts {
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    workspace: Workspace,
    /// Install into this context of your kubeconfig instead of the local cluster; its nodes must be able to pull the images.
    #[arg(long, requires = "image_registry", requires = "image_tag")]
    context: Option<String>,
    /// With --context: where the images are, such as registry.example.com/pagoda (then /operator, /gateway, /engine).
    #[arg(long, requires = "context")]
    image_registry: Option<String>,
    /// With --context: the images' tag.
    #[arg(long, requires = "context")]
    image_tag: Option<String>,
    /// A further value for the pagoda chart, as helm's --set takes it.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

#[derive(Debug, Args)]
struct Local {
    /// Which local cluster; one runs at a time.
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

#[derive(Debug, Args)]
struct Workspace {
    /// The clone whose sources and charts are used.
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = ".",
        env = "PAGODA_REPOSITORY"
    )]
    repository: PathBuf,
}

impl Local {
    fn cluster(&self) -> Result<Cluster> {
        Cluster::named(Cache::from_env()?, &self.name)
    }
}

fn main() -> ExitCode {
    let progress = Progress::start();
    let outcome = match Cli::parse().command {
        Command::Cluster(command) => cluster(&command, &progress),
        Command::Images(command) => images(command, &progress),
        Command::InstallCharts(command) => install_charts(&command, &progress),
        Command::Demo(arguments) => demo::run(arguments).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn cluster(command: &ClusterCommand, progress: &Progress) -> Result<ExitCode> {
    match command {
        ClusterCommand::Up(local) => local.cluster()?.up(progress)?,
        ClusterCommand::Down(local) => local.cluster()?.down(progress)?,
        ClusterCommand::Programs(local) => {
            println!("{}", local.cluster()?.programs(progress)?.display());
        }
        ClusterCommand::Status(local) => return status(&local.cluster()?),
        ClusterCommand::Env(local) => print!("{}", local.cluster()?.environment()),
        ClusterCommand::FakeGpus { count, local } => {
            local.cluster()?.kubectl().claim_gpus(NODE_NAME, *count)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn status(cluster: &Cluster) -> Result<ExitCode> {
    let components = cluster.status()?;
    if components.is_empty() {
        println!("no cluster; `pagoda-e2e cluster up` makes one");
        return Ok(ExitCode::FAILURE);
    }
    println!("{:20} {:>8} {:>9}  LOG", "COMPONENT", "PID", "RSS MiB");
    for component in &components {
        let pid = component
            .pid
            .map_or_else(|| "ended".to_owned(), |pid| pid.to_string());
        let log = cluster.paths().log(&component.name);
        println!(
            "{:20} {pid:>8} {:>9}  {}",
            component.name,
            component.resident_bytes >> 20,
            log.display()
        );
    }
    let all_run = components.iter().all(|component| component.pid.is_some());
    Ok(if all_run {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn images(command: ImagesCommand, progress: &Progress) -> Result<ExitCode> {
    match command {
        ImagesCommand::BuildLoad(command) => build_load(&command, progress)?,
        ImagesCommand::LoadModel { file, image, local } => {
            let name = ImageName::parse(&image)?;
            println!(
                "{}",
                images::load_model(&local.cluster()?, &file, &name, progress)?
            );
        }
        ImagesCommand::LoadLlamaServer(local) => {
            images::load_llama_server(&local.cluster()?, progress)?;
            println!("{}", images::LLAMA_SERVER_IMAGE);
        }
        ImagesCommand::Archive {
            folder,
            tag,
            workspace,
        } => {
            for file in images::write_product(&workspace.repository, &folder, &tag, progress)? {
                println!("{}", file.display());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn build_load(command: &BuildLoad, progress: &Progress) -> Result<()> {
    if let Some(context) = &command.context {
        bail!(
            "images cannot be loaded into the nodes of {context}: write them with `pagoda-e2e images archive FOLDER`, then \
             `kind load image-archive`, or `docker load` and push them to a registry that the nodes reach"
        );
    }
    let cluster = command.local.cluster()?;
    let is_wanted = |image: &ProductImage| {
        command.only.is_empty() || command.only.iter().any(|name| name == image.name)
    };
    let wanted: Vec<ProductImage> = PRODUCT_IMAGES.into_iter().filter(is_wanted).collect();
    for (name, image) in
        images::load_images(&cluster, &command.workspace.repository, &wanted, progress)?
    {
        println!("{name} {}", image.reference());
    }
    if let Some(model) = &command.model {
        let name = ImageName::parse(&command.model_image)?;
        println!("{}", images::load_model(&cluster, model, &name, progress)?);
    }
    Ok(())
}

fn install_charts(command: &InstallCharts, progress: &Progress) -> Result<ExitCode> {
    let folder = command.workspace.repository.join("charts");
    let cache = Cache::from_env()?;
    let named = (
        &command.context,
        &command.image_registry,
        &command.image_tag,
    );
    let (target, images) = if let (Some(context), Some(registry), Some(tag)) = named {
        (
            Target::context(context, &cache.bin())?,
            charts::pullable_images(registry, tag),
        )
    } else {
        let cluster = command.local.cluster()?;
        (Target::local(&cluster), images::recorded(&cluster)?)
    };
    charts::install(&target, &folder, &images, &command.settings, progress)?;
    Ok(ExitCode::SUCCESS)
}
