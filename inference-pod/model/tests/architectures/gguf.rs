//! The same weights as GGUF files: other names, the Llama family's order of pairs, Gemma's norms with their one added.

use std::collections::BTreeMap;

use pagoda_gguf::{GgufBuilder, TensorType, Value};
use serde_json::Value as Json;

use crate::models::{NAMES, assert_agrees, folder, load};

#[derive(Clone)]
struct Tensor {
    shape: Vec<u64>,
    kind: TensorType,
    bytes: Vec<u8>,
}

/// All tensors of a model's folder, by a reading of the container of its own.
fn tensors(name: &str) -> BTreeMap<String, Tensor> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder(name)).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "safetensors")
        {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: BTreeMap<String, Json> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        for (tensor, facts) in header
            .into_iter()
            .filter(|(name, _)| name != "__metadata__")
        {
            let at = |i: usize| facts["data_offsets"][i].as_u64().unwrap() as usize + 8 + length;
            let shape = facts["shape"].as_array().unwrap().iter();
            let kind = match facts["dtype"].as_str().unwrap() {
                "F32" => TensorType::F32,
                "F16" => TensorType::F16,
                _ => TensorType::Bf16,
            };
            let tensor_bytes = bytes[at(0)..at(1)].to_vec();
            let shape = shape.map(|extent| extent.as_u64().unwrap()).collect();
            all.insert(
                tensor,
                Tensor {
                    shape,
                    kind,
                    bytes: tensor_bytes,
                },
            );
        }
    }
    all
}

