//! Tokenizers made of small metadata, right and wrong.

use pagoda_gguf::{Gguf, GgufBuilder, MetadataError};
use pagoda_text::{
    ChatRequest, ChatTemplate, Json, Message, SpecialTokens, Tokenizer, TokenizerError,
};

/// SentencePiece: unknown, BOS, EOS, all bytes, and some words.
fn sentence_piece() -> GgufBuilder {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "h", "i", "hi", "▁hi"].map(String::from));
    let mut kinds = vec![2, 3, 3];
    kinds.extend(vec![6; 256]);
    kinds.extend(vec![1; 5]);
    let mut scores = vec![0.0; 259];
    scores.extend([-5.0, -5.0, -5.0, -2.0, -1.0]);
    GgufBuilder::new()
        .value("tokenizer.ggml.model", "llama")
        .value("tokenizer.ggml.tokens", tokens)
        .value("tokenizer.ggml.token_type", kinds)
        .value("tokenizer.ggml.scores", scores)
}

fn load(builder: &GgufBuilder) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_metadata(
        Gguf::parse(&builder.build())
            .expect("the builder writes a GGUF")
            .metadata(),
    )
}

fn byte_pair(pre: &str) -> GgufBuilder {
    GgufBuilder::new()
        .value("tokenizer.ggml.model", "gpt2")
        .value("tokenizer.ggml.pre", pre)
        .value(
            "tokenizer.ggml.tokens",
            ["<|im_end|>", "h", "i", "hi", "Ġ", "!"].as_slice(),
        )
        .value("tokenizer.ggml.token_type", vec![1, 1, 1, 1, 1, 1])
        .value("tokenizer.ggml.merges", ["h i"].as_slice())
}

#[test]
fn sentence_piece_prefixes_a_space_after_control_tokens_and_adds_bos_once() {
    let tokenizer = load(&sentence_piece()).unwrap();
    let word = tokenizer.token_id("▁hi").unwrap();
    assert_eq!(tokenizer.encode("hi", SpecialTokens::Parse), [word]);
    assert_eq!(
        tokenizer.encode_prompt("hi", SpecialTokens::Parse),
        [1, word]
    );
    assert_eq!(
        tokenizer.encode_prompt("<s>hi</s>hi", SpecialTokens::Parse),
        [1, word, 2, word]
    );
    assert_eq!(tokenizer.encode_prompt("", SpecialTokens::Parse), [1]);
    assert!(!tokenizer.encode("<s>", SpecialTokens::AsText).contains(&1));
    assert_eq!(tokenizer.end_of_generation(), [2]);
}

#[test]
fn sentence_piece_honours_the_files_flags() {
    let flags = sentence_piece()
        .value("tokenizer.ggml.add_space_prefix", false)
        .value("tokenizer.ggml.add_bos_token", false);
    let tokenizer = load(&flags).unwrap();
    assert_eq!(
        tokenizer.encode_prompt("hi", SpecialTokens::Parse),
        [tokenizer.token_id("hi").unwrap()]
    );
}

#[test]
fn sentence_piece_writes_strange_characters_as_bytes_and_reads_them_back() {
    let tokenizer = load(&sentence_piece()).unwrap();
    let ids = tokenizer.encode("hi 😀", SpecialTokens::AsText);
    assert_eq!(tokenizer.decode(&ids).unwrap(), " hi 😀");
}

#[test]
fn a_turns_end_is_a_control_token_even_where_the_file_forgets_to_say_so() {
    let tokenizer = load(&byte_pair("gpt-2")).unwrap();
    assert!(tokenizer.is_control(0) && tokenizer.is_end_of_generation(0));
    assert_eq!(
        tokenizer.encode("hi<|im_end|>", SpecialTokens::Parse),
        [3, 0]
    );
    assert_eq!(tokenizer.decode(&[3, 0]).unwrap(), "hi");
}

#[test]
fn what_is_not_supported_is_named() {
    let unigram = GgufBuilder::new()
        .value("tokenizer.ggml.model", "t5")
        .value("tokenizer.ggml.tokens", ["a"].as_slice());
    assert_eq!(
        load(&unigram).unwrap_err(),
        TokenizerError::UnsupportedModel { model: "t5".into() }
    );
    let pre = load(&byte_pair("nonesuch")).unwrap_err();
    assert_eq!(
        pre,
        TokenizerError::UnsupportedPreTokenizer {
            pre: "nonesuch".into()
        }
    );
    let missing = load(&GgufBuilder::new()).unwrap_err();
    assert!(
        matches!(
            missing,
            TokenizerError::Metadata(MetadataError::Missing { .. })
        ),
        "{missing}"
    );
}

#[test]
fn metadata_that_contradicts_itself_is_refused() {
    let wrong = |builder: GgufBuilder| load(&builder).unwrap_err();
    let base = || {
        GgufBuilder::new()
            .value("tokenizer.ggml.model", "gpt2")
            .value("tokenizer.ggml.merges", ["a b"].as_slice())
    };
    let tokens = |texts: &[&str]| base().value("tokenizer.ggml.tokens", texts);
    assert_eq!(wrong(tokens(&[])), TokenizerError::EmptyVocabulary);
    assert_eq!(
        wrong(tokens(&["a", "b", "a"])),
        TokenizerError::DuplicateToken {
            first: 0,
            second: 2
        }
    );
    let types = tokens(&["a", "b"]).value("tokenizer.ggml.token_type", vec![1]);
    assert!(matches!(
        wrong(types),
        TokenizerError::LengthMismatch {
            found: 1,
            tokens: 2,
            ..
        }
    ));
    let eos = tokens(&["a", "b"]).value("tokenizer.ggml.eos_token_id", 7_u32);
    assert!(matches!(
        wrong(eos),
        TokenizerError::NoSuchToken {
            id: 7,
            tokens: 2,
            ..
        }
    ));
    let bos = tokens(&["a", "b"]).value("tokenizer.ggml.add_bos_token", true);
    assert_eq!(wrong(bos), TokenizerError::NoBosToken);
    assert!(load(&tokens(&["a", ""])).is_ok(), "empty texts get names");
}

#[test]
fn control_tokens_hidden_in_tools_arguments_parts_and_variables_stay_text() {
    let tokenizer = load(&byte_pair("gpt-2")).unwrap();
    let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}\
                  {% endfor %}{{ tools | tojson }}{{ note }}";
    let template = ChatTemplate::parse(source).unwrap();
    let json = |text: &str| serde_json::from_str::<Json>(text).unwrap();
    let calls = json(r#"[{"function":{"arguments":"{\"a\":\"\\u003c|im_end|>\"}"}}]"#);
    let messages = [Message {
        tool_calls: Some(calls),
        ..Message::new("user", "<|im_end|>")
    }];
    let tools = json(r#"[{"<|im_end|>":"<|im_end|>"}]"#);
    let variables = json(r#"{"note":"<|im_end|>"}"#);
    let request = ChatRequest {
        tools: Some(&tools),
        variables: Some(&variables),
        ..ChatRequest::new(&messages, 0)
    };
    assert_eq!(
        tokenizer
            .render_chat(&template, &request)
            .unwrap()
            .matches("<|im_end|>")
            .count(),
        5
    );
    assert!(
        !tokenizer
            .encode_chat(&template, &request)
            .unwrap()
            .contains(&0)
    );
}
