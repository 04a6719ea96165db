//! The `model` of an OpenAI request, read without building the rest of it.
//!
//! The body is looked through once; nothing of it is kept or changed. A body that names its model
//! twice is refused: gateway and pod might each believe another one.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};
use thiserror::Error;

/// Why a body names no model.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The bytes are not text.
    #[error("the request body is not valid UTF-8 (byte {0}); send JSON encoded as UTF-8")]
    Utf8(usize),
    /// The text is not a JSON object that names its model once.
    #[error("the request body is not valid JSON for this endpoint: {0}")]
    Json(#[from] serde_json::Error),
    /// There is no model.
    #[error(
        "the request names no model; add the field \"model\" with a name listed by GET /v1/models"
    )]
    Missing,
}

/// The text of the body's `model` field, borrowed when it has no escapes.
pub fn request_model(body: &[u8]) -> Result<Cow<'_, str>, ModelError> {
    let text = std::str::from_utf8(body).map_err(|error| ModelError::Utf8(error.valid_up_to()))?;
    let named: Named<'_> = serde_json::from_str(text)?;
    named
        .0
        .filter(|model| !model.is_empty())
        .ok_or(ModelError::Missing)
}

struct Named<'a>(Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for Named<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor).map(Named)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object with the field \"model\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut model = None;
        while let Some(Text(key)) = map.next_key()? {
            if key != "model" {
                map.next_value::<IgnoredAny>()?;
            } else if model.is_some() {
                return Err(de::Error::duplicate_field("model"));
            } else {
                model = Some(map.next_value::<Text<'de>>()?.0);
            }
        }
        Ok(model)
    }
}

/// A string that borrows from the input where it can; `Cow` alone never does.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor).map(Text)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(body: &[u8]) -> String {
        request_model(body).expect_err("refused").to_string()
    }

    #[test]
    fn finds_the_model_wherever_it_stands_and_borrows_it() {
        let body = br#"{"messages":[{"role":"user","content":"\"model\": \"no\""}],"x":{"model":"inner"},"model":"chat","n":1e400}"#;
        assert!(matches!(request_model(body), Ok(Cow::Borrowed("chat"))));
    }

    #[test]
    fn an_escaped_name_is_unescaped() {
        assert_eq!(
            request_model(br#"{"model":"caf\u00e9\/x"}"#).expect("valid"),
            "café/x"
        );
        assert_eq!(
            request_model(br#"{"\u006dodel":"chat"}"#).expect("valid"),
            "chat"
        );
    }

    #[test]
    fn each_bad_body_gets_its_own_words() {
        assert!(message(b"").contains("EOF"));
        assert!(message(b"[1,2]").contains("expected a JSON object"));
        assert!(message(br#"{"model": 3}"#).contains("expected a string"));
        assert!(message(br#"{"model":"a"} x"#).contains("trailing"));
        assert!(message(br#"{"model":"a","model":"b"}"#).contains("duplicate field `model`"));
        assert!(message(br#"{"stream":true}"#).contains("names no model"));
        assert!(message(br#"{"model":""}"#).contains("names no model"));
        assert!(message(b"{\"model\":\"a\",\"p\":\"\xff\"}").contains("byte 18"));
    }

    #[test]
    fn nesting_as_deep_as_the_body_limit_does_not_overflow_the_stack() {
        let deep = 2 * 1024 * 1024;
        let body = format!(
            r#"{{"x":{}{},"model":"chat"}}"#,
            "[".repeat(deep),
            "]".repeat(deep)
        );
        assert_eq!(request_model(body.as_bytes()).expect("valid"), "chat");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = request_model(&body);
        }

        #[test]
        fn agrees_with_a_full_parse(model in ".{1,20}", prompt in ".{0,40}", first in any::<bool>()) {
            let (model_json, prompt_json) = (serde_json::json!(model), serde_json::json!({"a": [prompt, null, 1.5]}));
            let body = if first { format!(r#"{{"model":{model_json},"p":{prompt_json}}}"#) } else { format!(r#"{{ "p" : {prompt_json} , "model" : {model_json} }}"#) };
            prop_assert_eq!(request_model(body.as_bytes()).expect("valid"), model);
        }
    }
}