fn gguf_name(name: &str, architecture: &str) -> String {
    let Some(rest) = name.strip_prefix("model.layers.") else {
        return match name {
            "model.embed_tokens.weight" => "token_embd.weight",
            "model.norm.weight" => "output_norm.weight",
            "lm_head.weight" => "output.weight",
            other => panic!("{other}"),
        }
        .to_owned();
    };
    let (layer, rest) = rest.split_once('.').unwrap();
    let (part, suffix) = rest.rsplit_once('.').unwrap();
    let with_output_norms = matches!(architecture, "gemma2" | "gemma3");
    let part = match part {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.qkv_proj" => "attn_qkv",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" if with_output_norms => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{part}.{suffix}")
}

impl Tensor {
    /// Rows of each head in the Llama family's order: value `i` beside value `dim / 2 + i`.
    fn with_adjacent_pairs(mut self, heads: usize) -> Self {
        let row = self.bytes.len() / self.shape[0] as usize;
        let dim = self.shape[0] as usize / heads;
        let from = |out: usize| {
            let (head, within) = (out / dim, out % dim);
            head * dim + within % 2 * (dim / 2) + within / 2
        };
        self.bytes = (0..heads * dim)
            .flat_map(|out| self.bytes[from(out) * row..][..row].to_vec())
            .collect();
        self
    }

    fn values(&self) -> Vec<f32> {
        match self.kind {
            TensorType::F32 => self
                .bytes
                .chunks(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            TensorType::F16 => self
                .bytes
                .chunks(2)
                .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            _ => self
                .bytes
                .chunks(2)
                .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
        }
    }
}

/// A model's folder as a GGUF file.
fn converted(name: &str) -> Vec<u8> {
    let text = std::fs::read(folder(name).join("config.json")).unwrap();
    let config: Json = serde_json::from_slice(&text).unwrap();
    let architecture = match config["model_type"].as_str().unwrap() {
        "mistral" => "llama",
        "gemma3_text" => "gemma3",
        other => other,
    };
    let number = |key: &str| config[key].as_u64();
    let mut builder = GgufBuilder::new()
        .value("general.architecture", architecture)
        .value(
            &format!("{architecture}.attention.layer_norm_rms_epsilon"),
            1e-5f32,
        );
    for (key, value) in [
        ("block_count", number("num_hidden_layers")),
        ("context_length", number("max_position_embeddings")),
        ("embedding_length", number("hidden_size")),
        ("feed_forward_length", number("intermediate_size")),
        ("attention.head_count", number("num_attention_heads")),
        ("attention.head_count_kv", number("num_key_value_heads")),
        ("attention.key_length", number("head_dim")),
        ("attention.value_length", number("head_dim")),
        ("attention.sliding_window", number("sliding_window")),
    ] {
        if let Some(value) = value {
            builder = builder.value(&format!("{architecture}.{key}"), value as u32);
        }
    }
    for (key, value) in particulars(name, &config) {
        builder = builder.value(&format!("{architecture}.{key}"), value);
    }
    for (tensor_name, mut tensor) in tensors(name) {
        if architecture == "llama" && tensor_name.contains("self_attn.q_proj") {
            tensor = tensor.with_adjacent_pairs(4);
        } else if architecture == "llama" && tensor_name.contains("self_attn.k_proj") {
            tensor = tensor.with_adjacent_pairs(2);
        }
        let dims: Vec<u64> = tensor.shape.iter().rev().copied().collect();
        let name = gguf_name(&tensor_name, architecture);
        if tensor.shape.len() == 1 {
            let one = if architecture.starts_with("gemma") {
                1.0
            } else {
                0.0
            };
            let values: Vec<f32> = tensor.values().iter().map(|x| x + one).collect();
            builder = builder.tensor_f32(&name, &dims, &values);
        } else {
            builder = builder.tensor(&name, &dims, tensor.kind, &tensor.bytes);
        }
    }
    for (name, factors) in factors(name, &config) {
        builder = builder.tensor_f32(name, &[factors.len() as u64], &factors);
    }
    builder.build()
}

/// Metadata that not every model has.
fn particulars(name: &str, config: &Json) -> Vec<(&'static str, Value)> {
    let rope = &config["rope_parameters"];
    let mut all = match name {
        "gemma3" => vec![
            ("rope.freq_base", 5000.0f32.into()),
            ("rope.freq_base_swa", 100.0f32.into()),
            ("rope.scaling.type", "linear".into()),
            ("rope.scaling.factor", 2.0f32.into()),
            ("attention.sliding_window_pattern", 3u32.into()),
        ],
        _ => vec![("rope.freq_base", 1000.0f32.into())],
    };
    match rope["rope_type"].as_str() {
        Some(kind @ ("linear" | "yarn")) => {
            all.push(("rope.scaling.type", kind.into()));
            let factor = rope["factor"].as_f64().unwrap() as f32;
            all.push(("rope.scaling.factor", factor.into()));
            all.push(("rope.scaling.original_context_length", 16u32.into()));
        }
        Some("longrope") => {
            all.push(("rope.scaling.type", "longrope".into()));
            all.push(("rope.scaling.original_context_length", 16u32.into()));
            all.push(("rope.dimension_count", 6u32.into()));
        }
        _ => {}
    }
    if name == "gemma2" {
        all.push(("attn_logit_softcapping", 2.0f32.into()));
        all.push(("final_logit_softcapping", 3.0f32.into()));
    }
    all
}

/// Factors of pairs that files of some families hold as tensors.
fn factors(name: &str, config: &Json) -> Vec<(&'static str, Vec<f32>)> {
    let rope = &config["rope_parameters"];
    let list = |key: &str| -> Vec<f32> {
        let numbers = rope[key].as_array().unwrap().iter();
        numbers.map(|x| x.as_f64().unwrap() as f32).collect()
    };
    match name {
        "phi3" => vec![
            ("rope_factors_short.weight", list("short_factor")),
            ("rope_factors_long.weight", list("long_factor")),
        ],
        // As converters compute them: 16 positions of training, scaled by 4 between wave lengths of 4 and 16.
        "llama_3" => {
            let factor = |pair: i32| {
                let wave = std::f64::consts::TAU * 1000f64.powf(2.0 * f64::from(pair) / 8.0);
                if wave < 4.0 {
                    1.0
                } else if wave > 16.0 {
                    4.0
                } else {
                    let smooth = (16.0 / wave - 1.0) / 3.0;
                    1.0 / ((1.0 - smooth) / 4.0 + smooth)
                }
            };
            vec![(
                "rope_freqs.weight",
                (0..4).map(|pair| factor(pair) as f32).collect(),
            )]
        }
        _ => Vec::new(),
    }
}

#[test]
fn every_architecture_computes_the_same_from_gguf() {
    // The scale of Gemma 2's scores is no part of its files: it follows from the heads, which this model's does not.
    for name in NAMES.into_iter().filter(|&name| name != "gemma2") {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), converted(name)).unwrap();
        assert_agrees(name, &mut load(file.path()));
    }
}

#[test]
fn gemma_2_from_gguf_scales_scores_by_its_heads() {
    use crate::models::{largest_difference, logits, tokens};
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), converted("gemma2")).unwrap();
    let from_gguf = logits(&mut load(file.path()), &tokens("gemma2"), &[24]);
    // The same folder with a scale by the heads' 8 values instead of 12.
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder("gemma2")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    let path = to.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text.replace(
            "\"query_pre_attn_scalar\": 12",
            "\"query_pre_attn_scalar\": 8",
        ),
    )
    .unwrap();
    let from_folder = logits(&mut load(to.path()), &tokens("gemma2"), &[24]);
    assert!(largest_difference(&from_gguf, &from_folder) <= 1e-6);
}
