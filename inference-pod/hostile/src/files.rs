//! A model file, up to where its weights would be read.

use std::io::Write;

use pagoda_gguf::{Gguf, GgufBuilder, GgufError, TensorType, assert_sound};
use pagoda_model::{CpuOptions, KvBudget, ModelFile};
use pagoda_text::{ChatTemplate, SpecialTokens, Tokenizer};

use crate::Mutator;

/// Extents of the model in the seeds.
const WIDTH: u64 = 32;
const VOCABULARY: u64 = 8;

/// A tiny model with a tokenizer and a template, and its header with every type of value.
pub fn gguf_seeds() -> Vec<Vec<u8>> {
    vec![
        tiny_model().build(),
        tiny_model().version(2).alignment(64).build(),
    ]
}

/// Those seeds, changed.
pub fn gguf_inputs(seed: u64) -> Mutator {
    Mutator::new(seed, gguf_seeds(), &[])
}

fn tiny_model() -> GgufBuilder {
    let tokens = [
        "<s>",
        "</s>",
        "a",
        "b",
        "ab",
        "\u{120}a",
        "\u{10a}",
        "<|im_end|>",
    ];
    let mut builder = GgufBuilder::new()
        .value("general.architecture", "llama")
        .value("llama.block_count", 1_u32)
        .value("llama.context_length", 64_u32)
        .value("llama.embedding_length", WIDTH as u32)
        .value("llama.feed_forward_length", WIDTH as u32)
        .value("llama.attention.head_count", 2_u32)
        .value("llama.attention.head_count_kv", 1_u32)
        .value("llama.attention.layer_norm_rms_epsilon", 1e-5_f32)
        .value("llama.rope.freq_base", 10_000.0_f32)
        .value("llama.vocab_size", VOCABULARY as u32)
        .value("tokenizer.ggml.model", "gpt2")
        .value("tokenizer.ggml.pre", "smollm")
        .value("tokenizer.ggml.tokens", tokens.as_slice())
        .value(
            "tokenizer.ggml.token_type",
            vec![3_i32, 3, 1, 1, 1, 1, 1, 3],
        )
        .value("tokenizer.ggml.merges", ["a b"].as_slice())
        .value("tokenizer.ggml.bos_token_id", 0_u32)
        .value("tokenizer.ggml.eos_token_id", 1_u32)
        .value("tokenizer.ggml.add_bos_token", true)
        .value("tokenizer.chat_template", pagoda_text::CHATML);
    let half = WIDTH / 2;
    let tensors: [(&str, &[u64]); 11] = [
        ("token_embd.weight", &[WIDTH, VOCABULARY]),
        ("output_norm.weight", &[WIDTH]),
        ("blk.0.attn_norm.weight", &[WIDTH]),
        ("blk.0.ffn_norm.weight", &[WIDTH]),
        ("blk.0.attn_q.weight", &[WIDTH, WIDTH]),
        ("blk.0.attn_k.weight", &[WIDTH, half]),
        ("blk.0.attn_v.weight", &[WIDTH, half]),
        ("blk.0.attn_output.weight", &[WIDTH, WIDTH]),
        ("blk.0.ffn_gate.weight", &[WIDTH, WIDTH]),
        ("blk.0.ffn_up.weight", &[WIDTH, WIDTH]),
        ("blk.0.ffn_down.weight", &[WIDTH, WIDTH]),
    ];
    for (name, dims) in tensors {
        let elements = dims.iter().product::<u64>() as usize;
        builder = match dims {
            [_] => builder.tensor_f32(name, dims, &vec![1.0; elements]),
            _ => builder.tensor(name, dims, TensorType::Q8_0, &vec![0; elements / 32 * 34]),
        };
    }
    builder
}

/// Reads everything that comes before the weights. What is accepted lies within the file and shares no byte, in whatever pieces
/// it is read; what its model would take is told without taking it. Returns whether the container was accepted.
pub fn gguf(bytes: &[u8]) -> bool {
    let (parsed, pieces) = (Gguf::parse(bytes), in_pieces(bytes));
    // Written out where they differ: a number that is none equals nothing, itself included.
    assert!(
        parsed == pieces || format!("{parsed:?}") == format!("{pieces:?}"),
        "a header means the same in whatever pieces it is read, not {parsed:?} and {pieces:?}"
    );
    let Ok(file) = parsed else { return false };
    assert_sound(bytes, &file);
    let tokenizer = Tokenizer::from_metadata(file.metadata());
    if let Ok(tokenizer) = tokenizer {
        let tokens = tokenizer.encode("ab a\nb \u{1f600}<|im_end|>", SpecialTokens::Parse);
        assert!(tokenizer.decode(&tokens).is_ok(), "its own tokens exist");
    }
    let _ = ChatTemplate::from_metadata(file.metadata());
    open(bytes);
    true
}

fn in_pieces(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let mut length = 16;
    loop {
        let head = &bytes[..length.min(bytes.len())];
        match Gguf::parse_head(head, bytes.len() as u64) {
            Err(GgufError::HeadTooShort { needed_bytes }) => {
                assert!(needed_bytes > head.len() as u64 && needed_bytes <= bytes.len() as u64);
                length = needed_bytes as usize;
            }
            found => return found,
        }
    }
}

/// Configuration and tensor table, from a real file, as the server opens it.
fn open(bytes: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("room for it");
    let Ok(model) = ModelFile::open(file.path()) else {
        return;
    };
    let options = CpuOptions {
        kv: KvBudget::Blocks(1),
        ..CpuOptions::default()
    };
    if let Ok(plan) = model.memory_plan(&options) {
        assert!(plan.total_bytes() >= plan.weight_bytes);
    }
}
