//! The shapes of answers: whole ones and the chunks of streams, for both endpoints.

use pagoda_engine_core::FinishReason;
use serde_json::{Value, json};

/// Which endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// Tokens counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt, once, whatever `n` is.
    pub prompt_tokens: usize,
    /// Of all choices.
    pub completion_tokens: usize,
}

impl Usage {
    fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        })
    }
}

/// What all parts of one answer have in common.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The answer's id, without its prefix.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name, as asked for.
    pub model: String,
    /// Whether chunks carry `usage: null`, because the last one carries the usage.
    pub include_usage: bool,
}

/// A complete choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FinishedChoice {
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub reason: Option<FinishReason>,
}

fn reason_name(reason: Option<FinishReason>) -> Option<&'static str> {
    reason.map(|reason| match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    })
}

impl Shape {
    fn id(&self) -> String {
        match self.endpoint {
            Endpoint::Chat => format!("chatcmpl-{}", self.id),
            Endpoint::Completions => format!("cmpl-{}", self.id),
        }
    }

    fn envelope(&self, object: &str, choices: &[Value]) -> Value {
        json!({
            "id": self.id(), "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": concat!("pagoda-", env!("CARGO_PKG_VERSION")), "choices": choices,
        })
    }

    /// A whole answer.
    pub fn whole(&self, choices: &[FinishedChoice], usage: Usage) -> Value {
        let choice = |(index, choice): (usize, &FinishedChoice)| match self.endpoint {
            Endpoint::Chat => json!({
                "index": index, "logprobs": null, "finish_reason": reason_name(choice.reason),
                "message": {"role": "assistant", "content": choice.text, "refusal": null},
            }),
            Endpoint::Completions => json!({
                "index": index, "logprobs": null, "finish_reason": reason_name(choice.reason), "text": choice.text,
            }),
        };
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let choices: Vec<Value> = choices.iter().enumerate().map(choice).collect();
        let mut answer = self.envelope(object, &choices);
        answer["usage"] = usage.to_json();
        answer
    }

    /// The chunk that opens a choice; completions have none.
    pub fn opening_chunk(&self, choice: usize) -> Option<Value> {
        (self.endpoint == Endpoint::Chat)
            .then(|| self.chat_chunk(choice, &json!({"role": "assistant", "content": ""}), None))
    }

    /// More text of a choice.
    pub fn text_chunk(&self, choice: usize, text: &str) -> Value {
        match self.endpoint {
            Endpoint::Chat => self.chat_chunk(choice, &json!({"content": text}), None),
            Endpoint::Completions => self.completion_chunk(choice, text, None),
        }
    }

    /// The end of a choice.
    pub fn closing_chunk(&self, choice: usize, reason: FinishReason) -> Value {
        match self.endpoint {
            Endpoint::Chat => self.chat_chunk(choice, &json!({}), Some(reason)),
            Endpoint::Completions => self.completion_chunk(choice, "", Some(reason)),
        }
    }

    /// The last chunk of a stream that was asked for its usage.
    pub fn usage_chunk(&self, usage: Usage) -> Value {
        let mut chunk = self.envelope(self.chunk_object(), &[]);
        chunk["usage"] = usage.to_json();
        chunk
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn chat_chunk(&self, index: usize, delta: &Value, reason: Option<FinishReason>) -> Value {
        self.chunk(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": reason_name(reason)}))
    }

    fn completion_chunk(&self, index: usize, text: &str, reason: Option<FinishReason>) -> Value {
        self.chunk(json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason_name(reason)}))
    }

    fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.envelope(self.chunk_object(), &[choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}
