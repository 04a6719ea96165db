//! One chat, streamed, and how it ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::{Client, Response};
use serde_json::json;

use super::events::{ChatEvent, Events};
use super::target::Target;

/// How a chat ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Whole: `[DONE]` came, and no error before it.
    Whole,
    /// No response: what failed.
    Connect(String),
    /// A status other than 200.
    Status(u16),
    /// The stream ended without `[DONE]`, and without saying why.
    Cut,
    /// The stream ended with an error event: its code.
    ErrorEvent(String),
    /// It took longer than allowed.
    Timeout,
}

/// What a chat was like.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// From sending to the first text.
    pub first_token: Option<Duration>,
    /// Between each text and the next.
    pub between_tokens: Vec<Duration>,
    /// Tokens of the answer, as the server counted them, else events with text.
    pub output_tokens: u64,
    /// Tokens of the prompt, as the server counted them.
    pub prompt_tokens: u64,
    /// From sending to the end.
    pub took: Duration,
}

/// Sends chats to one model of one server.
#[derive(Clone, Debug)]
pub struct Chatter {
    http: Client,
    target: Target,
    model: String,
    timeout: Duration,
    texts: Arc<AtomicU64>,
}

impl Chatter {
    /// Connections go to the target's fixed addresses alone: no redirects, no proxies. `texts` counts, while they come, the
    /// events with text of all chats.
    pub fn new(
        target: Target,
        model: String,
        timeout: Duration,
        texts: Arc<AtomicU64>,
    ) -> reqwest::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder()
            .resolve_to_addrs(&target.host, &target.addresses)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(Duration::from_secs(5))
            .pool_max_idle_per_host(1024)
            .build()?;
        Ok(Self {
            http,
            target,
            model,
            timeout,
            texts,
        })
    }

    /// Asks once and reads the stream to its end.
    pub async fn chat(&self, prompt: &str, max_tokens: u32) -> Outcome {
        let mut reading = Reading::begin(Arc::clone(&self.texts));
        let ending =
            match tokio::time::timeout(self.timeout, self.stream(prompt, max_tokens, &mut reading))
                .await
            {
                Ok(ending) => ending,
                Err(_) => Ending::Timeout,
            };
        reading.end(ending)
    }

    async fn stream(&self, prompt: &str, max_tokens: u32, reading: &mut Reading) -> Ending {
        let body = json!({
            "model": self.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0,
            "stream": true, "stream_options": {"include_usage": true},
        });
        match self
            .http
            .post(self.target.chat_url.clone())
            .json(&body)
            .send()
            .await
        {
            Ok(response) if response.status() == 200 => reading.read(response).await,
            Ok(response) => Ending::Status(response.status().as_u16()),
            Err(error) => Ending::Connect(root_cause(&error)),
        }
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

struct Reading {
    began: Instant,
    first_token: Option<Duration>,
    last_text: Option<Instant>,
    between_tokens: Vec<Duration>,
    texts: u64,
    counted: Option<(u64, u64)>,
    all_texts: Arc<AtomicU64>,
}

impl Reading {
    fn begin(all_texts: Arc<AtomicU64>) -> Self {
        Self {
            began: Instant::now(),
            first_token: None,
            last_text: None,
            between_tokens: Vec::new(),
            texts: 0,
            counted: None,
            all_texts,
        }
    }

    async fn read(&mut self, response: Response) -> Ending {
        let (mut events, mut bytes) = (Events::default(), response.bytes_stream());
        let (mut failed, mut done) = (None, false);
        while let Some(Ok(part)) = bytes.next().await {
            for event in events.push(&part) {
                match event {
                    // Read on to the body's end all the same, or the connection could not be used again.
                    ChatEvent::Done => done = true,
                    ChatEvent::Error(code) => failed = Some(code),
                    ChatEvent::Usage {
                        prompt_tokens,
                        completion_tokens,
                    } => self.counted = Some((prompt_tokens, completion_tokens)),
                    ChatEvent::Text => self.text(),
                    ChatEvent::Other => {}
                }
            }
        }
        failed.map_or(
            if done { Ending::Whole } else { Ending::Cut },
            Ending::ErrorEvent,
        )
    }

    fn text(&mut self) {
        let now = Instant::now();
        match self.last_text.replace(now) {
            None => self.first_token = Some(now - self.began),
            Some(last) => self.between_tokens.push(now - last),
        }
        self.texts += 1;
        self.all_texts.fetch_add(1, Ordering::Relaxed);
    }

    fn end(self, ending: Ending) -> Outcome {
        let (prompt_tokens, output_tokens) = self.counted.unwrap_or((0, self.texts));
        let took = self.began.elapsed();
        Outcome {
            ending,
            first_token: self.first_token,
            between_tokens: self.between_tokens,
            output_tokens,
            prompt_tokens,
            took,
        }
    }
}
