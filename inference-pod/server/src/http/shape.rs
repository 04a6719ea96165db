//! The shapes of answers: whole ones and the chunks of streams, for both endpoints.

use serde_json::{Value, json};

use super::logprobs::LogprobsShape;
use super::reader::{Delta, Finish, FinishedCall, FinishedChoice};
use pagoda_engine_core::TokenLogprobs;

/// Which endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// Tokens counted.
#[allow(clippy::struct_field_names, reason = "the API's names")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt, once, whatever `n` is.
    pub prompt_tokens: usize,
    /// Of those, the ones whose keys and values were there already.
    pub cached_tokens: usize,
    /// Of all choices, those that `best_of` dropped included.
    pub completion_tokens: usize,
}

impl Usage {
    /// OpenAI's shape.
    pub fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }
}

/// The prompt that goes before an answer, where the client asked for its echo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Echo {
    /// Its text.
    pub text: String,
    /// Its first token, which has no log probability.
    pub first: Option<u32>,
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
    /// Log probabilities.
    pub logprobs: LogprobsShape,
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

    /// A whole answer. `echoes` go before the choices.
    pub fn whole(&self, choices: &[FinishedChoice], echoes: &[Echo], usage: Usage) -> Value {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let choices: Vec<Value> = choices
            .iter()
            .zip(echoes)
            .enumerate()
            .map(|(index, (choice, echo))| match self.endpoint {
                Endpoint::Chat => self.message(index, choice),
                Endpoint::Completions => self.text(index, choice, echo),
            })
            .collect();
        let mut answer = self.envelope(object, &choices);
        answer["usage"] = usage.to_json();
        answer
    }

    fn message(&self, index: usize, choice: &FinishedChoice) -> Value {
        let mut message = json!({"role": "assistant", "content": choice.text, "refusal": null});
        if !choice.calls.is_empty() {
            let calls: Vec<Value> = choice.calls.iter().map(call).collect();
            message["tool_calls"] = calls.into();
            if choice.text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        json!({
            "index": index, "message": message, "logprobs": self.logprobs.chat(&choice.logprobs),
            "finish_reason": choice.finish.map(Finish::name),
        })
    }

    fn text(&self, index: usize, choice: &FinishedChoice, echo: &Echo) -> Value {
        let logprobs =
            self.logprobs
                .completion(echo.first, &choice.prompt, &choice.logprobs, &mut 0);
        json!({
            "index": index, "text": format!("{}{}", echo.text, choice.text), "logprobs": logprobs,
            "finish_reason": choice.finish.map(Finish::name),
        })
    }

    /// The chunk that opens a choice of a conversation.
    pub fn opening_chunk(&self, choice: usize) -> Value {
        self.chat_chunk(
            choice,
            &json!({"role": "assistant", "content": ""}),
            &Value::Null,
            None,
        )
    }

    /// More of a choice of a conversation.
    pub fn delta_chunk(&self, choice: usize, delta: &Delta, logprobs: &[TokenLogprobs]) -> Value {
        let delta = match delta {
            Delta::Content(text) => json!({"content": text}),
            Delta::Call { index, id, name } => json!({"tool_calls": [{
                "index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""},
            }]}),
            Delta::Arguments { index, text } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            }
        };
        self.chat_chunk(choice, &delta, &self.logprobs.chat(logprobs), None)
    }

    /// More of a completion; `logprobs` as [`LogprobsShape::completion`] writes them.
    pub fn text_chunk(&self, choice: usize, text: &str, logprobs: &Value) -> Value {
        self.completion_chunk(choice, text, logprobs, None)
    }

    /// The end of a choice, with the log probabilities of tokens that showed no text.
    pub fn closing_chunk(&self, choice: usize, finish: Finish, rest: &[TokenLogprobs]) -> Value {
        match self.endpoint {
            Endpoint::Chat if rest.is_empty() => {
                self.chat_chunk(choice, &json!({}), &Value::Null, Some(finish))
            }
            Endpoint::Chat => {
                let logprobs = self.logprobs.chat(rest);
                self.chat_chunk(choice, &json!({}), &logprobs, Some(finish))
            }
            Endpoint::Completions => self.completion_chunk(choice, "", &Value::Null, Some(finish)),
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

    fn chat_chunk(
        &self,
        index: usize,
        delta: &Value,
        logprobs: &Value,
        finish: Option<Finish>,
    ) -> Value {
        self.chunk(json!({
            "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish.map(Finish::name),
        }))
    }

    fn completion_chunk(
        &self,
        index: usize,
        text: &str,
        logprobs: &Value,
        finish: Option<Finish>,
    ) -> Value {
        self.chunk(json!({
            "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish.map(Finish::name),
        }))
    }

    fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.envelope(self.chunk_object(), &[choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

fn call(call: &FinishedCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}
