//! `/healthz`, `/readyz` and `/metrics`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;

use crate::{heartbeat::Heartbeats, metrics::Metrics};

/// What `/healthz` and `/readyz` answer from.
#[derive(Default)]
pub struct Health {
    /// Signs of life.
    pub heartbeats: Arc<Heartbeats>,
    leading: AtomicBool,
    synced: AtomicBool,
}

impl Health {
    /// The loops start now.
    pub fn lead(&self) {
        self.leading.store(true, Ordering::Relaxed);
    }

    /// Every watch has been read once.
    pub fn synced(&self) {
        self.synced.store(true, Ordering::Relaxed);
    }

    /// One that waits to lead is ready to; one that leads is ready once it has seen the cluster.
    fn ready(&self) -> bool {
        !self.leading.load(Ordering::Relaxed) || self.synced.load(Ordering::Relaxed)
    }
}

/// Opens the port, so that a port in use is an error at once.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("failed to listen on {address}"))
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, health: Arc<Health>, metrics: Arc<Metrics>) {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health)
        .merge(
            Router::new()
                .route("/metrics", get(scrape))
                .with_state(metrics),
        );
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "health and metrics are no longer served");
    }
}

async fn healthz(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    match health.heartbeats.late() {
        None => (StatusCode::OK, "ok\n".into()),
        Some(silent) => (StatusCode::SERVICE_UNAVAILABLE, format!("{silent}\n")),
    }
}

async fn readyz(State(health): State<Arc<Health>>) -> (StatusCode, &'static str) {
    if health.ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the cluster has not been read yet\n",
        )
    }
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], metrics.render())
}
