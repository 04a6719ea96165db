//! The fields of a JSON request, taken out one by one, so that what is left over is what nobody honoured.
//!
//! A parameter that changes what an answer means must not be ignored: OpenAI answers unknown ones with 400, and so does
//! this. Fields that change nothing here are dropped.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::errors::ApiError;

/// Fields that never change the text: bookkeeping of other services, and what only steers their billing or caches.
const HARMLESS: [&str; 9] = [
    "metadata",
    "parallel_tool_calls",
    // A guess at the answer, to have it sooner.
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
];

/// Fields that are known, are not honoured yet, and the words for it.
const UNSUPPORTED: [(&str, &str); 11] = [
    ("audio", "audio output"),
    ("functions", "function calling"),
    ("function_call", "function calling"),
    ("guided_json", "guided decoding"),
    ("logprobs", "returning log probabilities"),
    ("modalities", "output other than text"),
    ("reasoning_effort", "reasoning effort"),
    ("suffix", "insertion before a suffix"),
    ("tools", "tool calling"),
    ("tool_choice", "tool calling"),
    ("top_logprobs", "returning log probabilities"),
];

/// What is left of a request's JSON object.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Parses a body. Bytes that are not UTF-8 are no JSON.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(_) => Err(ApiError::bad_request("the body must be a JSON object")),
            Err(error) if std::str::from_utf8(body).is_err() => Err(ApiError::bad_request(
                format!("the body is not valid UTF-8: {error}"),
            )),
            Err(error) => Err(ApiError::bad_request(format!(
                "the body is not valid JSON: {error}"
            ))),
        }
    }

    /// Takes a field; `null` is as good as absent.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value).map(Some).map_err(|error| {
                ApiError::bad_param(name, format!("'{name}' is not as expected: {error}"))
            }),
        }
    }

    /// Takes a field that must be there.
    pub fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?
            .ok_or_else(|| ApiError::bad_param(name, format!("'{name}' is missing")))
    }

    /// Refuses whatever nobody took and that would change the answer.
    pub fn refuse_rest(self) -> Result<(), ApiError> {
        self.0
            .into_iter()
            .filter(|(name, value)| !changes_nothing(name, value))
            .try_for_each(|(name, _)| {
                let known = UNSUPPORTED
                    .iter()
                    .find(|(unsupported, _)| *unsupported == name);
                Err(match known {
                    Some((_, what)) => ApiError::unsupported(&name, what),
                    None => ApiError {
                        code: Some("unknown_parameter"),
                        ..ApiError::bad_param(
                            &name,
                            format!("there is no parameter '{name}': leave it out"),
                        )
                    },
                })
            })
    }
}

/// Absent in all but name, harmless, or set to what happens anyway.
fn changes_nothing(name: &str, value: &Value) -> bool {
    let neutral = match value {
        Value::Null => true,
        Value::Bool(on) => !on && name == "logprobs",
        Value::Array(list) => {
            list.is_empty() && ["tools", "functions"].contains(&name)
                || name == "modalities" && *value == serde_json::json!(["text"])
        }
        Value::String(text) => match name {
            "tool_choice" | "function_call" => text == "none" || text == "auto",
            "suffix" => text.is_empty(),
            _ => false,
        },
        Value::Object(_) => false,
        Value::Number(number) => name == "top_logprobs" && number.as_u64() == Some(0),
    };
    neutral || HARMLESS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(body: &Value) -> Option<ApiError> {
        Fields::parse(body.to_string().as_bytes())
            .unwrap()
            .refuse_rest()
            .err()
    }

    #[test]
    fn what_changes_the_meaning_of_an_answer_is_refused_by_name() {
        let cases = [
            (json!({"tools": [{"type": "function"}]}), "tools"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"logprobs": true}), "logprobs"),
            (json!({"top_logprobs": 3}), "top_logprobs"),
            (json!({"modalities": ["text", "audio"]}), "modalities"),
            (json!({"repetition_penalty": 1.1}), "repetition_penalty"),
            (json!({"temprature": 1}), "temprature"),
        ];
        for (body, param) in cases {
            let error = refusal(&body).unwrap_or_else(|| panic!("{body} passed"));
            assert_eq!(
                (error.param.as_deref(), error.status.as_u16()),
                (Some(param), 400)
            );
        }
    }

    #[test]
    fn what_changes_nothing_passes() {
        let body = json!({
            "user": "u", "store": false, "metadata": {"a": "b"}, "tools": [], "tool_choice": "none", "logprobs": false,
            "suffix": null, "modalities": ["text"], "whatever": null,
        });
        assert_eq!(refusal(&body), None);
    }

    #[test]
    fn a_field_of_the_wrong_type_is_named() {
        let mut fields = Fields::parse(br#"{"temperature": "hot"}"#).unwrap();
        let error = fields.take::<f32>("temperature").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("temperature"));
        assert!(error.message.contains("hot"), "{}", error.message);
    }

    #[test]
    fn bodies_that_are_no_json_objects_are_told_apart() {
        let message = |body: &[u8]| Fields::parse(body).unwrap_err().message;
        assert!(message(b"{").starts_with("the body is not valid JSON"));
        assert!(message(b"").starts_with("the body is not valid JSON"));
        assert!(message(b"{\"a\": \"\xff\"}").starts_with("the body is not valid UTF-8"));
        assert_eq!(message(b"[1]"), "the body must be a JSON object");
    }
}
