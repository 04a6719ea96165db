use serde_json::{Value, json};

use super::{HuggingFaceFiles, LLAMA_3_WORDS};
use crate::load::TokenizerError;
use crate::template::{CHATML, ChatTemplate};
use crate::tokenizer::{SpecialTokens, Tokenizer};

fn load(tokenizer: &Value, config: &Value) -> Result<Tokenizer, TokenizerError> {
    let (tokenizer, config) = (tokenizer.to_string(), config.to_string());
    Tokenizer::from_hugging_face(&HuggingFaceFiles {
        tokenizer: tokenizer.as_bytes(),
        tokenizer_config: Some(config.as_bytes()),
        generation_config: Some(br#"{"eos_token_id": [1, 99999]}"#),
        chat_template: None,
    })
}

fn special(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "lstrip": false, "rstrip": false, "special": true})
}

/// GPT-2's alphabet needs only the characters that the tests use; bytes without a token are left out by the encoder.
fn byte_level() -> Value {
    json!({
        "added_tokens": [special(0, "<|s|>"), special(1, "<|im_end|>")],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA_3_WORDS}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|s|>", "type_id": 0}}, {"Sequence": {}}]},
        ]},
        "model": {
            "type": "BPE",
            "vocab": {"<|s|>": 0, "a": 2, "b": 3, "Ġ": 4, "ab": 5, "Ġab": 6, "c": 8},
            "merges": [["a", "b"], "Ġ ab"],
            "byte_fallback": false,
            "ignore_merges": false,
        },
    })
}

fn sentence_piece() -> Value {
    let bytes = (0..256).map(|byte| (format!("<0x{byte:02X}>"), json!(byte + 3)));
    let pieces = ["▁", "a", "b", "c", "▁a", "ab", "bc", "abc"];
    let pieces = (259..)
        .zip(pieces)
        .map(|(id, text)| (text.to_owned(), json!(id)));
    let first = ["<unk>", "<s>", "</s>"];
    let first = (0..)
        .zip(first)
        .map(|(id, text)| (text.to_owned(), json!(id)));
    let vocab: serde_json::Map<String, Value> = first.chain(bytes).chain(pieces).collect();
    json!({
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>"),
            {"id": 267, "content": "<|end|>", "rstrip": true, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": null,
        "model": {
            "type": "BPE", "vocab": vocab, "byte_fallback": true, "unk_token": "<unk>",
            "merges": ["b c", "▁ a", "a b", "a bc", "ab c"],
        },
    })
}

fn texts(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let ids = tokenizer.encode(text, SpecialTokens::Parse);
    let text = |&id: &u32| tokenizer.token_text(id).unwrap().to_owned();
    ids.iter().map(text).collect()
}

#[test]
fn byte_level_files_say_words_merges_bos_and_ends() {
    let config = json!({"bos_token": "<|s|>", "eos_token": {"content": "<|im_end|>"}});
    let tokenizer = load(&byte_level(), &config).unwrap();
    assert_eq!(
        texts(&tokenizer, "ab ab<|im_end|>c"),
        ["ab", "Ġab", "<|im_end|>", "c"]
    );
    assert!(tokenizer.adds_bos());
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(0), Some(1)));
    assert_eq!(tokenizer.end_of_generation(), [1]);
    assert!(tokenizer.is_control(1));
    // Nothing names id 7.
    assert_eq!(
        (tokenizer.vocab_size(), tokenizer.token_text(7)),
        (9, Some("[UNUSED_7]"))
    );
}

#[test]
fn sentence_piece_files_merge_by_rank_and_write_bytes() {
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true});
    let tokenizer = load(&sentence_piece(), &config).unwrap();
    assert_eq!(texts(&tokenizer, "bc"), ["▁", "bc"]);
    // "b c" comes first, then "▁ a".
    assert_eq!(texts(&tokenizer, "abc"), ["▁a", "bc"]);
    assert_eq!(
        texts(&tokenizer, "b<s>b é"),
        ["▁", "b", "<s>", "▁", "b", "▁", "<0xC3>", "<0xA9>"]
    );
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.decode(&[260, 198, 172]).unwrap(), "aé");
}

