//! `./demo`: from nothing to a streamed answer, with every wait shown.

mod ask;
mod load;
mod phases;
mod place;
mod up;
mod watch;

use anyhow::Result;
use clap::{Args, Subcommand};

use place::{Named, Place};

/// Namespace the samples are applied to.
const NAMESPACE: &str = "default";
/// The sample that `up` applies and asks.
const SERVICE: &str = "smollm2";
/// The sample that `load --simulated` applies.
const SIMULATED: &str = "simulated";

/// Shows Pagoda at work: a cluster, a model, an answer.
#[derive(Debug, Args)]
pub struct DemoArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// A cluster of your own, by its name in your kubeconfig; without it a local one is made.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// With --context: where its nodes pull the images from, such as registry.example.com/pagoda.
    #[arg(long, global = true, requires = "context")]
    registry: Option<String>,
    /// With --registry: the images' tag.
    #[arg(long, global = true, default_value = "dev")]
    tag: String,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Bring everything up and ask a question (the default).
    Up,
    /// Drive load and watch replicas, time to first token and tokens per second.
    Load(load::LoadArgs),
    /// Show what runs.
    Status,
    /// Take everything away again; what was built stays in the cache.
    Down,
}

/// Runs one action.
pub fn run(args: DemoArgs) -> Result<()> {
    let (registry, tag) = (args.registry, args.tag);
    let place = Place::new(args.context.map(|context| Named {
        context,
        registry,
        tag,
    }))?;
    match args.action.unwrap_or(Action::Up) {
        Action::Up => up::up(&place),
        Action::Load(load) => load::load(&place, &load),
        Action::Status => place.print_status(),
        Action::Down => place.down(),
    }
}
