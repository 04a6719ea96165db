//! The API: OpenAI's endpoints, health and metrics.

mod body;
mod chat;
mod choices;
mod completions;
mod embeddings;
mod errors;
mod fields;
mod format;
mod generate;
mod health;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod params;
mod reader;
mod scheduling;
mod shape;
mod streaming;
mod tokenize;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Uri;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};

use crate::app::App;
use errors::ApiError;

pub use generate::unix_seconds;

/// All endpoints over `app`.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .route("/metrics", get(metrics::metrics))
        .route("/metrics/load", get(metrics::load))
        .method_not_allowed_fallback(|| async { ApiError::wrong_method() })
        .layer(from_fn_with_state(Arc::clone(&app), count))
        .fallback(|uri: Uri| async move { ApiError::no_such_path(uri.path()) })
        .with_state(app)
}

/// Counts responses by endpoint and status.
async fn count(
    State(app): State<Arc<App>>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let endpoint = endpoint_label(path.as_ref().map_or("", MatchedPath::as_str));
    let response = next.run(request).await;
    app.metrics
        .http_response(endpoint, response.status().as_u16());
    response
}

/// Labels are a fixed set: a client must not be able to make new series.
fn endpoint_label(path: &str) -> &'static str {
    match path {
        "/v1/chat/completions" => "chat_completions",
        "/v1/completions" => "completions",
        "/v1/embeddings" => "embeddings",
        "/tokenize" => "tokenize",
        "/detokenize" => "detokenize",
        "/v1/models" | "/v1/models/{*name}" => "models",
        "/health/live" => "health_live",
        "/health/ready" => "health_ready",
        "/metrics" => "metrics",
        "/metrics/load" => "metrics_load",
        _ => "other",
    }
}
