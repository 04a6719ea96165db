//! `/v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;

use super::body;
use super::errors::ApiError;
use super::fields::Fields;
use super::generate::{self, Prompt, Request};
use super::params::Params;
use super::shape::Endpoint;
use crate::app::App;
use crate::language::Language;

/// OpenAI's default here.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A prompt as clients send it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Given {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// Continues a prompt or several.
pub async fn completions(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let open = generate::open(&app)?;
    let body = body::read(body, app.body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let params = Params::take(&mut fields, rand::random())?;
    let given: Given = fields.require("prompt")?;
    let echo = fields.take("echo")?.unwrap_or(false);
    fields.refuse_rest()?;
    let language = Arc::clone(&generate::served(&app, &params.model)?.language);
    let encoded = tokio::task::spawn_blocking(move || prompts(given, echo, &language)).await;
    let prompts =
        encoded.map_err(|error| ApiError::internal(format!("tokenising failed: {error}")))??;
    let request = Request {
        endpoint: Endpoint::Completions,
        params,
        prompts,
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
    };
    generate::answer(&app, request, open).await
}

fn prompts(given: Given, echo: bool, language: &Language) -> Result<Vec<Prompt>, ApiError> {
    let encode = |text: String| {
        let tokens = language.encode_text(&text);
        Prompt {
            tokens,
            echo: if echo { text } else { String::new() },
        }
    };
    let check = |tokens: Vec<u32>| {
        // Decoding also finds the token that does not exist.
        let text = language
            .tokenizer()
            .decode(&tokens)
            .map_err(|error| ApiError::bad_param("prompt", error.to_string()))?;
        Ok(Prompt {
            tokens,
            echo: if echo { text } else { String::new() },
        })
    };
    let prompts: Vec<Prompt> = match given {
        Given::Text(text) => vec![encode(text)],
        Given::Texts(texts) => texts.into_iter().map(encode).collect(),
        Given::Tokens(tokens) => vec![check(tokens)?],
        Given::TokenLists(lists) => lists
            .into_iter()
            .map(check)
            .collect::<Result<_, ApiError>>()?,
    };
    if prompts.is_empty() || prompts.iter().any(|prompt| prompt.tokens.is_empty()) {
        return Err(ApiError::bad_param(
            "prompt",
            "'prompt' is empty: there is nothing to continue",
        ));
    }
    Ok(prompts)
}
