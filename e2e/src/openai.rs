//! A client of the OpenAI-compatible HTTP API, as the tests and the demo need it: one chat, streamed or not, and every way it
//! can end told apart.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use serde_json::{Value, json};

/// One chat request with a single user message.
#[derive(Debug, Clone)]
pub struct Chat {
    /// Served name, or `namespace/name`.
    pub model: String,
    /// The user's message.
    pub prompt: String,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Go on to `max_tokens` where the model would end its turn.
    pub ignore_eos: bool,
}

/// How a request ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// The assistant's text, whole or as far as it came.
    pub text: String,
    /// `stop`, `length`, ... as the server said.
    pub finish_reason: Option<String>,
    /// The error object's message, from the body or from an event in the stream.
    pub error: Option<String>,
    /// True when a stream ended with `data: [DONE]`, or a body was whole.
    pub complete: bool,
    /// From sending to the first text of a stream.
    pub first_token: Option<Duration>,
}

impl Reply {
    /// True for a whole answer that carries no error.
    pub fn is_whole(&self) -> bool {
        self.status == 200 && self.complete && self.error.is_none() && self.finish_reason.is_some()
    }
}

/// Client of one base URL, such as `http://198.18.0.2:30080`.
#[derive(Debug, Clone)]
pub struct OpenAi {
    http: reqwest::Client,
    base: String,
}

impl OpenAi {
    /// A client with its own connection pool. No total time limit: streams end when they end; callers set deadlines.
    pub fn new(base: &str) -> Result<Self> {
        // One crypto provider a process; a second call finds the first one's, which is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .no_proxy()
            .build()
            .context("failed to build the HTTP client")?;
        Ok(Self {
            http,
            base: base.trim_end_matches('/').to_owned(),
        })
    }

    /// Absolute URL of `path`, which begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The HTTP client, for requests that are no chat.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// Asks without streaming. `Err` only when no HTTP response came at all.
    pub async fn ask(&self, chat: &Chat) -> Result<Reply> {
        let response = self.send(chat, false).await?;
        let status = response.status().as_u16();
        let body: Value = response
            .json()
            .await
            .context("the answer's body is no JSON")?;
        Ok(Reply {
            status,
            text: body["choices"][0]["message"]["content"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            finish_reason: body["choices"][0]["finish_reason"]
                .as_str()
                .map(str::to_owned),
            error: error_message(&body),
            complete: true,
            first_token: None,
        })
    }

    /// Asks with streaming; `on_text` sees every piece as it comes. A connection cut in mid-stream is a `Reply` that is
    /// not `complete`; `Err` only when no HTTP response came at all.
    pub async fn stream(&self, chat: &Chat, mut on_text: impl FnMut(&str)) -> Result<Reply> {
        let sent = Instant::now();
        let response = self.send(chat, true).await?;
        let mut reply = Reply {
            status: response.status().as_u16(),
            ..Reply::default()
        };
        if reply.status != 200 {
            let body: Value = response.json().await.unwrap_or_default();
            reply.error = error_message(&body)
                .or_else(|| Some(format!("status {} without an error object", reply.status)));
            return Ok(reply);
        }
        let mut events = EventLines::default();
        let mut chunks = response.bytes_stream();
        while let Some(Ok(bytes)) = chunks.next().await {
            for data in events.push(&bytes) {
                let had_text = reply.text.len();
                take_event(&mut reply, &data);
                if reply.text.len() > had_text {
                    reply.first_token.get_or_insert_with(|| sent.elapsed());
                    on_text(&reply.text[had_text..]);
                }
            }
        }
        Ok(reply)
    }

    async fn send(&self, chat: &Chat, stream: bool) -> Result<reqwest::Response> {
        let mut body = json!({
            "model": chat.model,
            "messages": [{"role": "user", "content": chat.prompt}],
            "max_tokens": chat.max_tokens,
            "temperature": 0,
            "stream": stream,
        });
        if chat.ignore_eos {
            // Not one of OpenAI's fields: sent only where it is wanted, so that other servers take the rest.
            body["ignore_eos"] = json!(true);
        }
        let url = self.url("/v1/chat/completions");
        self.http
            .post(&url)
            .json(&body)
            .send()
            .await
            .with_context(|| format!("no answer from {url}"))
    }
}

/// The `message` of an OpenAI error object.
pub fn error_message(body: &Value) -> Option<String> {
    body["error"]["message"].as_str().map(str::to_owned)
}

fn take_event(reply: &mut Reply, data: &str) {
    if data == "[DONE]" {
        reply.complete = true;
        return;
    }
    let event: Value = serde_json::from_str(data).unwrap_or_else(
        |error| json!({"error": {"message": format!("event is no JSON: {error}")}}),
    );
    if let Some(message) = error_message(&event) {
        reply.error = Some(message);
    }
    let choice = &event["choices"][0];
    reply
        .text
        .push_str(choice["delta"]["content"].as_str().unwrap_or_default());
    if let Some(reason) = choice["finish_reason"].as_str() {
        reply.finish_reason = Some(reason.to_owned());
    }
}

/// Cuts a byte stream into the `data:` payloads of server-sent events; a line may come in any number of pieces.
#[derive(Debug, Default)]
struct EventLines {
    rest: Vec<u8>,
}

impl EventLines {
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut payloads = Vec::new();
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                payloads.push(data.trim_start().to_owned());
            }
        }
        payloads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        let wire =
            "data: {\"choices\":[{\"delta\":{\"content\":\"h\u{e9}\"}}]}\n\ndata: [DONE]\n\n"
                .as_bytes();
        let whole = EventLines::default().push(wire);
        assert_eq!(whole.len(), 2);
        for cut in 1..wire.len() {
            let mut lines = EventLines::default();
            let mut pieces = lines.push(&wire[..cut]);
            pieces.extend(lines.push(&wire[cut..]));
            assert_eq!(pieces, whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_stream_without_done_is_not_whole() {
        let mut reply = Reply {
            status: 200,
            ..Reply::default()
        };
        take_event(
            &mut reply,
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}"#,
        );
        assert!(!reply.is_whole());
        take_event(&mut reply, "[DONE]");
        assert!(reply.is_whole());
    }

    #[test]
    fn an_error_event_makes_the_reply_not_whole() {
        let mut reply = Reply {
            status: 200,
            finish_reason: Some("stop".into()),
            complete: true,
            ..Reply::default()
        };
        take_event(
            &mut reply,
            r#"{"error":{"message":"the pod went away","type":"server_error"}}"#,
        );
        assert_eq!(reply.error.as_deref(), Some("the pod went away"));
        assert!(!reply.is_whole());
    }
}
