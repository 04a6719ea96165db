//! The program's command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde_json::json;
use tokio::sync::watch;

use super::arrivals::{Arrival, Spacing, paced};
use super::display::{Display, table};
use super::replicas::{Replicas, ServiceName, watch_replicas};
use super::report::Report;
use super::run::{Plan, run};
use super::target::Target;
use super::trace::{TraceOptions, read_trace};

/// Sends streamed chats to an OpenAI-compatible server at a rate, or as a recorded trace has them, and reports what its clients
/// felt. Requests are sent when they are due, whether or not earlier ones have been answered.
#[derive(Clone, Debug, Parser)]
#[command(name = "pagoda-loadgen", version)]
pub struct LoadgenArgs {
    /// The server, with or without /v1
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    url: String,

    /// The model to ask for, as GET /v1/models names it
    #[arg(long, value_name = "NAME")]
    model: String,

    /// Requests a second
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "N",
        conflicts_with = "trace"
    )]
    rate: f64,

    /// How requests follow each other
    #[arg(long, value_enum, default_value_t, conflicts_with = "trace")]
    spacing: Spacing,

    /// How long requests are sent, in seconds; a trace's own length if it is shorter
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    duration: f64,

    /// Tokens of each prompt, about
    #[arg(long, default_value_t = 64, value_name = "N", conflicts_with = "trace")]
    prompt_tokens: usize,

    /// Most tokens of each answer; of a trace's longer ones, too
    #[arg(long, default_value_t = 64, value_name = "N")]
    max_tokens: u32,

    /// Play this recorded trace (Mooncake's JSON lines, or Azure's CSV) instead of a rate
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Play the trace so many times faster than it was recorded
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", requires = "trace")]
    speedup: f64,

    /// Cut the trace's longer prompts to so many tokens
    #[arg(long, default_value_t = 1024, value_name = "N", requires = "trace")]
    max_prompt_tokens: usize,

    /// Most requests open at once; further ones are counted as not sent
    #[arg(long, default_value_t = 2000, value_name = "N")]
    concurrency_limit: usize,

    /// Longest time for one request, in seconds
    #[arg(long, default_value_t = 300.0, value_name = "SECONDS")]
    timeout: f64,

    /// Makes arrivals and prompts; the same seed makes the same load
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Show the pods of this InferenceService while load runs
    #[arg(long, value_name = "NAMESPACE/NAME")]
    watch_service: Option<ServiceName>,

    /// The kubeconfig to watch with, instead of $KUBECONFIG or ~/.kube/config
    #[arg(long, value_name = "FILE", requires = "watch_service")]
    kubeconfig: Option<String>,

    /// The kubeconfig's context to watch with, instead of its current one
    #[arg(long, value_name = "NAME", requires = "watch_service")]
    context: Option<String>,

    /// Send to a server that is neither on this machine nor in the local cluster; it must be yours
    #[arg(long)]
    allow_any_target: bool,

    /// Print the line of JSON alone, without the table
    #[arg(long)]
    json: bool,
}

/// Runs the load that `args` describe and prints its report. An error if not one request was answered whole.
pub async fn main(args: LoadgenArgs) -> Result<()> {
    let target = Target::resolve(&args.url, args.allow_any_target).await?;
    let arrivals = arrivals(&args)?;
    let pods = match &args.watch_service {
        Some(service) => Some(
            watch_replicas(service, args.kubeconfig.as_deref(), args.context.as_deref()).await?,
        ),
        None => None,
    };
    let timeout = seconds("--timeout", args.timeout)?;
    let plan = Plan {
        target,
        model: args.model.clone(),
        arrivals,
        max_in_flight: args.concurrency_limit,
        timeout,
        seed: args.seed,
    };
    let mut display = Display::new();
    let report = run(plan, interrupted(), |snapshot| {
        display.show(snapshot, now(pods.as_ref()));
    })
    .await?;
    display.end();
    print(&args, &report, display.seen)
}

fn now(pods: Option<&watch::Receiver<Replicas>>) -> Option<Replicas> {
    pods.map(|pods| *pods.borrow())
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn arrivals(args: &LoadgenArgs) -> Result<Box<dyn Iterator<Item = Arrival> + Send>> {
    let duration = seconds("--duration", args.duration)?;
    let Some(trace) = &args.trace else {
        ensure!(
            args.rate.is_finite() && args.rate > 0.0,
            "--rate must be more than 0"
        );
        return Ok(Box::new(paced(
            args.rate,
            duration,
            args.spacing,
            args.seed,
            args.prompt_tokens,
            args.max_tokens,
        )));
    };
    ensure!(
        args.speedup.is_finite() && args.speedup > 0.0,
        "--speedup must be more than 0"
    );
    let options = TraceOptions {
        speedup: args.speedup,
        duration: Some(duration),
        max_prompt_tokens: args.max_prompt_tokens,
        max_tokens: args.max_tokens,
    };
    Ok(Box::new(read_trace(trace, options)?.into_iter()))
}

fn seconds(name: &str, value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|time| !time.is_zero())
        .with_context(|| format!("{name} must be a number of seconds above 0"))
}

fn print(args: &LoadgenArgs, report: &Report, pods: Option<(i64, i64)>) -> Result<()> {
    if !args.json {
        println!("{}", table(report, pods));
    }
    let mut line = serde_json::to_value(report)?;
    if let Some((fewest, most)) = pods {
        line["ready_pods_min"] = json!(fewest);
        line["ready_pods_max"] = json!(most);
    }
    println!("{line}");
    if report.sent == 0 {
        bail!("no request was due within --duration");
    }
    ensure!(
        report.whole > 0,
        "none of the {} requests was answered whole",
        report.sent
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(args: &[&str]) -> LoadgenArgs {
        LoadgenArgs::parse_from([&["pagoda-loadgen", "--model", "chat"], args].concat())
    }

    #[test]
    fn the_command_line_is_consistent() {
        LoadgenArgs::command().debug_assert();
    }

    #[test]
    fn rates_and_times_that_cannot_be_are_refused() {
        for wrong in [
            ["--rate", "0"],
            ["--rate", "NaN"],
            ["--duration", "0"],
            ["--duration", "-1"],
        ] {
            assert!(
                arrivals(&parse(&[wrong.join("=").as_str()])).is_err(),
                "{wrong:?}"
            );
        }
        assert_eq!(
            arrivals(&parse(&["--rate=10", "--duration=1", "--spacing=fixed"]))
                .expect("fine")
                .count(),
            10
        );
    }
}
