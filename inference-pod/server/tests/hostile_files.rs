//! Model files that are damaged before or while they are served.

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Pod, content, user};
use pagoda_engine::config::{Backend, EngineSize};
use serde_json::{Value, json};

fn model() -> PathBuf {
    let cache = std::env::var_os("PAGODA_CACHE_DIR").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache/pagoda")
    });
    let path = cache.join("models/smollm2-135m-instruct-q4_1.gguf");
    assert!(
        path.exists(),
        "{} is missing: run e2e/fetch-model",
        path.display()
    );
    path
}

/// A copy of the model that may be damaged.
fn copy(folder: &Path) -> PathBuf {
    let path = folder.join("model.gguf");
    std::fs::copy(model(), &path).expect("room for a copy");
    path
}

fn cut_to(path: &Path, bytes: u64) {
    let file = File::options().write(true).open(path).expect("the copy");
    file.set_len(bytes).expect("a shorter file");
}

fn size() -> EngineSize {
    EngineSize {
        max_context_tokens: Some(256),
        max_sequences: 2,
        step_tokens: 64,
        kv_bytes: Some(16 << 20),
        ..EngineSize::default()
    }
}

async fn capital(pod: &Pod) -> String {
    let question = json!({"messages": user("What is the capital of France?"), "temperature": 0, "max_tokens": 8});
    content(&pod.chat(question).await.ok()).to_owned()
}

#[tokio::test]
async fn a_file_cut_off_or_gone_under_a_running_server_changes_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path());
    let pod = Pod::ready(&Backend::Cpu(path.clone()), &size(), 2);
    let before = capital(&pod).await;
    cut_to(&path, 0);
    assert_eq!(capital(&pod).await, before);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(capital(&pod).await, before);
}

/// Exit code and last words.
fn serve(path: &Path, folder: &Path) -> (Option<i32>, Value) {
    let words = folder.join("termination-log");
    let output = Command::new(env!("CARGO_BIN_EXE_pagoda-engine"))
        .arg("serve")
        .arg(path)
        .args(["--listen", "127.0.0.1:0"])
        .env("PAGODA_TERMINATION_LOG", &words)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .output()
        .expect("the engine starts");
    let said =
        std::fs::read_to_string(&words).unwrap_or_else(|_| panic!("no last words: {output:?}"));
    (
        output.status.code(),
        serde_json::from_str(&said).expect("last words are JSON"),
    )
}

#[test]
fn a_file_cut_off_anywhere_ends_the_server_with_its_reason_and_not_with_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy(folder.path());
    let whole = path.metadata().unwrap().len();
    // In the weights, in the header, in the magic.
    for bytes in [whole - 1, whole / 2, 100_000, 3, 0] {
        cut_to(&path, bytes);
        let (code, words) = serve(&path, folder.path());
        assert_eq!(code, Some(65), "{bytes}: {words}");
        assert_eq!(words["reason"], "InvalidModel", "{bytes}: {words}");
        let message = words["message"].as_str().unwrap();
        assert!(message.contains("GGUF"), "{bytes}: {message}");
    }
}
