//! `/v1/models`: the names served here, each with Pagoda's facts about the model.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::errors::ApiError;
use crate::app::{App, Served};

/// All names.
pub async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let served = app.served().map_err(ApiError::loading)?;
    let models: Vec<Value> = app.names.iter().map(|name| entry(name, served)).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

/// One name.
pub async fn one(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let served = app.served().map_err(ApiError::loading)?;
    if app.names.contains(&name) {
        Ok(Json(entry(&name, served)))
    } else {
        Err(ApiError::model_not_found(&name, &app.names))
    }
}

fn entry(name: &str, served: &Served) -> Value {
    json!({
        "id": name, "object": "model", "created": served.created, "owned_by": "pagoda",
        "max_model_len": served.info.context_tokens, "pagoda": served.info,
    })
}
