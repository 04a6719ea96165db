//! Models in folders: `config.json`, safetensors in one piece or several.

use std::path::Path;

use pagoda_model::{
    CpuExecutor, CpuOptions, Executor, ExecutorError, KvElement, LoadError, ModelFile,
    PooledStates, Pooling, StepRow,
};

use serde_json::Value as Json;

use crate::models::{
    NAMES, assert_agrees, folder, largest_difference, load, logits, options, rows, tokens,
};

#[test]
fn every_architecture_computes_what_transformers_computes() {
    for name in NAMES {
        assert_agrees(name, &mut load(&folder(name)));
    }
}

#[test]
fn configurations_in_the_form_of_transformers_4_say_the_same() {
    for name in NAMES {
        let changed = copy(name);
        let path = changed.path().join("config.json");
        let text = std::fs::read(&path).unwrap();
        let mut config: serde_json::Map<String, Json> = serde_json::from_slice(&text).unwrap();
        to_older_form(&mut config);
        std::fs::write(&path, Json::Object(config).to_string()).unwrap();
        assert_agrees(name, &mut load(changed.path()));
    }
}

/// Bases and scalings of positions as they stood before, and windows by the family's habit instead of a list.
fn to_older_form(config: &mut serde_json::Map<String, Json>) {
    let mut rope = config.remove("rope_parameters").unwrap();
    if let Some(local) = rope.get("sliding_attention") {
        config.insert("rope_local_base_freq".into(), local["rope_theta"].clone());
        config.insert("sliding_window_pattern".into(), 3.into());
        rope = rope["full_attention"].clone();
    }
    let mut scaling = rope.as_object().unwrap().clone();
    config.insert("rope_theta".into(), scaling.remove("rope_theta").unwrap());
    if let Some(share) = scaling.remove("partial_rotary_factor") {
        config.insert("partial_rotary_factor".into(), share);
    }
    let kind = scaling.remove("rope_type").unwrap();
    if kind == "longrope" {
        scaling.remove("original_max_position_embeddings");
    }
    scaling.insert("type".into(), kind.clone());
    let scaling = if kind == "default" {
        Json::Null
    } else {
        Json::Object(scaling)
    };
    config.insert("rope_scaling".into(), scaling);
    config.remove("layer_types");
}

