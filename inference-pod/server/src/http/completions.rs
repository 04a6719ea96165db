//! `/v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use pagoda_text::structured::Form;
use pagoda_text::tools::ToolFormat;
use serde::Deserialize;

use super::body;
use super::chat::{compiled, with_scores};
use super::errors::ApiError;
use super::fields::Fields;
use super::format::{AnswerFormat, SCHEMA_PARAM};
use super::generate::{self, Prompt, Request};
use super::params::{Params, top_logprobs};
use super::reader::Reading;
use super::shape::Endpoint;
use crate::app::App;
use crate::language::Language;

/// OpenAI's default here.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A prompt as clients send it.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Given {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// One list of token ids.
    Tokens(Vec<u32>),
    /// Several lists.
    TokenLists(Vec<Vec<u32>>),
}

impl Given {
    /// How many texts.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }
}

/// Continues a prompt or several.
pub async fn completions(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let open = generate::open(&app)?;
    let body = body::read(body, app.body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let mut params = Params::take(&mut fields, rand::random())?;
    params.sampling.logprobs = logprobs(&mut fields)?;
    let given: Given = fields.require("prompt")?;
    let echo = fields.take("echo")?.unwrap_or(false);
    fields.refuse_rest()?;
    let language = Arc::clone(&generate::served(&app, &params.model)?.language);
    let constraint = match &params.format {
        AnswerFormat::Text => None,
        AnswerFormat::Json(schema) => {
            let form = Form::Json(schema.clone());
            Some(compiled(&language, form, SCHEMA_PARAM).await?)
        }
    };
    let request = Request {
        endpoint: Endpoint::Completions,
        logprobs: params.sampling.logprobs.is_some(),
        prompt_logprobs: params.sampling.logprobs.filter(|_| echo),
        params: with_scores(params),
        prompts: encode(language, given, echo).await?,
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
        constraint,
        reading: Reading::new(None, ToolFormat::Hermes),
    };
    generate::answer(&app, request, open).await
}

/// The number of rivals; 0 still reports the tokens themselves. Some clients send what conversations have here.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Number(usize),
        Switch(bool),
    }
    match fields.take::<Given>("logprobs")? {
        Some(Given::Number(top)) => top_logprobs("logprobs", top).map(Some),
        Some(Given::Switch(false)) | None => Ok(None),
        Some(Given::Switch(true)) => Err(ApiError::bad_param(
            "logprobs",
            "'logprobs' is a number here: how many of the most probable tokens to report",
        )),
    }
}

async fn encode(
    language: Arc<Language>,
    given: Given,
    echo: bool,
) -> Result<Vec<Prompt>, ApiError> {
    let work = move || prompts(given, echo, &language);
    generate::tokenised(work).await?
}

fn prompts(given: Given, echo: bool, language: &Language) -> Result<Vec<Prompt>, ApiError> {
    let prompts = token_lists("prompt", given, language)?;
    let with_echo = |(text, tokens): (String, Vec<u32>)| Prompt {
        tokens,
        echo: if echo { text } else { String::new() },
    };
    let prompts: Vec<Prompt> = prompts.into_iter().map(with_echo).collect();
    if prompts.is_empty() || prompts.iter().any(|prompt| prompt.tokens.is_empty()) {
        return Err(ApiError::bad_param(
            "prompt",
            "'prompt' is empty: there is nothing to continue",
        ));
    }
    Ok(prompts)
}

/// Texts and tokens of what a client sent as `param`.
pub fn token_lists(
    param: &str,
    given: Given,
    language: &Language,
) -> Result<Vec<(String, Vec<u32>)>, ApiError> {
    let encode = |text: String| {
        let tokens = language.encode_text(&text);
        (text, tokens)
    };
    let check = |tokens: Vec<u32>| {
        // Decoding also finds the token that does not exist.
        let text = language
            .tokenizer()
            .decode(&tokens)
            .map_err(|error| ApiError::bad_param(param, error.to_string()))?;
        Ok((text, tokens))
    };
    match given {
        Given::Text(text) => Ok(vec![encode(text)]),
        Given::Texts(texts) => Ok(texts.into_iter().map(encode).collect()),
        Given::Tokens(tokens) => Ok(vec![check(tokens)?]),
        Given::TokenLists(lists) => lists.into_iter().map(check).collect(),
    }
}
