//! `/healthz`, `/readyz` and `/metrics`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
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

use crate::metrics::Metrics;

/// A loop that has not turned for this long is wedged.
const WEDGED: Duration = Duration::from_mins(1);

/// Signs of life of the loops.
pub struct Health {
    started: Instant,
    leading: AtomicBool,
    synced: AtomicBool,
    reconciling: AtomicU64,
    scaling: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            leading: AtomicBool::new(false),
            synced: AtomicBool::new(false),
            reconciling: AtomicU64::new(0),
            scaling: AtomicU64::new(0),
        }
    }
}

impl Health {
    /// The loops start now; from here on their beats count.
    pub fn lead(&self) {
        self.beat_reconcile();
        self.beat_scaling();
        self.leading.store(true, Ordering::Relaxed);
    }

    /// Every watch has been read once.
    pub fn synced(&self) {
        self.synced.store(true, Ordering::Relaxed);
    }

    /// The queue of reconciles was looked at.
    pub fn beat_reconcile(&self) {
        self.reconciling.store(self.now(), Ordering::Relaxed);
    }

    /// A round of the autoscaler ended.
    pub fn beat_scaling(&self) {
        self.scaling.store(self.now(), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    fn wedged(&self) -> Option<&'static str> {
        if !self.leading.load(Ordering::Relaxed) {
            return None;
        }
        let late = |beat: &AtomicU64| {
            self.now().saturating_sub(beat.load(Ordering::Relaxed)) > WEDGED.as_secs()
        };
        [
            ("the reconcile loop", &self.reconciling),
            ("the autoscaler", &self.scaling),
        ]
        .into_iter()
        .find(|(_, beat)| late(beat))
        .map(|(name, _)| name)
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
    match health.wedged() {
        None => (StatusCode::OK, "ok\n".into()),
        Some(name) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{name} has not turned for {} s\n", WEDGED.as_secs()),
        ),
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
