//! `/v1/embeddings`: executors can make them, but the engine is not asked for any yet, which is what this says.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;

use super::body;
use super::completions::Given;
use super::errors::ApiError;
use super::fields::Fields;
use super::generate;
use crate::app::App;

/// Refuses, after the request is understood: what is wrong with it comes first.
pub async fn embeddings(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let body = body::read(body, app.body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let model: String = fields.require("model")?;
    let _: Given = fields.require("input")?;
    let _: Option<String> = fields.take("encoding_format")?;
    let _: Option<usize> = fields.take("dimensions")?;
    fields.refuse_rest()?;
    generate::served(&app, &model)?;
    Err(ApiError::no_embeddings(&model))
}
