//! The committed files of `e2e/reference/expected`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Which GGUF file the values are for.
#[derive(Deserialize)]
pub struct ModelIdentity {
    /// Lower-case hexadecimal.
    pub sha256: String,
}

#[derive(Deserialize)]
pub struct GreedyFile {
    pub model: ModelIdentity,
    pub prompts: Vec<GreedyPrompt>,
}

#[derive(Deserialize)]
pub struct GreedyPrompt {
    pub name: String,
    pub ids: Vec<u32>,
    pub steps: Vec<GreedyStep>,
}

#[derive(Deserialize)]
pub struct GreedyStep {
    pub token: u32,
    /// The best logit less the second best.
    pub gap: f32,
}

#[derive(Deserialize)]
pub struct DistributionsFile {
    pub model: ModelIdentity,
    pub ids: Vec<u32>,
    pub perplexity: f64,
    pub compact_form: CompactForm,
    pub llama_cpp: LlamaCppFigures,
}

#[derive(Deserialize)]
pub struct CompactForm {
    /// File name beside this one.
    pub file: String,
}

#[derive(Deserialize)]
pub struct LlamaCppFigures {
    pub perplexity: f64,
    /// Nats.
    pub mean_kl: f64,
}

/// What the reference thinks of a text, position by position.
#[derive(Deserialize)]
pub struct Gemma3File {
    pub model: ModelIdentity,
    pub ids: Vec<u32>,
    pub perplexity: f64,
    /// The likeliest next token at each position.
    pub best: Vec<u32>,
    /// By how much its logit exceeds the second best.
    pub gap: Vec<f32>,
    pub compact_form: CompactForm,
    pub llama_cpp: LlamaCppFigures,
}

/// Path of the expected file `name`.
pub fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../e2e/reference/expected")
        .join(name)
}

/// Reads the JSON file `name`.
pub fn load<T: DeserializeOwned>(name: &str) -> T {
    let path = path_of(name);
    let text = std::fs::read(&path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    serde_json::from_slice(&text)
        .unwrap_or_else(|error| panic!("{} is not what the test expects: {error}", path.display()))
}
