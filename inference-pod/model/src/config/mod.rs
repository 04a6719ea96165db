//! What a forward pass computes: one description for every architecture, read from a file's metadata and checked against reason.

mod architecture;
mod gguf;
mod hugging_face;
mod layers;

use pagoda_kernels::{Activation, AttentionShape};

pub use architecture::Architecture;

use crate::error::LoadError;
use crate::rope::Rope;

pub(crate) const LARGEST_LAYERS: usize = 1 << 10;
pub(crate) const LARGEST_WIDTH: usize = 1 << 20;
pub(crate) const LARGEST_HEADS: usize = 1 << 12;
pub(crate) const LARGEST_HEAD_DIM: usize = 1 << 10;
pub(crate) const LARGEST_CONTEXT: usize = 1 << 24;
pub(crate) const LARGEST_VOCABULARY: usize = 1 << 22;

/// What the forward pass needs to know besides weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family, which says what parts a layer has.
    pub architecture: Architecture,
    /// Values of a token's state.
    pub embedding: usize,
    /// Values between the feed-forward products.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Added to the mean square in normalisation.
    pub norm_eps: f32,
    /// Positions the model was made for.
    pub context_tokens: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Of the feed-forward gate.
    pub activation: Activation,
    /// What a token's embedding is multiplied by.
    pub embedding_scale: f32,
    /// What dot products of queries and keys are multiplied by.
    pub attention_scale: f32,
    /// Attention scores `s` become `cap * tanh(s / cap)`.
    pub attention_softcap: Option<f32>,
    /// Logits `l` become `cap * tanh(l / cap)`.
    pub logit_softcap: Option<f32>,
    /// What is particular to each layer.
    pub layers: Vec<LayerPlan>,
    /// Ways of turning heads by position, which layers name by index.
    pub(crate) ropes: Vec<Rope>,
    /// How states of tokens make an embedding of their text, for models made for that.
    pub pooling: Option<Pooling>,
}

/// What is particular to one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    /// Tokens a token sees, itself the last of them; all before it when `None`.
    pub window: Option<usize>,
    /// Index of its rotary embedding.
    pub(crate) rope: usize,
}

/// How the states of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all tokens' states.
    Mean,
    /// The first token's state.
    First,
    /// The last token's state.
    Last,
}

impl ModelConfig {
    /// Heads and scores of a layer's attention.
    pub(crate) fn attention(&self, layer: LayerPlan) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: layer.window,
            softcap: self.attention_softcap,
            scale: self.attention_scale,
        }
    }

    fn check(&self) -> Result<(), LoadError> {
        let wrong = |what: String| Err(LoadError::Invalid(what));
        if !self.heads.is_multiple_of(self.kv_heads) {
            return wrong(format!(
                "{} attention heads do not share {} key heads evenly",
                self.heads, self.kv_heads
            ));
        }
        if self.head_dim == 0 || self.head_dim > LARGEST_HEAD_DIM {
            return wrong(format!(
                "a head of {} values; at most {LARGEST_HEAD_DIM} make sense",
                self.head_dim
            ));
        }
        let caps = [self.attention_softcap, self.logit_softcap];
        let numbers = [self.norm_eps, self.attention_scale, self.embedding_scale];
        let mut all = numbers.into_iter().chain(caps.into_iter().flatten());
        if let Some(number) = all.find(|x| !x.is_finite() || *x <= 0.0) {
            return wrong(format!(
                "{number} where a positive number of usual size is needed: an epsilon, a scale or a cap"
            ));
        }
        for rope in &self.ropes {
            rope.check(self.head_dim)?;
        }
        Ok(())
    }
}

/// `1 / sqrt(n)`: what scores of `n` summands are scaled by.
fn inverse_root(n: usize) -> f32 {
    (1.0 / (n as f64).sqrt()) as f32
}

/// A name out of a file as it may be shown.
pub(crate) fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}
