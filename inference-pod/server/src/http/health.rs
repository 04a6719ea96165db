//! Liveness (does the engine's loop turn?) apart from readiness (should requests come here?).

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;

use crate::app::App;
use crate::drain::Stage;

/// 200 while the engine's loop turns or the model is being loaded.
pub async fn live(State(app): State<Arc<App>>) -> (StatusCode, String) {
    let Ok(served) = app.served() else {
        return (StatusCode::OK, "loading\n".into());
    };
    let age = served.engine.heartbeat().age(Instant::now());
    if age > app.wedged_after {
        let message = format!(
            "the engine has not finished a step for {} s\n",
            age.as_secs()
        );
        return (StatusCode::SERVICE_UNAVAILABLE, message);
    }
    (StatusCode::OK, "alive\n".into())
}

/// 200 while requests should come here.
pub async fn ready(State(app): State<Arc<App>>) -> (StatusCode, String) {
    if app.drain.stage() != Stage::Serving {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".into());
    }
    match app.served() {
        Ok(_) => (StatusCode::OK, "ready\n".into()),
        Err(percent) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("loading, {percent} %\n"),
        ),
    }
}
