//! One listener that stands for every pod of a sandbox, where all their addresses are local. It answers as they do when
//! nobody asks them anything, so that the operator does all its scraping and finds no load.

use anyhow::Result;
use pagoda_e2e::sources::{Answer, listen, serve};
use tokio::task::JoinHandle;

/// The engine's.
const PORT: u16 = 8000;
/// What the simulated executor says of itself.
const MODELS: &str = r#"{"object":"list","data":[{"id":"m","object":"model","pagoda":{"executor":"simulated","simulated":true,"architecture":"simulated","quantization":"none","bytes":0,"loadMilliseconds":1,"contextTokens":4096}}]}"#;
const METRICS: &str = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"m\"} 0\n\
    # TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"m\"} 0\n";

/// Answers until dropped.
pub struct StandIn {
    listening: JoinHandle<()>,
}

impl StandIn {
    pub async fn start() -> Result<Self> {
        Ok(Self {
            listening: serve(listen(PORT).await?, |_, path| response_to(path)),
        })
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

fn response_to(path: &str) -> Answer {
    match path {
        "/metrics" => Answer::metrics(METRICS.as_bytes().to_vec()),
        "/v1/models" => Answer::json(MODELS),
        _ => Answer::not_found(),
    }
}
