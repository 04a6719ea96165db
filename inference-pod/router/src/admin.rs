//! `/healthz`, `/readyz`, `/metrics` and `/metrics/load`, on their own port, thread and runtime: they answer when the
//! data path does not, and can say so.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::lifecycle::{Lifecycle, Phase};
use crate::proxy::Gateway;

/// What the admin endpoints report on.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The data path.
    pub gateway: Arc<Gateway>,
    /// Its life.
    pub lifecycle: Arc<Lifecycle>,
}

/// Serves on `listener` until the process ends, on a thread of its own.
pub fn spawn(listener: std::net::TcpListener, admin: Admin) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("admin".into())
        .spawn(move || {
            runtime.block_on(async move {
                let served = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => axum::serve(listener, router(admin)).await,
                    Err(error) => Err(error),
                };
                tracing::error!(error = ?served.err(), "the admin endpoints have ended");
            });
        })?;
    Ok(())
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/metrics/load", get(load))
        .with_state(admin)
}

async fn healthz(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    if admin.lifecycle.is_alive() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the data path makes no progress\n",
        )
    }
}

async fn readyz(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    if admin.lifecycle.phase() > Phase::Serving {
        (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
    } else if admin.gateway.directory.is_synced() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "waiting for the first lists of InferenceServices and EndpointSlices\n",
        )
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let metrics = &admin.gateway.metrics;
    metrics
        .body_bytes
        .set(admin.gateway.budget.used_bytes() as i64);
    openmetrics(metrics.encode())
}

async fn load(State(admin): State<Admin>) -> Response {
    openmetrics(admin.gateway.metrics.encode_load())
}

fn openmetrics(encoded: Result<String, std::fmt::Error>) -> Response {
    match encoded {
        Ok(text) => (
            [(
                CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