#[test]
fn the_comparison_notices_a_wrong_number_in_the_configuration() {
    // The inverse: each of these is a way to misread a family.
    for (name, from, to) in [
        (
            "mistral",
            r#""sliding_window": 9"#,
            r#""sliding_window": 10"#,
        ),
        (
            "gemma2",
            r#""attn_logit_softcapping": 2.0"#,
            r#""attn_logit_softcapping": 2.1"#,
        ),
        (
            "gemma2",
            r#""final_logit_softcapping": 3.0"#,
            r#""final_logit_softcapping": 3.1"#,
        ),
        ("gemma3", r#""rope_theta": 100.0"#, r#""rope_theta": 101.0"#),
        (
            "gemma3",
            r#""query_pre_attn_scalar": 8"#,
            r#""query_pre_attn_scalar": 9"#,
        ),
        ("qwen3_yarn", r#""factor": 4.0"#, r#""factor": 3.0"#),
        (
            "llama_3",
            r#""low_freq_factor": 1.0"#,
            r#""low_freq_factor": 2.0"#,
        ),
        (
            "phi3",
            r#""partial_rotary_factor": 0.75"#,
            r#""partial_rotary_factor": 0.8"#,
        ),
        (
            "llama",
            r#""rms_norm_eps": 1e-05"#,
            r#""rms_norm_eps": 1e-03"#,
        ),
    ] {
        let changed = copy(name);
        change(changed.path(), from, to);
        let mut executor = load(changed.path());
        let got = logits(&mut executor, &tokens(name), &[24]);
        let difference = largest_difference(&got, &rows(name, "logits.f32"));
        let same_turns = name == "phi3"; // 0.8 of 8 values are 6 as well.
        assert_eq!(difference > 1e-3, !same_turns, "{name} {to}: {difference}");
    }
}

#[test]
fn keys_and_values_as_bytes_move_logits_little() {
    for name in NAMES {
        let options = CpuOptions {
            kv_element: KvElement::Int8Group32,
            ..options()
        };
        let half = ModelFile::open(&folder(name)).unwrap();
        let smaller = half.memory_plan(&options).unwrap().block_bytes;
        assert!(
            smaller
                < half
                    .memory_plan(&crate::models::options())
                    .unwrap()
                    .block_bytes
        );
        let mut executor = CpuExecutor::from_file(&half, &options, |_, _| {}).unwrap();
        let got = logits(&mut executor, &tokens(name), &[24]);
        let difference = largest_difference(&got, &rows(name, "logits.f32"));
        assert!(
            difference > 1e-4 && difference < 0.2,
            "{name}: {difference}"
        );
    }
}

/// The vector of the first `count` tokens, computed beside another text in pieces of `piece` tokens.
fn embedded(
    executor: &mut CpuExecutor,
    tokens: &[u32],
    count: usize,
    piece: usize,
    pooling: Pooling,
) -> Vec<f32> {
    let mut pooled = PooledStates::new(pooling);
    let mut states = Vec::new();
    for start in (0..count).step_by(piece) {
        let end = (start + piece).min(count);
        let row = |block_table, wanted| StepRow {
            tokens: &tokens[start..end],
            start,
            block_table,
            logits: wanted,
        };
        let rows = [row(&[2, 3], 1), row(&[0, 1], end - start)];
        executor.states(&rows, &mut states).unwrap();
        let width = states.len() / (1 + end - start);
        for state in states.chunks_exact(width).skip(1) {
            pooled.push(state);
        }
    }
    pooled.vector()
}

#[test]
fn embeddings_are_pooled_states_of_length_1() {
    let name = "qwen3_yarn";
    let (tokens, states) = (tokens(name), rows(name, "states.f32"));
    let mut executor = load(&folder(name));
    assert_eq!(executor.info().pooling, None);
    let sum = |states: &[Vec<f32>]| -> Vec<f32> {
        (0..states[0].len())
            .map(|i| states.iter().map(|state| state[i]).sum())
            .collect()
    };
    for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
        for count in [24, 5] {
            let chosen = match pooling {
                Pooling::Mean => sum(&states[..count]),
                Pooling::First => states[0].clone(),
                Pooling::Last => states[count - 1].clone(),
            };
            let length = chosen.iter().map(|x| x * x).sum::<f32>().sqrt();
            let expected: Vec<f32> = chosen.iter().map(|x| x / length).collect();
            let vector = embedded(&mut executor, &tokens, count, count, pooling);
            let difference = largest_difference(std::slice::from_ref(&vector), &[expected]);
            assert!(difference <= 1e-4, "{pooling:?} {count}: {difference}");
            let in_pieces = embedded(&mut executor, &tokens, count, 7, pooling);
            assert_eq!(in_pieces, vector, "{pooling:?} {count}");
        }
    }
    let unknown = StepRow {
        tokens: &[1000],
        start: 0,
        block_table: &[0],
        logits: 1,
    };
    let error = executor.states(&[unknown], &mut Vec::new()).unwrap_err();
    assert!(matches!(error, ExecutorError::TokenOutOfRange { .. }));
}

#[test]
fn a_folder_for_embeddings_says_how_it_pools_and_needs_no_head_and_no_prefix() {
    let changed = copy("qwen3_yarn");
    std::fs::create_dir(changed.path().join("1_Pooling")).unwrap();
    let pooling = |text: &str| {
        std::fs::write(changed.path().join("1_Pooling/config.json"), text).unwrap();
        ModelFile::open(changed.path()).map(|file| file.config().pooling)
    };
    let text = r#"{"word_embedding_dimension":24,"pooling_mode_mean_tokens":false,"pooling_mode_lasttoken":true}"#;
    assert_eq!(pooling(text).unwrap(), Some(Pooling::Last));
    let error = pooling(r#"{"pooling_mode_max_tokens":true}"#).unwrap_err();
    assert!(
        error.to_string().contains("pooling_mode_max_tokens"),
        "{error}"
    );
    // Shorter names in a header of the same length: padding goes behind, as JSON allows.
    let path = changed.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + header_bytes].to_vec()).unwrap();
    let bare = format!("{:header_bytes$}", header.replace("\"model.", "\""));
    std::fs::write(
        &path,
        [&bytes[..8], bare.as_bytes(), &bytes[8 + header_bytes..]].concat(),
    )
    .unwrap();
    pooling(text).unwrap();
    assert_agrees("qwen3_yarn", &mut load(changed.path()));
}

