//! A pod in this process: the real router, engine and scheduler over the simulated executor or a real model.

// Each test binary uses its own part of this.
#![allow(dead_code)]

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use futures::StreamExt;
use http_body_util::BodyExt;
use pagoda_crds::wire::SimulatedConfig;
use pagoda_engine::app::App;
use pagoda_engine::config::{Backend, EngineSize};
use pagoda_engine::http::router;
use pagoda_engine::load::load;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A pod and a way to ask it.
pub struct Pod {
    pub app: Arc<App>,
}

/// An answer, read to its end.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// Simulated hardware fast enough for tests.
pub fn fast() -> SimulatedConfig {
    SimulatedConfig {
        prefill_tokens_per_second: 10_000_000,
        decode_step_milliseconds: 0,
        load_seconds: 0,
    }
}

/// Simulated hardware slow enough to be caught in the act: 50 tokens a second.
pub fn slow() -> SimulatedConfig {
    SimulatedConfig {
        decode_step_milliseconds: 20,
        ..fast()
    }
}

/// A small engine.
pub fn small() -> EngineSize {
    EngineSize {
        max_context_tokens: Some(512),
        max_sequences: 8,
        step_tokens: 64,
        ..EngineSize::default()
    }
}

impl Pod {
    /// A pod that never finishes loading.
    pub fn loading() -> Self {
        Self {
            app: Arc::new(App::loading(vec!["m".into(), "ns/svc".into()])),
        }
    }

    /// A simulated pod that is ready.
    pub fn simulated(timings: SimulatedConfig, size: &EngineSize) -> Self {
        Self::ready(&Backend::Simulated(timings), size, 1)
    }

    /// A pod that is ready.
    pub fn ready(backend: &Backend, size: &EngineSize, threads: usize) -> Self {
        let pod = Self::loading();
        let loaded =
            load(backend, size, threads, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
        pod.app.start(loaded, 1).expect("sound limits");
        pod
    }

    /// A response whose body is still to be read.
    pub async fn send(&self, request: Request<Body>) -> axum::response::Response {
        router(Arc::clone(&self.app))
            .oneshot(request)
            .await
            .expect("the router never fails")
    }

    pub async fn get(&self, path: &str) -> Answer {
        Answer::read(
            self.send(Request::get(path).body(Body::empty()).unwrap())
                .await,
        )
        .await
    }

    pub async fn post_bytes(&self, path: &str, body: impl Into<Body>) -> Answer {
        Answer::read(
            self.send(Request::post(path).body(body.into()).unwrap())
                .await,
        )
        .await
    }

    /// Posts JSON; `model` is filled in.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_bytes(path, with_model(body).to_string()).await
    }

    pub async fn chat(&self, body: Value) -> Answer {
        self.post("/v1/chat/completions", body).await
    }

    pub async fn complete(&self, body: Value) -> Answer {
        self.post("/v1/completions", body).await
    }

    /// Starts a stream without reading it.
    pub async fn open_stream(&self, path: &str, body: Value) -> axum::response::Response {
        let mut body = with_model(body);
        body["stream"] = json!(true);
        self.send(Request::post(path).body(body.to_string().into()).unwrap())
            .await
    }

    /// Chunks of a stream, which must end with `[DONE]`.
    pub async fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let response = self.open_stream(path, body).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut events = events(&Answer::read(response).await.text());
        assert_eq!(events.pop(), Some("[DONE]".into()));
        events
            .iter()
            .map(|event| serde_json::from_str(event).expect("each event is JSON"))
            .collect()
    }

    /// The whole value of a metric without further labels than the model's name.
    pub async fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").await.text();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")));
        let value = line
            .and_then(|line| line.rsplit(' ').next())
            .and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }

    /// Waits until a metric has a value: the only clock is the engine's own progress.
    pub async fn wait_for_metric(&self, name: &str, wanted: impl Fn(u64) -> bool) {
        for _ in 0..2000 {
            if wanted(self.metric(name).await) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("{name} is {} for ever", self.metric(name).await);
    }
}

fn with_model(mut body: Value) -> Value {
    if body.get("model").is_none() {
        body["model"] = json!("m");
    }
    body
}

/// The data of every event.
pub fn events(text: &str) -> Vec<String> {
    let events = text
        .split("\n\n")
        .filter(|event| !event.is_empty() && !event.starts_with(':'));
    events
        .map(|event| {
            event
                .strip_prefix("data: ")
                .expect("events are data")
                .to_owned()
        })
        .collect()
}

/// Reads a stream's body until `enough` says so, then drops it: the client leaves.
pub async fn read_until(
    response: axum::response::Response,
    enough: impl Fn(&str) -> bool,
) -> String {
    let mut body = response.into_body().into_data_stream();
    let mut text = String::new();
    while let Some(chunk) = body.next().await {
        text.push_str(&String::from_utf8_lossy(&chunk.expect("a body")));
        if enough(&text) {
            break;
        }
    }
    text
}

impl Answer {
    pub async fn read(response: axum::response::Response) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a body").to_bytes().to_vec();
        Self {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    /// The JSON of a success.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Status and error of a failure, whose shape is checked.
    pub fn error(&self) -> (u16, Value) {
        assert!(!self.status.is_success(), "{}", self.text());
        let value: Value = serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("no JSON: {}", self.text()));
        let error = value["error"].clone();
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty()),
            "{value}"
        );
        assert!(
            error["type"].is_string()
                && error.get("param").is_some()
                && error.get("code").is_some(),
            "{value}"
        );
        (self.status.as_u16(), error)
    }
}

/// The text of a whole chat answer.
pub fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"]
        .as_str()
        .expect("content")
}

/// The text of one choice of a chat stream.
pub fn streamed_content(chunks: &[Value], choice: usize) -> String {
    let of_choice = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"].as_array().expect("choices"));
    let of_choice = of_choice.filter(|part| part["index"] == choice);
    of_choice
        .filter_map(|part| part["delta"]["content"].as_str().or(part["text"].as_str()))
        .collect()
}

pub fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}
