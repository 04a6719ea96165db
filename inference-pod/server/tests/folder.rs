//! A model in a folder, as Hugging Face lays models out, behind the real API.

mod common;

use std::path::Path;

use common::Pod;
use pagoda_engine::config::{Backend, EngineSize};
use serde_json::{Value, json};

/// A tiny random model with a vocabulary of 61, and a tokenizer of letters for it.
fn folder() -> tempfile::TempDir {
    let from =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/architectures/models/qwen2");
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    let letters = ('a'..='z').chain('A'..='Z').enumerate();
    let vocab: serde_json::Map<String, Value> = letters
        .map(|(id, c)| (c.to_string(), json!(id + 2)))
        .collect();
    let control = |id: u32, text: &str| json!({"id": id, "content": text, "special": true});
    let tokenizer = json!({
        "added_tokens": [control(0, "<|im_start|>"), control(1, "<|im_end|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let config =
        json!({"eos_token": "<|im_end|>", "chat_template": "{{ messages[0]['content'] }}"});
    std::fs::write(to.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(to.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    to
}

/// The same, made for embeddings.
fn folder_for_embeddings() -> tempfile::TempDir {
    let folder = folder();
    let pooling = folder.path().join("1_Pooling");
    std::fs::create_dir(&pooling).unwrap();
    let config = json!({"pooling_mode_mean_tokens": true});
    std::fs::write(pooling.join("config.json"), config.to_string()).unwrap();
    folder
}

fn size() -> EngineSize {
    EngineSize {
        max_context_tokens: Some(64),
        max_sequences: 2,
        step_tokens: 16,
        kv_bytes: Some(1 << 20),
        ..EngineSize::default()
    }
}

#[tokio::test]
async fn a_folder_is_served_with_its_own_tokenizer_and_template() {
    let folder = folder();
    let pod = Pod::ready(&Backend::Cpu(folder.path().to_owned()), &size(), 1);
    let body = json!({"prompt": "abc", "temperature": 0, "max_tokens": 5});
    let answer = pod.complete(body).await.ok();
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(text.chars().all(|c| c.is_ascii_alphabetic()), "{text}");
    let chat = json!({"messages": [{"role": "user", "content": "abc"}], "temperature": 0, "max_tokens": 5});
    let answer = pod.chat(chat).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], text);
    let info = &pod.get("/v1/models").await.ok()["data"][0]["pagoda"];
    assert_eq!(
        (&info["architecture"], &info["quantization"]),
        (&json!("qwen2"), &json!("BF16"))
    );
}

#[tokio::test]
async fn texts_have_the_same_vectors_alone_and_among_others_in_steps_shorter_than_they_are() {
    let folder = folder_for_embeddings();
    let pod = Pod::ready(&Backend::Cpu(folder.path().to_owned()), &size(), 1);
    let texts = [
        "abc",
        "aVeryLongTextThatTakesThreeStepsOfSixteenTokens",
        "z",
        "abc",
    ];
    let together = pod
        .post("/v1/embeddings", json!({"input": texts}))
        .await
        .ok();
    for (index, text) in texts.into_iter().enumerate() {
        let alone = pod
            .post("/v1/embeddings", json!({"input": text}))
            .await
            .ok();
        let vector = &alone["data"][0]["embedding"];
        assert_eq!(&together["data"][index]["embedding"], vector, "{text}");
        let values = vector
            .as_array()
            .unwrap()
            .iter()
            .map(|value| value.as_f64().unwrap());
        let length: f64 = values.map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    let tokens = together["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(
        tokens as usize,
        texts.iter().map(|text| text.len()).sum::<usize>()
    );
}