#[test]
fn what_is_not_computed_is_named_before_weights_are_read() {
    for (name, from, to, words) in [
        (
            "llama",
            r#""model_type": "llama""#,
            r#""model_type": "mamba""#,
            "mamba",
        ),
        (
            "llama",
            r#""rope_type": "default""#,
            r#""rope_type": "dynamic""#,
            "dynamic",
        ),
        (
            "llama",
            r#""attention_bias": false"#,
            r#""attention_bias": true"#,
            "attention_bias",
        ),
        (
            "llama",
            r#""mlp_bias": false"#,
            r#""mlp_bias": true"#,
            "mlp_bias",
        ),
        (
            "llama",
            r#""hidden_act": "silu""#,
            r#""hidden_act": "relu""#,
            "relu",
        ),
        (
            "llama",
            r#""use_cache": true"#,
            r#""quantization_config": {}"#,
            "GGUF",
        ),
        (
            "llama",
            r#""use_cache": true"#,
            r#""num_local_experts": 4"#,
            "experts",
        ),
        (
            "gemma3",
            r#""use_bidirectional_attention": false"#,
            r#""use_bidirectional_attention": true"#,
            "later tokens",
        ),
    ] {
        let error = refused(name, from, to);
        assert!(
            matches!(error, LoadError::UnsupportedModel(_)),
            "{to}: {error}"
        );
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn numbers_that_contradict_each_other_or_reason_are_refused() {
    for (name, from, to, words) in [
        (
            "llama",
            r#""hidden_size": 24"#,
            r#""hidden_size": 25"#,
            "25",
        ),
        ("llama", r#""vocab_size": 61"#, r#""vocab_size": 60"#, "60"),
        (
            "llama",
            r#""vocab_size": 61"#,
            r#""vocab_size": -1"#,
            "vocab_size",
        ),
        (
            "llama",
            r#""num_attention_heads": 4"#,
            r#""num_attention_heads": 0"#,
            "num_attention_heads",
        ),
        (
            "llama",
            r#""num_key_value_heads": 2"#,
            r#""num_key_value_heads": 3"#,
            "3 key heads",
        ),
        (
            "llama",
            r#""num_hidden_layers": 2"#,
            r#""num_hidden_layers": 3"#,
            "model.layers.2",
        ),
        (
            "llama",
            r#""num_hidden_layers": 2"#,
            r#""num_hidden_layers": 1"#,
            "model.layers.1",
        ),
        ("llama", r#""head_dim": 8"#, r#""head_dim": 7"#, "7"),
        (
            "gemma3",
            r#""full_attention""#,
            r#""chunked_attention""#,
            "layer_types",
        ),
        (
            "qwen3_yarn",
            r#""factor": 4.0"#,
            r#""factor": 0"#,
            "rope_parameters.factor",
        ),
        (
            "llama",
            r#""rms_norm_eps": 1e-05"#,
            r#""rms_norm_eps": 1e-60"#,
            "an epsilon",
        ),
        (
            "phi3",
            r#""rope_theta": 1000.0"#,
            r#""rope_theta": null"#,
            "",
        ),
    ] {
        let changed = copy(name);
        change(changed.path(), from, to);
        match ModelFile::open(changed.path()) {
            // A missing base is the usual one.
            Ok(_) => assert_eq!(words, "", "{to}"),
            Err(error) => assert!(
                !words.is_empty() && error.to_string().contains(words),
                "{to}: {error}"
            ),
        }
    }
}

#[test]
fn damaged_missing_and_misplaced_files_are_errors_with_a_name() {
    let error_after = |name: &str, spoil: &dyn Fn(&Path)| {
        let changed = copy(name);
        spoil(changed.path());
        ModelFile::open(changed.path())
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let shard = "model-00002-of-00002.safetensors";
    let error = error_after("llama", &|at| std::fs::remove_file(at.join(shard)).unwrap());
    assert!(error.contains(shard), "{error}");
    let error = error_after("llama", &|at| {
        let index = at.join("model.safetensors.index.json");
        let text = std::fs::read_to_string(&index).unwrap();
        std::fs::write(&index, text.replace("00001-of", "00002-of")).unwrap();
    });
    assert!(error.contains("tensor"), "{error}");
    let error = error_after("llama_3", &|at| {
        std::fs::remove_file(at.join("config.json")).unwrap();
    });
    assert!(error.contains("config.json"), "{error}");
    let cut = |name: &'static str, len: u64| {
        error_after(name, &move |at| {
            let file = std::fs::File::options()
                .write(true)
                .open(at.join("model.safetensors"));
            file.unwrap().set_len(len).unwrap();
        })
    };
    for len in [0, 7, 8, 100, 20_000] {
        assert!(cut("llama_3", len).starts_with("invalid model"), "{len}");
    }
    let error = error_after("llama_3", &|at| {
        std::fs::write(at.join("config.json"), "[".repeat(100_000)).unwrap();
    });
    assert!(error.contains("config.json"), "{error}");
}

#[test]
fn nan_in_a_weight_of_a_folder_is_refused_with_its_name() {
    let changed = copy("qwen3_yarn");
    let path = changed.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let error = CpuExecutor::load(changed.path(), &options(), |_, _| {})
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("model.") && error.contains("NaN"), "{error}");
}

/// A copy of a model to spoil.
fn copy(name: &str) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

fn change(folder: &Path, from: &str, to: &str) {
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

fn refused(name: &str, from: &str, to: &str) -> LoadError {
    let changed = copy(name);
    change(changed.path(), from, to);
    ModelFile::open(changed.path()).map(|_| ()).unwrap_err()
}
