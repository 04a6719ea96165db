//! `GET /v1/models`: every name that a request may use.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use serde::Serialize;

use crate::directory::{Directory, ListedModel};
use crate::errors::ApiError;
use crate::relay::GatewayBody;

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: i64,
    owned_by: &'a str,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

fn model(listed: &ListedModel) -> Model<'_> {
    Model {
        id: &listed.name,
        object: "model",
        created: listed.created_seconds,
        owned_by: listed.service.as_str(),
    }
}

/// All of them.
pub fn list(directory: &Directory) -> Response<GatewayBody> {
    let models = directory.models();
    json(&List {
        object: "list",
        data: models.iter().map(model).collect(),
    })
}

/// The one called `name`, which may also be a service's `namespace/name`.
pub fn get(directory: &Directory, name: &str) -> Result<Response<GatewayBody>, ApiError> {
    let models = directory.models();
    let named = |listed: &&ListedModel| listed.name == name || listed.service.as_str() == name;
    models
        .iter()
        .find(named)
        .map(|listed| json(&model(listed)))
        .ok_or_else(|| ApiError::unknown_model(name))
}

fn json(value: &impl Serialize) -> Response<GatewayBody> {
    // Strings and integers only: this cannot fail.
    let mut response = Response::new(GatewayBody::full(
        serde_json::to_vec(value).unwrap_or_default(),
    ));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
