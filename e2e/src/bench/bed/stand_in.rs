//! One listener that stands for every pod of a sandbox, where all their addresses are local. It answers as they do when
//! nobody asks them anything, so that the operator does all its scraping and finds no load.

use std::io::ErrorKind::AddrInUse;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The engine's.
const PORT: u16 = 8000;
const LONGEST_HEAD: usize = 16 << 10;
const BIND_PATIENCE: Duration = Duration::from_secs(5);
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
            listening: tokio::spawn(accept(bind().await?)),
        })
    }
}

/// The listener of an earlier bed of this process ends a moment after its value.
async fn bind() -> Result<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let began = Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == AddrInUse && began.elapsed() < BIND_PATIENCE => {
                sleep(Duration::from_millis(50)).await;
            }
            bound => {
                return bound.with_context(|| format!("cannot stand in for pods at {address}"));
            }
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn accept(listener: TcpListener) {
    loop {
        if let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(answer(connection));
        }
    }
}

/// Requests without a body, one after the other on one connection.
async fn answer(mut connection: TcpStream) {
    let mut head = Vec::new();
    let mut chunk = [0_u8; 2048];
    while let Ok(read @ 1..) = connection.read(&mut chunk).await {
        head.extend_from_slice(&chunk[..read]);
        if head.len() > LONGEST_HEAD {
            return;
        }
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8_lossy(&head);
        let response = response_to(text.split(' ').nth(1).unwrap_or_default());
        if connection.write_all(response.as_bytes()).await.is_err() {
            return;
        }
        head.clear();
    }
}

fn response_to(path: &str) -> String {
    let (status, kind, body) = match path {
        "/metrics" => ("200 OK", "text/plain; version=0.0.4", METRICS),
        "/v1/models" => ("200 OK", "application/json", MODELS),
        _ => ("404 Not Found", "text/plain", ""),
    };
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
}
