//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use pagoda_text::{Content, Message};
use serde::Deserialize;
use serde_json::Value;

use super::body;
use super::errors::ApiError;
use super::fields::Fields;
use super::generate::{self, Prompt, Request};
use super::params::Params;
use super::shape::Endpoint;
use crate::app::App;

/// Messages of a conversation at most.
const MAX_MESSAGES: usize = 4096;

/// A message as clients send it.
#[derive(Deserialize)]
struct Given {
    role: String,
    content: Option<GivenContent>,
    name: Option<String>,
    tool_calls: Option<Value>,
    function_call: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum GivenContent {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

/// Answers a conversation.
pub async fn chat_completions(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response, ApiError> {
    let open = generate::open(&app)?;
    let body = body::read(body, app.body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let params = Params::take(&mut fields, rand::random())?;
    let messages = messages(fields.require("messages")?)?;
    fields.refuse_rest()?;
    let language = Arc::clone(&generate::served(&app, &params.model)?.language);
    let now = i64::try_from(generate::unix_seconds()).unwrap_or(i64::MAX);
    // Templates and long texts take a while: not on a thread that serves others.
    let encoded = tokio::task::spawn_blocking(move || language.encode_chat(&messages, now)).await;
    let tokens =
        encoded.map_err(|error| ApiError::internal(format!("tokenising failed: {error}")))??;
    let prompts = vec![Prompt {
        tokens,
        echo: String::new(),
    }];
    let request = Request {
        endpoint: Endpoint::Chat,
        params,
        prompts,
        default_max_tokens: None,
    };
    generate::answer(&app, request, open).await
}

fn messages(given: Vec<Given>) -> Result<Vec<Message>, ApiError> {
    if given.is_empty() {
        return Err(ApiError::bad_param(
            "messages",
            "'messages' is empty: there is nothing to answer",
        ));
    }
    if given.len() > MAX_MESSAGES {
        let message = format!(
            "'messages' has {} messages; at most {MAX_MESSAGES} are allowed",
            given.len()
        );
        return Err(ApiError::bad_param("messages", message));
    }
    given
        .into_iter()
        .enumerate()
        .map(|(index, given)| message(index, given))
        .collect()
}

/// Only text is taken: leaving anything else out would change the question.
fn message(index: usize, given: Given) -> Result<Message, ApiError> {
    let param = format!("messages[{index}]");
    let called = [given.tool_calls, given.function_call];
    if called.into_iter().flatten().any(|call| !call.is_null()) {
        return Err(ApiError::unsupported(&param, "tool calling"));
    }
    let content = match given.content {
        Some(GivenContent::Text(text)) => Content::Text(text),
        Some(GivenContent::Parts(parts)) => {
            let texts = parts.into_iter().map(|part| text_of(&param, part));
            Content::Parts(texts.collect::<Result<_, _>>()?)
        }
        None => {
            let param = format!("{param}.content");
            return Err(ApiError::bad_param(&param, format!("'{param}' is missing")));
        }
    };
    Ok(Message {
        role: given.role,
        content,
        name: given.name,
        ..Message::default()
    })
}

fn text_of(param: &str, part: Part) -> Result<String, ApiError> {
    match (part.r#type.as_str(), part.text) {
        ("text", Some(text)) => Ok(text),
        ("text", None) => Err(ApiError::bad_param(
            param,
            format!("a text part of '{param}' has no 'text'"),
        )),
        (kind, _) => Err(ApiError::unsupported(
            param,
            &format!("content of type '{kind}'"),
        )),
    }
}
