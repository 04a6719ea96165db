//! The committed models, and what is expected of them.

use std::path::{Path, PathBuf};

use pagoda_model::{CpuExecutor, CpuOptions, Executor, KvBudget, KvElement, Logits, StepRow};

pub const NAMES: [&str; 10] = [
    "llama",
    "llama_3",
    "llama_linear",
    "mistral",
    "qwen2",
    "qwen3_yarn",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
];

/// The bound on a logit's distance from the reference, whose keys and values are half precision too.
const LARGEST_DIFFERENCE: f32 = 1e-4;

pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/architectures/models")
        .join(name)
}

pub fn tokens(name: &str) -> Vec<u32> {
    let text = std::fs::read(folder(name).join("expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let tokens = json["tokens"].as_array().unwrap().iter();
    tokens.map(|token| token.as_u64().unwrap() as u32).collect()
}

/// Little-endian floats of a file beside the model, a row a token.
pub fn rows(name: &str, file: &str) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(folder(name).join(file)).unwrap();
    let numbers: Vec<f32> = bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let width = numbers.len() / tokens(name).len();
    numbers.chunks_exact(width).map(<[f32]>::to_vec).collect()
}

pub fn options() -> CpuOptions {
    CpuOptions {
        threads: 2,
        kv: KvBudget::Blocks(4),
        kv_element: KvElement::F16,
        ..CpuOptions::default()
    }
}

pub fn load(path: &Path) -> CpuExecutor {
    CpuExecutor::load(path, &options(), |_, _| {}).unwrap()
}

/// Logits of all tokens, fed in pieces of these lengths.
pub fn logits(executor: &mut CpuExecutor, tokens: &[u32], pieces: &[usize]) -> Vec<Vec<f32>> {
    let (mut out, mut logits, mut start) = (Vec::new(), Logits::default(), 0);
    for &len in pieces {
        let row = StepRow {
            tokens: &tokens[start..start + len],
            start,
            block_table: &[2, 0],
            logits: len,
        };
        executor.forward(&[row], &mut logits).unwrap();
        out.extend((0..logits.rows()).map(|row| logits.row(row).to_vec()));
        start += len;
    }
    out
}

pub fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[track_caller]
pub fn assert_agrees(name: &str, executor: &mut CpuExecutor) {
    let (tokens, expected) = (tokens(name), rows(name, "logits.f32"));
    let together = logits(executor, &tokens, &[24]);
    let difference = largest_difference(&together, &expected);
    println!("{name}: {difference:.1e} from the reference");
    assert!(difference <= LARGEST_DIFFERENCE, "{name}: {difference}");
    let in_pieces = logits(executor, &tokens, &[1, 11, 1, 1, 10]);
    assert_eq!(in_pieces, together, "{name}: cut another way");
}
