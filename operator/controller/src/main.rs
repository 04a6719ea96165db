//! Starts the operator, and ends it when it may no longer write.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use clap::Parser;
use opentelemetry_sdk::trace::SdkTracerProvider;
use pagoda_operator::{
    autoscaler, boot,
    context::Context,
    fetch_progress, heap,
    heartbeat::{self, Patience},
    http_server, keda, lease,
    metrics::Metrics,
    metrics_api,
    prometheus::{self, config::Servers},
    queue::Queue,
    settings::Settings,
    stores, telemetry, workers,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

/// Reconciles that run get this long to finish after SIGTERM.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// A reconcile gives itself up after three minutes; several in a row that hang are a wedge.
const RECONCILES: Patience = Patience {
    late: Duration::from_mins(5),
    dead: Duration::from_mins(8),
};
/// The autoscaler turns once a second.
const SCALING: Patience = Patience {
    late: Duration::from_mins(1),
    dead: Duration::from_mins(3),
};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    // Two providers could be linked in; rustls refuses to guess.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        bail!("a TLS provider is already installed");
    }
    let traces = telemetry::traces(settings.otlp_endpoint.as_deref())?;
    raise_file_limit();
    log_as(&settings.log_format, traces.as_ref());
    let ended = start(settings).await;
    if let Some(traces) = traces {
        // Sends what is left, and waits for it.
        let _ = tokio::task::spawn_blocking(move || traces.shutdown()).await;
    }
    ended
}

/// Every pod that is asked each second keeps a connection open, and some systems begin with a thousand files. Without leave the
/// number of connections stays within what there is.
fn raise_file_limit() {
    let files = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: files.maximum,
        ..files
    };
    let _ = setrlimit(Resource::Nofile, all);
}

async fn start(settings: Settings) -> anyhow::Result<()> {
    let servers = settings.prometheus_config.as_deref();
    let servers = servers.map(prometheus::config::read).transpose()?;
    let client = boot::client().await?;
    for namespace in settings.scopes() {
        boot::check_definition(&client, namespace).await?;
    }
    run(settings, servers.unwrap_or_default(), client).await
}

async fn run(settings: Settings, servers: Servers, client: kube::Client) -> anyhow::Result<()> {
    let metrics = Arc::new(Metrics::default());
    let health = Arc::new(http_server::Health::default());
    let server = http_server::bind(settings.listen).await?;
    tokio::spawn(http_server::serve(server, health.clone(), metrics.clone()));

    let leadership = tokio::select! {
        leadership = lease::acquire(&client, &settings, |other| health.stands_by_for(other)) => leadership?,
        () = asked_to_stop() => return Ok(()),
    };
    metrics.leader.set(1);
    health.lead();
    let queue = Arc::new(Queue::default());
    let (stores, mut watches) = stores::watch(&client, &settings, &queue, &health.heartbeats);
    let context = Arc::new(Context::new(
        client,
        settings,
        servers,
        stores,
        leadership.clone(),
        metrics,
        queue.clone(),
    ));
    health
        .heartbeats
        .observe("the end of any reconcile", RECONCILES, move || {
            queue.stuck()
        });
    let scaling = health.heartbeats.expect("the autoscaler", SCALING);
    heap::keep_trimmed().context("failed to start a thread")?;
    let dead = heartbeat::guard(health.heartbeats.clone()).context("failed to start a thread")?;
    let mut reconciles = tokio::spawn(workers::run(context.clone(), health.clone()));
    let mut scaler = tokio::spawn(autoscaler::run(context.clone(), scaling));
    let asking = health
        .heartbeats
        .expect("the questions to Prometheus", SCALING);
    let mut questions = tokio::spawn(prometheus::run(context.clone(), asking));
    let mut progress = tokio::spawn(fetch_progress::run(context.clone()));
    // Figures for other people's autoscalers: that they cannot be served is told, and no reason to end.
    tokio::spawn(metrics_api::run(context.clone()));
    tokio::spawn(keda::run(context.clone()));
    tokio::select! {
        lost = lease::keep(&context.client, &context.settings, &leadership) => {
            Err(lost).context("stopping, for another may lead now")
        }
        Ok(dead) = dead => Err(dead).context("stopping, for a restart is the cure that is left"),
        Some(ended) = watches.join_next() => bail!("a watch ended: {ended:?}"),
        ended = &mut reconciles => bail!("the reconciles ended: {ended:?}"),
        ended = &mut scaler => bail!("the autoscaler ended: {ended:?}"),
        ended = &mut questions => bail!("nobody asks Prometheus: {ended:?}"),
        ended = &mut progress => bail!("nobody asks for the progress of models: {ended:?}"),
        () = asked_to_stop() => {
            context.stop.send_replace(true);
            scaler.abort();
            // Whatever still runs after this fails at its next write.
            let _ = tokio::time::timeout(SHUTDOWN_GRACE, &mut reconciles).await;
            leadership.stop();
            lease::release(&context.client, &context.settings, &leadership).await;
            Ok(())
        }
    }
}

async fn asked_to_stop() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        // Without handlers the signals' default action ends the process.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("asked to stop");
}

fn log_as(format: &str, traces: Option<&SdkTracerProvider>) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,kube=warn"));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = if format == "json" {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.boxed()
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(traces.map(telemetry::layer))
        .init();
}
