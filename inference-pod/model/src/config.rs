//! The Llama architecture's numbers, out of a file's metadata and checked against reason.

use pagoda_gguf::{Gguf, Metadata};

use crate::error::LoadError;

/// What the forward pass needs to know besides weights.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Layers.
    pub layers: usize,
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
    /// Leading values of a head that position turns; even.
    pub rope_dims: usize,
    /// Base of the turning frequencies.
    pub rope_base: f32,
    /// Positions are divided by this (linear scaling).
    pub rope_scale: f32,
    /// Added to the mean square in normalisation.
    pub norm_eps: f32,
    /// Positions the model was made for.
    pub context_tokens: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
}

const LARGEST_LAYERS: usize = 1 << 10;
const LARGEST_WIDTH: usize = 1 << 20;
const LARGEST_HEADS: usize = 1 << 12;
const LARGEST_HEAD_DIM: usize = 1 << 10;
const LARGEST_CONTEXT: usize = 1 << 24;
const LARGEST_VOCABULARY: usize = 1 << 22;

impl LlamaConfig {
    /// Reads the configuration, or says which part of the model is unsupported or wrong.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, LoadError> {
        let keys = Keys(gguf.metadata());
        keys.check_supported()?;
        let heads = keys.size("attention.head_count", LARGEST_HEADS)?;
        let embedding = keys.size("embedding_length", LARGEST_WIDTH)?;
        let head_dim = keys.size_or("attention.key_length", LARGEST_HEAD_DIM, embedding / heads)?;
        let config = Self {
            layers: keys.size("block_count", LARGEST_LAYERS)?,
            embedding,
            feed_forward: keys.size("feed_forward_length", LARGEST_WIDTH)?,
            heads,
            kv_heads: keys.size_or("attention.head_count_kv", LARGEST_HEADS, heads)?,
            head_dim,
            rope_dims: keys.size_or("rope.dimension_count", LARGEST_HEAD_DIM, head_dim)?,
            rope_base: keys.positive_or("rope.freq_base", 10_000.0)?,
            rope_scale: keys.rope_scale()?,
            norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            context_tokens: keys.size("context_length", LARGEST_CONTEXT)?,
            vocab_size: vocabulary(gguf)?,
        };
        keys.check_windows(&config)?;
        config.check()?;
        Ok(config)
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
        if !self.rope_dims.is_multiple_of(2) || self.rope_dims > self.head_dim {
            return wrong(format!(
                "position turns {} of {} values of a head",
                self.rope_dims, self.head_dim
            ));
        }
        Ok(())
    }
}

struct Keys<'a>(&'a Metadata);

impl Keys<'_> {
    fn has(&self, key: &str) -> bool {
        self.0.get(&format!("llama.{key}")).is_some()
    }

    fn size(&self, key: &str, largest: usize) -> Result<usize, LoadError> {
        let value = self.0.get_u64(&format!("llama.{key}"))?;
        match usize::try_from(value) {
            Ok(size) if (1..=largest).contains(&size) => Ok(size),
            _ => Err(LoadError::Invalid(format!(
                "llama.{key} is {value}; expected 1 to {largest}"
            ))),
        }
    }

    fn size_or(&self, key: &str, largest: usize, default: usize) -> Result<usize, LoadError> {
        if self.has(key) {
            self.size(key, largest)
        } else {
            Ok(default)
        }
    }

    fn positive(&self, key: &str) -> Result<f32, LoadError> {
        let value = self.0.get_f32(&format!("llama.{key}"))?;
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(LoadError::Invalid(format!(
            "llama.{key} is {value}; expected a positive number"
        )))
    }

    fn positive_or(&self, key: &str, default: f32) -> Result<f32, LoadError> {
        if self.has(key) {
            self.positive(key)
        } else {
            Ok(default)
        }
    }

    fn check_supported(&self) -> Result<(), LoadError> {
        let architecture = self.0.get_str("general.architecture")?;
        if architecture != "llama" {
            let shown: String = architecture
                .chars()
                .filter(|c| !c.is_control())
                .take(64)
                .collect();
            return Err(LoadError::UnsupportedModel(format!(
                "architecture {shown:?}; this engine computes \"llama\""
            )));
        }
        if self.has("expert_count") && self.0.get_u64("llama.expert_count")? > 0 {
            return Err(LoadError::UnsupportedModel(
                "a mixture of experts (llama.expert_count above 0)".into(),
            ));
        }
        Ok(())
    }

    /// Linear scaling only; frequencies scaled pair by pair come as a tensor.
    fn rope_scale(&self) -> Result<f32, LoadError> {
        if !self.has("rope.scaling.type") {
            return self.positive_or("rope.scale_linear", 1.0);
        }
        match self.0.get_str("llama.rope.scaling.type")? {
            "none" => Ok(1.0),
            "linear" => self.positive("rope.scaling.factor"),
            other => {
                let shown: String = other.chars().filter(|c| !c.is_control()).take(64).collect();
                Err(LoadError::UnsupportedModel(format!(
                    "position scaling {shown:?}; none and linear are computed"
                )))
            }
        }
    }

    fn check_windows(&self, config: &LlamaConfig) -> Result<(), LoadError> {
        if self.has("attention.value_length") {
            let value = self.size("attention.value_length", LARGEST_HEAD_DIM)?;
            if value != config.head_dim {
                let what = format!(
                    "values of {value} beside keys of {} numbers a head",
                    config.head_dim
                );
                return Err(LoadError::UnsupportedModel(what));
            }
        }
        if self.has("attention.sliding_window") {
            let window = self.0.get_u64("llama.attention.sliding_window")?;
            if window > 0 && window < config.context_tokens as u64 {
                let what = format!(
                    "a sliding window of {window} tokens in a context of {}",
                    config.context_tokens
                );
                return Err(LoadError::UnsupportedModel(what));
            }
        }
        Ok(())
    }
}

fn vocabulary(gguf: &Gguf) -> Result<usize, LoadError> {
    let Some(table) = gguf.tensor("token_embd.weight") else {
        return Err(LoadError::Invalid("no tensor token_embd.weight".into()));
    };
    match table.dims[..] {
        [_, tokens] if tokens <= LARGEST_VOCABULARY as u64 => Ok(tokens as usize),
        _ => Err(LoadError::Invalid(format!(
            "token_embd.weight has dimensions {:?}",
            table.dims
        ))),
    }
}
