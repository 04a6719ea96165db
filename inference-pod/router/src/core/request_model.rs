//! The `model` of an OpenAI request, and whether it asks for a stream, read without building the rest of it.
//!
//! The body is looked through once; nothing of it is kept or changed. A body that names its model
//! twice is refused: gateway and pod might each believe another one.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
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

/// What a body asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The text of its `model` field, borrowed when it has no escapes.
    pub model: Cow<'a, str>,
    /// Whether its `stream` field is there once and `true`.
    pub stream: bool,
}

/// Looks a body through.
pub fn asked(body: &[u8]) -> Result<Asked<'_>, ModelError> {
    let text = std::str::from_utf8(body).map_err(|error| ModelError::Utf8(error.valid_up_to()))?;
    let Fields { model, stream } = serde_json::from_str(text)?;
    let model = model
        .filter(|model| !model.is_empty())
        .ok_or(ModelError::Missing)?;
    Ok(Asked {
        model,
        stream: stream == Some(true),
    })
}

#[derive(Default)]
struct Fields<'a> {
    model: Option<Cow<'a, str>>,
    stream: Option<bool>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object with the field \"model\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Fields::default();
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "model" if fields.model.is_some() => {
                    return Err(de::Error::duplicate_field("model"));
                }
                "model" => fields.model = Some(map.next_value::<Text<'de>>()?.0),
                "stream" => {
                    let IsTrue(stream) = map.next_value()?;
                    // Which of two the pod believes is not known: nothing is promised for it.
                    fields.stream = Some(stream && fields.stream.is_none());
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(fields)
    }
}

/// Whether a value is `true`; what else it may be is for the pod to judge.
struct IsTrue(bool);

impl<'de> Deserialize<'de> for IsTrue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IsTrueVisitor).map(Self)
    }
}

struct IsTrueVisitor;

impl<'de> Visitor<'de> for IsTrueVisitor {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E: de::Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(false)
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
        asked(body).expect_err("refused").to_string()
    }

    #[test]
    fn finds_the_model_wherever_it_stands_and_borrows_it() {
        let body = br#"{"messages":[{"role":"user","content":"\"model\": \"no\""}],"x":{"model":"inner"},"model":"chat","n":1e400}"#;
        let asked = asked(body).expect("valid");
        assert!(matches!(asked.model, Cow::Borrowed("chat")) && !asked.stream);
    }

    #[test]
    fn an_escaped_name_is_unescaped() {
        assert_eq!(
            asked(br#"{"model":"caf\u00e9\/x"}"#).expect("valid").model,
            "café/x"
        );
        assert_eq!(
            asked(br#"{"\u006dodel":"chat"}"#).expect("valid").model,
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
    fn a_stream_is_asked_for_by_true_alone_and_once() {
        let streams = |fields: &str| {
            let body = format!(r#"{{{fields},"model":"chat"}}"#);
            let asked = asked(body.as_bytes()).expect("valid");
            assert_eq!(asked.model, "chat", "{fields}");
            asked.stream
        };
        assert!(streams(r#""stream": true"#) && streams(r#""\u0073tream":true"#));
        for value in [
            "false",
            "null",
            "0",
            "-1",
            "1.5",
            "1e3",
            r#""true""#,
            "[true,[{}]]",
            r#"{"a":{"stream":true}}"#,
        ] {
            assert!(!streams(&format!(r#""stream":{value}"#)), "{value}");
        }
        assert!(!streams(r#""stream":true,"stream":true"#));
        assert!(!streams(r#""stream":false,"stream":true"#));
        assert!(!streams(r#""x":{"stream":true}"#));
    }

    #[test]
    fn nesting_as_deep_as_the_body_limit_does_not_overflow_the_stack() {
        let deep = 2 * 1024 * 1024;
        let body = format!(
            r#"{{"x":{}{},"model":"chat"}}"#,
            "[".repeat(deep),
            "]".repeat(deep)
        );
        assert_eq!(asked(body.as_bytes()).expect("valid").model, "chat");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = asked(&body);
        }

        #[test]
        fn agrees_with_a_full_parse(model in ".{1,20}", prompt in ".{0,40}", first in any::<bool>()) {
            let (model_json, prompt_json) = (serde_json::json!(model), serde_json::json!({"a": [prompt, null, 1.5]}));
            let body = if first { format!(r#"{{"model":{model_json},"p":{prompt_json}}}"#) } else { format!(r#"{{ "p" : {prompt_json} , "model" : {model_json} }}"#) };
            prop_assert_eq!(asked(body.as_bytes()).expect("valid").model, model);
        }
    }
}
