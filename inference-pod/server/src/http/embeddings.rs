//! `/v1/embeddings`: texts to vectors, computed by the steps that continue everybody's answers.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::body;
use super::completions::{Given, token_lists};
use super::errors::ApiError;
use super::fields::Fields;
use super::generate;
use super::scheduling::Scheduling;
use crate::app::{App, Served};
use crate::engine::{Embedded, NewChoice};
use crate::language::Language;

/// Texts of one request at most, as OpenAI has it.
const MAX_TEXTS: usize = 2048;

/// Texts of one request in the engine at once: enough to fill its steps, and far from all its places in the queue.
const TEXTS_AT_ONCE: usize = 32;

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Numbers,
    /// Little-endian `f32` in base64: what OpenAI's own clients ask for.
    Base64,
}

/// A request that is understood.
struct Request {
    model: String,
    input: Given,
    encoding: Encoding,
    dimensions: Option<usize>,
    scheduling: Scheduling,
}

/// Embeds a text or several.
pub async fn embeddings(State(app): State<Arc<App>>, body: Body) -> Result<Json<Value>, ApiError> {
    let _open = generate::open(&app)?;
    let body = body::read(body, app.body_bytes).await?;
    let request = Request::parse(&body)?;
    let served = generate::served(&app, &request.model)?;
    let Some(pooling) = served.pooling else {
        return Err(ApiError::no_embeddings(&request.model));
    };
    let Scheduling {
        class,
        scope,
        timeout,
    } = request.scheduling;
    let texts = encode(served, request.input).await?;
    let prompt_tokens: usize = texts.iter().map(Vec::len).sum();
    let choices = texts.into_iter().map(|tokens| NewChoice {
        prompt: tokens,
        max_new_tokens: 1,
        embedding: Some(pooling),
        class,
        scope,
        timeout,
        ..NewChoice::default()
    });
    let embedded: Vec<Embedded> = stream::iter(choices)
        .map(|choice| served.engine.embed(choice))
        .buffered(TEXTS_AT_ONCE)
        .try_collect()
        .await?;
    check_dimensions(request.dimensions, &embedded)?;
    Ok(Json(answer(
        &request.model,
        &embedded,
        request.encoding,
        prompt_tokens,
    )))
}

impl Request {
    fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            model: fields.require("model")?,
            input: fields.require("input")?,
            encoding: encoding(&mut fields)?,
            dimensions: fields.take("dimensions")?,
            scheduling: Scheduling::take(&mut fields)?,
        };
        fields.refuse_rest()?;
        Ok(request)
    }
}

fn encoding(fields: &mut Fields) -> Result<Encoding, ApiError> {
    match fields.take::<String>("encoding_format")?.as_deref() {
        None | Some("float") => Ok(Encoding::Numbers),
        Some("base64") => Ok(Encoding::Base64),
        Some(_) => Err(ApiError::bad_param(
            "encoding_format",
            "'encoding_format' must be float or base64",
        )),
    }
}

/// Tokens of all texts, each of which fits: nothing is computed of a request that cannot be answered whole.
async fn encode(served: &Served, input: Given) -> Result<Vec<Vec<u32>>, ApiError> {
    if input.len() > MAX_TEXTS {
        return Err(wrong_count());
    }
    let language = Arc::clone(&served.language);
    let texts = generate::tokenised(move || texts(input, &language)).await??;
    texts
        .iter()
        .try_for_each(|tokens| served.limits.check_prompt(tokens.len()))?;
    Ok(texts)
}

fn texts(input: Given, language: &Language) -> Result<Vec<Vec<u32>>, ApiError> {
    let texts = token_lists("input", input, language)?;
    if texts.is_empty() || texts.iter().any(|(text, _)| text.is_empty()) {
        return Err(wrong_count());
    }
    Ok(texts.into_iter().map(|(_, tokens)| tokens).collect())
}

fn wrong_count() -> ApiError {
    let message = format!("'input' must be 1 to {MAX_TEXTS} texts, none of them empty");
    ApiError::bad_param("input", message)
}

/// Cutting a vector that was not made to be cut would spoil it.
fn check_dimensions(wanted: Option<usize>, embedded: &[Embedded]) -> Result<(), ApiError> {
    let length = embedded.first().map_or(0, |first| first.vector.len());
    match wanted {
        Some(wanted) if wanted != length => Err(ApiError::bad_param(
            "dimensions",
            format!("this model's vectors have {length} dimensions: leave 'dimensions' out"),
        )),
        _ => Ok(()),
    }
}

fn answer(model: &str, embedded: &[Embedded], encoding: Encoding, prompt_tokens: usize) -> Value {
    let data = embedded.iter().enumerate().map(|(index, embedded)| {
        json!({
            "object": "embedding",
            "index": index,
            "embedding": written(&embedded.vector, encoding),
        })
    });
    let cached: usize = embedded.iter().map(|text| text.cached_tokens).sum();
    json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": model,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    })
}

fn written(vector: &[f32], encoding: Encoding) -> Value {
    match encoding {
        Encoding::Numbers => json!(vector),
        Encoding::Base64 => {
            let bytes: Vec<u8> = vector
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            Value::String(STANDARD.encode(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_numbers_or_their_bytes() {
        let vector = [0.5, -1.0];
        assert_eq!(written(&vector, Encoding::Numbers), json!([0.5, -1.0]));
        assert_eq!(written(&vector, Encoding::Base64), json!("AAAAPwAAgL8="));
    }

    #[test]
    fn a_vector_is_never_cut() {
        let embedded = [Embedded {
            vector: vec![0.0; 3],
            cached_tokens: 0,
        }];
        assert!(check_dimensions(None, &embedded).is_ok());
        assert!(check_dimensions(Some(3), &embedded).is_ok());
        let error = check_dimensions(Some(2), &embedded).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("dimensions"));
    }
}
