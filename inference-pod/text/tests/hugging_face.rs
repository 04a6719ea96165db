//! Tokenizers out of Hugging Face's files beside the library that wrote them (`e2e/reference/tiny_tokenizers.py`).

use std::path::{Path, PathBuf};

use pagoda_text::{HuggingFaceFiles, SpecialTokens, Tokenizer};

const NAMES: [&str; 5] = ["llama_3", "qwen_2", "smollm", "llama_2", "gemma"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/hugging_face")
        .join(name)
}

fn load(name: &str) -> Tokenizer {
    let read = |file: &str| std::fs::read(folder(name).join(file)).unwrap();
    let (tokenizer, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let files = HuggingFaceFiles {
        tokenizer: &tokenizer,
        tokenizer_config: Some(&config),
        ..HuggingFaceFiles::default()
    };
    Tokenizer::from_hugging_face(&files).unwrap()
}

#[test]
fn ids_are_those_of_the_library_that_wrote_the_file() {
    for name in NAMES {
        let tokenizer = load(name);
        let text = std::fs::read(folder(name).join("cases.json")).unwrap();
        let cases: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let cases = cases.as_array().unwrap();
        assert!(cases.len() > 100, "{name}: {} cases", cases.len());
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let special = if case["parse_special"].as_bool().unwrap() {
                SpecialTokens::Parse
            } else {
                SpecialTokens::AsText
            };
            let ids = case["ids"].as_array().unwrap().iter();
            let ids: Vec<u32> = ids.map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(tokenizer.encode(text, special), ids, "{name}: {text:?}");
        }
    }
}

#[test]
fn text_comes_back_from_its_tokens() {
    for name in NAMES {
        let tokenizer = load(name);
        let text = "A ray of light, 12 feet; naïve 漢字 \u{1f600}\n  and so on.";
        let ids = tokenizer.encode(text, SpecialTokens::AsText);
        let back = tokenizer.decode(&ids).unwrap();
        let expected = if name == "llama_2" {
            format!(" {text}")
        } else {
            text.to_owned()
        };
        assert_eq!(back, expected, "{name}");
    }
}

#[test]
fn prompts_begin_with_the_token_that_the_post_processor_puts_there() {
    let begins = |name: &str| load(name).encode_prompt("light", SpecialTokens::Parse)[0];
    for (name, bos) in [("llama_3", "<|s|>"), ("llama_2", "<s>"), ("gemma", "<s>")] {
        assert_eq!(Some(begins(name)), load(name).token_id(bos), "{name}");
    }
    assert_ne!(Some(begins("smollm")), load("smollm").token_id("<|s|>"));
}
