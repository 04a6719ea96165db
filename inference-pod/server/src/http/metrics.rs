//! `/metrics`, in the format that the scraper asks for, and `/metrics/load`, the few of them that an autoscaler reads each
//! second.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};

use super::errors::ApiError;
use crate::app::App;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// OpenMetrics where the scraper accepts it, the older format otherwise.
pub async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let (format, text) = if accept.contains("application/openmetrics-text") {
        (OPEN_METRICS, app.metrics.open_metrics())
    } else {
        (PROMETHEUS, app.metrics.prometheus_text())
    };
    answer(format, text)
}

/// Load alone, always in the older format.
pub async fn load(State(app): State<Arc<App>>) -> Response {
    answer(PROMETHEUS, app.metrics.load_text())
}

fn answer(format: &'static str, text: Result<String, std::fmt::Error>) -> Response {
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, format)], text).into_response(),
        Err(error) => {
            ApiError::internal(format!("metrics could not be written: {error}")).into_response()
        }
    }
}
