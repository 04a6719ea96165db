//! The program itself: exit codes, last words, signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

use pagoda_crds::wire::{FailureReason, TerminationMessage};
use serde_json::{Value, json};

fn engine() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda-engine"));
    command
        .env_remove("RUST_LOG")
        .env_remove("PAGODA_TERMINATION_LOG");
    command
}

/// A server whose address its log told.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut child = engine()
            .args([
                "serve",
                "--executor",
                "simulated",
                "--listen",
                "127.0.0.1:0",
            ])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the engine starts");
        let mut log = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut address = None;
        // The listening line comes first, the ready line follows when the model is loaded.
        loop {
            let mut line = String::new();
            assert!(
                log.read_line(&mut line).expect("a log") > 0,
                "the engine ended early"
            );
            let entry: Value =
                serde_json::from_str(&line).unwrap_or_else(|_| panic!("logs are JSON, got {line}"));
            match entry["message"].as_str() {
                Some("listening") => address = entry["address"].as_str().map(str::to_owned),
                Some("ready") => break,
                _ => {}
            }
        }
        // Keeps the pipe from filling.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self {
            child,
            address: address.expect("an address"),
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("the engine listens")
    }

    /// Sends a request and returns the open connection.
    fn post(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let mut stream = self.connect();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream
            .write_all(request.as_bytes())
            .expect("a request goes out");
        stream
    }

    fn signal(&self) {
        let killed = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        assert!(killed.expect("kill runs").success());
    }

    fn exit_code(mut self) -> Option<i32> {
        self.child.wait().expect("the engine ends").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone in tests that pass.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stream_body(max_tokens: u32) -> Value {
    json!({"model": "simulated", "prompt": "x", "max_tokens": max_tokens, "ignore_eos": true, "stream": true})
}

fn read_first_event(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains("data:") {
        let count = stream.read(&mut buffer).expect("a response");
        assert!(count > 0, "the response ended early: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    text
}

#[test]
fn sigterm_finishes_the_stream_under_way_and_exits_with_success() {
    let server = Server::start(&["--simulated-decode-step-milliseconds", "20"]);
    let mut stream = server.post("/v1/completions", &stream_body(250));
    let mut text = read_first_event(&mut stream);
    server.signal();
    stream
        .read_to_string(&mut text)
        .expect("the stream goes on to its end");
    assert!(text.contains("[DONE]"), "{text}");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_second_sigterm_ends_streams_with_an_error_event() {
    let server = Server::start(&["--simulated-decode-step-milliseconds", "50"]);
    let mut stream = server.post("/v1/completions", &stream_body(4000));
    let mut text = read_first_event(&mut stream);
    server.signal();
    // The first signal must have been taken, or both would count as one.
    while !ready_is_refused(&server) {}
    server.signal();
    stream
        .read_to_string(&mut text)
        .expect("the stream ends in order");
    assert!(
        text.contains("shutting_down") && !text.contains("[DONE]"),
        "{text}"
    );
    assert_eq!(server.exit_code(), Some(143));
}

fn ready_is_refused(server: &Server) -> bool {
    let mut stream = server.connect();
    stream
        .write_all(b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .expect("a request goes out");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    text.starts_with("HTTP/1.1 503")
}

#[test]
fn the_drain_time_ends_streams_that_are_too_long_and_exits_with_success() {
    let server = Server::start(&[
        "--simulated-decode-step-milliseconds",
        "50",
        "--drain-seconds",
        "4",
    ]);
    let mut stream = server.post("/v1/completions", &stream_body(4000));
    let mut text = read_first_event(&mut stream);
    server.signal();
    stream
        .read_to_string(&mut text)
        .expect("the stream ends in order");
    assert!(text.contains("shutting_down"), "{text}");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_connection_that_breaks_off_ends_its_generation() {
    let server = Server::start(&["--simulated-decode-step-milliseconds", "20"]);
    let mut stream = server.post("/v1/completions", &stream_body(4000));
    read_first_event(&mut stream);
    drop(stream);
    for _ in 0..1000 {
        let mut metrics = server.connect();
        metrics
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .expect("a request goes out");
        let mut text = String::new();
        metrics.read_to_string(&mut text).expect("metrics");
        if text.contains("vllm:num_requests_running{model_name=\"simulated\"} 0") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the generation goes on for nobody");
}

/// Runs to the end; the termination message is what the engine left.
fn fail(arguments: &[&str]) -> (Output, Option<TerminationMessage>) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("termination");
    let output = engine()
        .args(arguments)
        .env("PAGODA_TERMINATION_LOG", &log)
        .output()
        .expect("the engine runs");
    let message = std::fs::read_to_string(log)
        .ok()
        .and_then(|text| TerminationMessage::parse(&text));
    (output, message)
}

#[test]
fn failures_leave_their_reason_and_an_exit_code() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::write(path("not.gguf"), "<html>").expect("written");
    std::fs::write(path("bad.json"), "{\"colour\": 1}").expect("written");
    let cases = [
        (
            vec![
                "serve".to_owned(),
                path("absent.gguf"),
                "--listen=127.0.0.1:0".into(),
            ],
            FailureReason::ModelNotFound,
            66,
        ),
        (
            vec![
                "serve".to_owned(),
                path("not.gguf"),
                "--listen=127.0.0.1:0".into(),
            ],
            FailureReason::InvalidModel,
            65,
        ),
        (
            vec!["serve".to_owned(), "--config".into(), path("bad.json")],
            FailureReason::InvalidConfig,
            78,
        ),
        (vec!["serve".to_owned()], FailureReason::InvalidConfig, 78),
        (
            vec![
                "fetch".to_owned(),
                "file:///no/such/model".into(),
                "--to".into(),
                path("m"),
            ],
            FailureReason::ModelNotFound,
            66,
        ),
    ];
    for (arguments, reason, code) in cases {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (output, message) = fail(&arguments);
        let message = message.unwrap_or_else(|| panic!("no termination message for {arguments:?}"));
        assert_eq!(
            (message.reason, output.status.code()),
            (reason, Some(code)),
            "{arguments:?}"
        );
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            stderr.contains(&format!("error: {}", message.message)),
            "{stderr}"
        );
    }
}

#[test]
fn help_shows_examples_and_exit_codes() {
    let output = engine().arg("--help").output().expect("the engine runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        output.status.success() && text.contains("Examples:") && text.contains("Exit codes:"),
        "{text}"
    );
}

#[test]
fn install_copies_a_program_that_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copied-engine");
    assert!(
        engine()
            .arg("install")
            .arg(&copy)
            .status()
            .expect("the engine runs")
            .success()
    );
    assert!(
        Command::new(&copy)
            .arg("--version")
            .output()
            .expect("the copy runs")
            .status
            .success()
    );
}
