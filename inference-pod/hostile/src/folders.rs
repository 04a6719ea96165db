//! A model as a folder: configuration, index and safetensors, up to where its weights would be read.

use std::path::Path;

use pagoda_model::{CpuOptions, KvBudget, ModelFile};
use serde_json::{Map, Value, json};

use crate::Mutator;

/// The file that an input replaces, by its first byte.
const FILES: [&str; 3] = ["config.json", "model.safetensors.index.json", SHARDS[1]];
const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];
const WIDTH: usize = 8;
const VOCABULARY: usize = 6;

/// Each file of a tiny model, after a first byte that names it.
pub fn folder_seeds() -> Vec<Vec<u8>> {
    let contents = [config(), index(), shard(&tensors()[HALF..])];
    let seed = |(file, content): (usize, Vec<u8>)| [vec![file as u8], content].concat();
    contents.into_iter().enumerate().map(seed).collect()
}

/// What the formats are made of, and what is tried with them.
const WORDS: &[&[u8]] = &[
    b"\"model.norm.weight\": \"../../../../etc/passwd\",",
    b"\"model.norm.weight\": \"/dev/zero\",",
    b"\"model.norm.weight\": {\"dtype\": \"F32\", \"shape\": [8], \"data_offsets\": [0, 32]},",
    b"\"x\": {\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296], \"data_offsets\": [0, 0]},",
    b"\"x\": {\"dtype\": \"BF16\", \"shape\": [], \"data_offsets\": [18446744073709551615, 0]},",
    b"\"__metadata__\": {\"a\": \"b\"},",
    b"\"num_hidden_layers\": 18446744073709551615,",
    b"\"num_attention_heads\": 0,",
    b"\"head_dim\": 1000000,",
    b"\"vocab_size\": -1,",
    b"\"rms_norm_eps\": 1e-400,",
    b"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 0},",
    b"\"rope_scaling\": {\"rope_type\": \"llama3\"},",
    b"\"model_type\": \"gemma3_text\",",
    b"\"sliding_window\": 0,",
    b"[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":",
];

/// Those seeds, changed.
pub fn folder_inputs(seed: u64) -> Mutator {
    Mutator::new(seed, folder_seeds(), WORDS)
}

/// Opens a model of which one file is the input: accepted whole, or refused. Returns whether it was accepted.
pub fn model_folder(bytes: &[u8]) -> bool {
    let Some((file, content)) = bytes.split_first() else {
        return false;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, content: &[u8]| {
        std::fs::write(folder.path().join(name), content).expect("room for it");
    };
    write(FILES[0], &config());
    write(FILES[1], &index());
    write(SHARDS[0], &shard(&tensors()[..HALF]));
    write(SHARDS[1], &shard(&tensors()[HALF..]));
    write(FILES[usize::from(*file) % FILES.len()], content);
    opens(folder.path())
}

fn opens(folder: &Path) -> bool {
    let Ok(model) = ModelFile::open(folder) else {
        return false;
    };
    let options = CpuOptions {
        kv: KvBudget::Blocks(1),
        ..CpuOptions::default()
    };
    if let Ok(plan) = model.memory_plan(&options) {
        assert!(plan.total_bytes() >= plan.weight_bytes);
    }
    true
}

fn config() -> Vec<u8> {
    let config = json!({
        "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_theta": 10000.0, "tie_word_embeddings": true,
    });
    config.to_string().into_bytes()
}

/// So many tensors are in the first file.
const HALF: usize = 5;

/// Names and shapes, in the order of the files.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let square = vec![WIDTH, WIDTH];
    let matrices = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ];
    let norms = ["input_layernorm", "post_attention_layernorm"];
    let in_layer =
        |name: &&str, shape: &[usize]| (format!("model.layers.0.{name}.weight"), shape.to_vec());
    let mut all = vec![
        (
            "model.embed_tokens.weight".to_owned(),
            vec![VOCABULARY, WIDTH],
        ),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
    ];
    all.extend(matrices.iter().map(|name| in_layer(name, &square)));
    all.extend(norms.iter().map(|name| in_layer(name, &[WIDTH])));
    all
}

fn index() -> Vec<u8> {
    let place = |(at, (name, _)): (usize, (String, Vec<usize>))| {
        (name, json!(SHARDS[usize::from(at >= HALF)]))
    };
    let map: Map<String, Value> = tensors().into_iter().enumerate().map(place).collect();
    json!({"metadata": {"total_size": 1}, "weight_map": map})
        .to_string()
        .into_bytes()
}

fn shard(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += shape.iter().product::<usize>() * 4;
        header.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let header = Value::Object(header).to_string().into_bytes();
    [
        (header.len() as u64).to_le_bytes().to_vec(),
        header,
        vec![0; end],
    ]
    .concat()
}
