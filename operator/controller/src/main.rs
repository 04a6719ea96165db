//! Starts the operator, and ends it when it may no longer write.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use clap::Parser;
use pagoda_operator::{
    autoscaler, boot, context::Context, http_server, lease, metrics::Metrics, queue, reconcile,
    settings::Settings, stores,
};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Reconciles that run get this long to finish after SIGTERM.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    log_as(&settings.log_format);
    // Two providers could be linked in; rustls refuses to guess.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        bail!("a TLS provider is already installed");
    }
    let client = boot::client().await?;
    for namespace in settings.scopes() {
        boot::check_definition(&client, namespace).await?;
    }
    run(settings, client).await
}

async fn run(settings: Settings, client: kube::Client) -> anyhow::Result<()> {
    let metrics = Arc::new(Metrics::default());
    let health = Arc::new(http_server::Health::default());
    let server = http_server::bind(settings.listen).await?;
    tokio::spawn(http_server::serve(server, health.clone(), metrics.clone()));

    let leadership = tokio::select! {
        leadership = lease::acquire(&client, &settings) => leadership?,
        () = asked_to_stop() => return Ok(()),
    };
    metrics.leader.set(1);
    let (stores, watches) = stores::watch(&client, &settings);
    let (trigger, triggered) = queue::channel();
    let context = Arc::new(Context::new(
        client,
        settings,
        stores,
        leadership.clone(),
        metrics,
        trigger,
    ));
    let mut controller = tokio::spawn(reconcile::run(
        context.clone(),
        watches,
        triggered,
        health.clone(),
    ));
    let mut scaler = tokio::spawn(autoscaler::run(context.clone(), health.clone()));
    tokio::select! {
        lost = lease::keep(&context.client, &context.settings, &leadership) => {
            Err(lost).context("stopping, for another may lead now")
        }
        ended = &mut controller => bail!("the reconcile loop ended: {ended:?}"),
        ended = &mut scaler => bail!("the autoscaler ended: {ended:?}"),
        () = asked_to_stop() => {
            context.stop.notify_waiters();
            scaler.abort();
            // Whatever still runs after this fails at its next write.
            let _ = tokio::time::timeout(SHUTDOWN_GRACE, &mut controller).await;
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

fn log_as(format: &str) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,kube=warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if format == "json" {
        builder.json().flatten_event(true).init();
    } else {
        builder.init();
    }
}
