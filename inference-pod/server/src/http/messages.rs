//! `messages`: a conversation as clients send it.

use pagoda_text::{Content, Json, Message};
use serde::Deserialize;
use serde_json::Value;

use super::errors::ApiError;
use super::generate;

/// Messages of a conversation at most.
const MAX_MESSAGES: usize = 4096;

/// Calls of tools in one message at most.
const MAX_CALLS: usize = 256;

/// A message as clients send it.
#[derive(Deserialize)]
pub struct Given {
    role: String,
    content: Option<GivenContent>,
    name: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<GivenCall>>,
    tool_call_id: Option<String>,
    function_call: Option<Value>,
    audio: Option<Value>,
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
    refusal: Option<String>,
}

#[derive(Deserialize)]
struct GivenCall {
    id: Option<String>,
    function: Option<GivenFunction>,
}

#[derive(Deserialize)]
struct GivenFunction {
    name: String,
    arguments: Option<String>,
}

/// The messages, for a template.
pub fn messages(given: Vec<Given>) -> Result<Vec<Message>, ApiError> {
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

/// Only text and calls are taken: leaving anything else out would change the question.
fn message(index: usize, given: Given) -> Result<Message, ApiError> {
    let param = format!("messages[{index}]");
    if given.function_call.is_some_and(|call| !call.is_null()) {
        return Err(ApiError::unsupported(&param, "the older 'function_call'"));
    }
    if given.audio.is_some_and(|audio| !audio.is_null()) {
        return Err(ApiError::unsupported(&param, "audio"));
    }
    let calls = given.tool_calls.filter(|calls| !calls.is_empty());
    let content = match given.content {
        Some(GivenContent::Text(text)) => Content::Text(text),
        Some(GivenContent::Parts(parts)) => {
            let texts = parts.into_iter().map(|part| text_of(&param, part));
            Content::Parts(texts.collect::<Result<_, _>>()?)
        }
        None if calls.is_some() => Content::Absent,
        None => {
            let param = format!("{param}.content");
            return Err(ApiError::bad_param(&param, format!("'{param}' is missing")));
        }
    };
    Ok(Message {
        role: role(given.role),
        content,
        name: given.name,
        reasoning_content: given.reasoning_content,
        tool_call_id: given.tool_call_id,
        tool_calls: calls.map(|calls| tool_calls(&param, calls)).transpose()?,
    })
}

/// OpenAI's newer name of the system; no template knows it.
fn role(given: String) -> String {
    if given == "developer" {
        "system".into()
    } else {
        given
    }
}

fn text_of(param: &str, part: Part) -> Result<String, ApiError> {
    match (part.r#type.as_str(), part.text.or(part.refusal)) {
        ("text" | "refusal", Some(text)) => Ok(text),
        ("text", None) => Err(ApiError::bad_param(
            param,
            format!("a text part of '{param}' has no 'text'"),
        )),
        (kind, _) => Err(ApiError::unsupported(
            param,
            &format!(
                "content of type '{}'",
                kind.chars().take(40).collect::<String>()
            ),
        )),
    }
}

/// Calls that the assistant made before, as templates want them.
fn tool_calls(param: &str, calls: Vec<GivenCall>) -> Result<Json, ApiError> {
    let param = format!("{param}.tool_calls");
    if calls.len() > MAX_CALLS {
        return Err(ApiError::bad_param(
            &param,
            format!("'{param}' has more than {MAX_CALLS} calls"),
        ));
    }
    let call = |call: GivenCall| match call.function {
        Some(function) => Ok(serde_json::json!({
            "id": call.id, "type": "function",
            "function": {"name": function.name, "arguments": function.arguments.unwrap_or_else(|| "{}".into())},
        })),
        None => Err(ApiError::bad_param(
            &param,
            format!("a call in '{param}' has no 'function'"),
        )),
    };
    let calls: Vec<Value> = calls.into_iter().map(call).collect::<Result<_, _>>()?;
    generate::json(calls.into())
}
