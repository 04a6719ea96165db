//! `pagoda-gateway`: see `pagoda-gateway --help`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use pagoda_router::admin::{self, Admin};
use pagoda_router::cli::Args;
use pagoda_router::directory::Directory;
use pagoda_router::lifecycle::{Lifecycle, Phase};
use pagoda_router::metrics::Metrics;
use pagoda_router::proxy::Gateway;
use pagoda_router::{server, static_routes, watch};
use tokio::signal::unix::{SignalKind, signal};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    match start(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: Args) -> anyhow::Result<()> {
    let _written_at_exit = start_log(&args)?;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let ended = runtime.block_on(run(args));
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

fn start_log(args: &Args) -> anyhow::Result<WorkerGuard> {
    let filter = EnvFilter::try_new(&args.log).with_context(|| {
        format!(
            "--log {} is not a filter such as info or pagoda_router=debug",
            args.log
        )
    })?;
    // Written by a thread of its own: a full pipe loses lines instead of stopping requests.
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .finish(std::io::stdout());
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(writer)
        .init();
    Ok(guard)
}

async fn run(args: Args) -> anyhow::Result<()> {
    let metrics = Arc::new(Metrics::default());
    let directory = Arc::new(Directory::new(Arc::clone(&metrics), args.hold_memory_bytes));
    let gateway = Arc::new(Gateway::new(
        Arc::clone(&directory),
        Arc::clone(&metrics),
        args.proxy(),
    ));
    let lifecycle = Arc::new(Lifecycle::default());
    tokio::spawn(Arc::clone(&lifecycle).beat());
    let admin_listener = std::net::TcpListener::bind(args.admin_listen)
        .with_context(|| format!("failed to listen on --admin-listen {}", args.admin_listen))?;
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("failed to listen on --listen {}", args.listen))?;
    admin::spawn(
        admin_listener,
        Admin {
            gateway: Arc::clone(&gateway),
            lifecycle: Arc::clone(&lifecycle),
        },
    )?;
    follow_routes(&args, &directory, &metrics).await?;
    tokio::spawn(leave_on_signal(
        Arc::clone(&lifecycle),
        Duration::from_secs(args.shutdown_grace_seconds),
    ));
    tracing::info!(listen = %args.listen, admin_listen = %args.admin_listen, "taking requests");
    let open = server::serve(
        listener,
        gateway,
        args.server(),
        lifecycle.reached(Phase::Draining),
    )
    .await;
    tracing::info!(
        connections = open.count(),
        held_requests = "refused, to be sent again",
        "finishing open responses"
    );
    directory.close();
    if tokio::time::timeout(Duration::from_secs(args.drain_seconds), open.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("--drain-seconds is over: the responses still open are cut");
    }
    tracing::info!("ended");
    Ok(())
}

async fn follow_routes(
    args: &Args,
    directory: &Arc<Directory>,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<()> {
    if let Some(path) = &args.static_routes {
        return static_routes::load(path, directory).context("--static-routes");
    }
    let client = kube_client(args.context.clone()).await?;
    let scopes = watch::scopes(&args.watch_namespaces);
    tracing::info!(?scopes, "watching");
    tokio::spawn(watch::follow_services(
        client.clone(),
        scopes.clone(),
        Arc::clone(directory),
        Arc::clone(metrics),
    ));
    tokio::spawn(watch::follow_endpoints(
        client,
        scopes,
        Arc::clone(directory),
        Arc::clone(metrics),
    ));
    Ok(())
}

async fn kube_client(context: Option<String>) -> anyhow::Result<kube::Client> {
    let mut config = match context {
        Some(context) => {
            let options = kube::config::KubeConfigOptions {
                context: Some(context.clone()),
                ..Default::default()
            };
            kube::Config::from_kubeconfig(&options)
                .await
                .with_context(|| format!("failed to use context {context} of the kubeconfig"))?
        }
        None => kube::Config::infer().await.context(
            "no cluster to watch: run in a pod, set KUBECONFIG, or give --static-routes",
        )?,
    };
    watch::give_up_silent_connections(&mut config, watch::LONGEST_SILENCE);
    kube::Client::try_from(config).context("failed to make a client of the API server")
}

async fn leave_on_signal(lifecycle: Arc<Lifecycle>, grace: Duration) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("signals cannot be received; this process will not drain");
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!(
        grace_seconds = grace.as_secs(),
        "asked to end: not ready from now on"
    );
    lifecycle.enter(Phase::Leaving);
    tokio::time::sleep(grace).await;
    lifecycle.enter(Phase::Draining);
}
