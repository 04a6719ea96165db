//! Log probabilities in OpenAI's two shapes.

use std::sync::Arc;

use pagoda_engine_core::TokenLogprobs;
use serde_json::{Map, Value, json};

use crate::language::Language;

/// Writes log probabilities; it knows the tokens' texts.
#[derive(Clone, Debug)]
pub struct LogprobsShape {
    language: Arc<Language>,
    /// Whether anybody asked for them.
    wanted: bool,
}

impl LogprobsShape {
    /// Writes `null` unless `wanted`.
    pub fn new(language: Arc<Language>, wanted: bool) -> Self {
        Self { language, wanted }
    }

    /// Of a conversation's answer: `{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`.
    pub fn chat(&self, tokens: &[TokenLogprobs]) -> Value {
        if !self.wanted {
            return Value::Null;
        }
        let entry = |token: &TokenLogprobs| {
            let mut entry = self.chat_token(token.token, token.logprob);
            let top = token.top.iter();
            let top: Vec<Value> = top.map(|&(id, value)| self.chat_token(id, value)).collect();
            entry["top_logprobs"] = top.into();
            entry
        };
        let content: Vec<Value> = tokens.iter().map(entry).collect();
        json!({"content": content, "refusal": null})
    }

    fn chat_token(&self, token: u32, logprob: f32) -> Value {
        let bytes = self.bytes(token);
        json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
    }

    /// Of a completion: parallel lists, from the character `offset` of the text on. `prompt` are the tokens of an echoed
    /// prompt, the first of which has no probability. Moves `offset` on.
    pub fn completion(
        &self,
        first: Option<u32>,
        prompt: &[TokenLogprobs],
        tokens: &[TokenLogprobs],
        offset: &mut usize,
    ) -> Value {
        if !self.wanted {
            return Value::Null;
        }
        let mut lists = Lists::default();
        if let Some(first) = first {
            lists.push(self.text(first), None, Value::Null, offset);
        }
        for token in prompt.iter().chain(tokens) {
            lists.push(
                self.text(token.token),
                Some(token.logprob),
                self.top(token),
                offset,
            );
        }
        json!({
            "tokens": lists.tokens, "token_logprobs": lists.logprobs, "top_logprobs": lists.top,
            "text_offset": lists.offsets,
        })
    }

    /// The most probable tokens by their texts; the token itself is always among them.
    fn top(&self, token: &TokenLogprobs) -> Value {
        let mut top = Map::new();
        let own = (token.token, token.logprob);
        for (id, logprob) in token.top.iter().copied().chain([own]) {
            // Different tokens may have one text; the more probable one stays.
            top.entry(self.text(id)).or_insert(json!(logprob));
        }
        Value::Object(top)
    }

    fn text(&self, token: u32) -> String {
        String::from_utf8_lossy(self.bytes(token)).into_owned()
    }

    fn bytes(&self, token: u32) -> &[u8] {
        let bytes = self.language.tokenizer().token_bytes(token);
        bytes.unwrap_or_default()
    }
}

#[derive(Default)]
struct Lists {
    tokens: Vec<String>,
    logprobs: Vec<Option<f32>>,
    top: Vec<Value>,
    offsets: Vec<usize>,
}

impl Lists {
    fn push(&mut self, text: String, logprob: Option<f32>, top: Value, offset: &mut usize) {
        self.offsets.push(*offset);
        *offset += text.chars().count();
        self.tokens.push(text);
        self.logprobs.push(logprob);
        self.top.push(top);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u8, logprob: f32, top: &[(u8, f32)]) -> TokenLogprobs {
        TokenLogprobs {
            token: id.into(),
            logprob,
            top: top.iter().map(|&(id, value)| (id.into(), value)).collect(),
        }
    }

    fn shape() -> LogprobsShape {
        LogprobsShape::new(Arc::new(Language::bytes()), true)
    }

    #[test]
    fn a_conversations_tokens_have_text_bytes_and_rivals() {
        let value = shape().chat(&[token(b'a', -0.5, &[(b'b', -0.25), (b'a', -0.5)])]);
        let entry = &value["content"][0];
        assert_eq!(entry["token"], "a");
        assert_eq!(entry["bytes"], json!([97]));
        assert_eq!(entry["top_logprobs"][0]["token"], "b");
        assert_eq!(entry["top_logprobs"][0]["logprob"], -0.25);
    }

    #[test]
    fn a_completions_lists_are_parallel_and_offsets_go_on() {
        let shape = shape();
        let mut offset = 0;
        let first = shape.completion(
            Some(b'x'.into()),
            &[token(b'y', -1.0, &[])],
            &[token(b'z', -2.0, &[(b'q', -0.5)])],
            &mut offset,
        );
        assert_eq!(first["tokens"], json!(["x", "y", "z"]));
        assert_eq!(first["token_logprobs"], json!([null, -1.0, -2.0]));
        assert_eq!(
            first["top_logprobs"],
            json!([null, {"y": -1.0}, {"q": -0.5, "z": -2.0}])
        );
        assert_eq!(first["text_offset"], json!([0, 1, 2]));
        let second = shape.completion(None, &[], &[token(b'!', -3.0, &[])], &mut offset);
        assert_eq!(second["text_offset"], json!([3]));
    }

    #[test]
    fn nobody_who_did_not_ask_gets_any() {
        let shape = LogprobsShape::new(Arc::new(Language::bytes()), false);
        assert_eq!(shape.chat(&[]), Value::Null);
        assert_eq!(shape.completion(None, &[], &[], &mut 0), Value::Null);
    }
}