#[test]
fn tokens_take_the_white_space_around_them_where_their_file_says_so() {
    let tokenizer = load(&sentence_piece(), &json!({})).unwrap();
    assert_eq!(
        texts(&tokenizer, "c<|end|>\n c"),
        ["▁", "c", "<|end|>", "▁", "c"]
    );
    let mut file = sentence_piece();
    file["added_tokens"][3] =
        json!({"id": 267, "content": "<|end|>", "lstrip": true, "special": true});
    let tokenizer = load(&file, &json!({})).unwrap();
    assert_eq!(
        texts(&tokenizer, "c \n<|end|>c"),
        ["▁", "c", "<|end|>", "▁", "c"]
    );
}

#[test]
fn a_space_goes_first_never_or_only_at_the_start_by_the_file() {
    let mut file = sentence_piece();
    file["normalizer"] = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    file["pre_tokenizer"] =
        json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"});
    let never = load(&file, &json!({})).unwrap();
    assert_eq!(texts(&never, "c<s>c c"), ["c", "<s>", "c", "▁", "c"]);
    file["normalizer"] = Value::Null;
    file["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    let first = load(&file, &json!({})).unwrap();
    assert_eq!(texts(&first, "c<s>c"), ["▁", "c", "<s>", "c"]);
    assert_eq!(texts(&first, "<s>c"), ["<s>", "c"]);
    assert_eq!(texts(&first, " c"), ["▁", "c"]);
}

#[test]
fn what_is_not_computed_is_named() {
    let mut file = byte_level();
    file["model"]["type"] = json!("Unigram");
    let error = load(&file, &json!({})).unwrap_err();
    assert_eq!(
        error,
        TokenizerError::UnsupportedModel {
            model: "Unigram".into()
        }
    );
    let mut file = byte_level();
    file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("\\w+");
    let error = load(&file, &json!({})).unwrap_err().to_string();
    assert!(error.contains("Split"), "{error}");
    let mut file = byte_level();
    file["normalizer"] = json!({"type": "Lowercase"});
    let error = load(&file, &json!({})).unwrap_err().to_string();
    assert!(error.contains("Lowercase"), "{error}");
}

#[test]
fn hostile_vocabularies_are_refused() {
    for (id, words) in [
        (json!(1u64 << 40), "not below"),
        (json!(-1), "not below"),
        (json!(100_000), "ids for"),
    ] {
        let mut file = byte_level();
        file["model"]["vocab"]["a"] = id;
        let error = load(&file, &json!({})).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let mut file = byte_level();
    file["model"]["vocab"]["a"] = json!(3);
    assert!(
        load(&file, &json!({}))
            .unwrap_err()
            .to_string()
            .contains("two tokens")
    );
    file["model"]["vocab"] = json!([]);
    assert!(
        load(&file, &json!({}))
            .unwrap_err()
            .to_string()
            .contains("vocab")
    );
    let deep = "[".repeat(100_000);
    for text in ["", "{}", "[]", &deep] {
        let files = HuggingFaceFiles {
            tokenizer: text.as_bytes(),
            ..HuggingFaceFiles::default()
        };
        let error = Tokenizer::from_hugging_face(&files).unwrap_err();
        assert!(matches!(error, TokenizerError::File { .. }), "{error}");
    }
}

#[test]
fn the_template_is_a_file_of_its_own_or_part_of_the_configuration() {
    let of = |config: &str, own: Option<&str>| {
        let files = HuggingFaceFiles {
            tokenizer_config: Some(config.as_bytes()),
            chat_template: own,
            ..HuggingFaceFiles::default()
        };
        ChatTemplate::from_hugging_face(&files)
            .unwrap()
            .source()
            .to_owned()
    };
    assert_eq!(of(r#"{"chat_template": "a"}"#, None), "a");
    assert_eq!(of(r#"{"chat_template": "a"}"#, Some("b")), "b");
    let several = r#"{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#;
    assert_eq!(of(several, None), "d");
    assert_eq!(of("{}", None), CHATML);
}
