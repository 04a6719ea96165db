//! A model's configuration out of a GGUF file's metadata.

use pagoda_gguf::{Gguf, Metadata};

use super::layers::{self, effective_window};
use super::{
    Architecture, LARGEST_CONTEXT, LARGEST_HEAD_DIM, LARGEST_HEADS, LARGEST_LAYERS,
    LARGEST_VOCABULARY, LARGEST_WIDTH, ModelConfig, Pooling, inverse_root, shown,
};
use crate::error::LoadError;
use crate::rope::{LongScaling, Rope, RopeScaling, YarnScaling};

/// The base of layers with a window, where a Gemma 3 file leaves it out.
const GEMMA3_LOCAL_BASE: f32 = 10_000.0;

impl ModelConfig {
    /// Reads the configuration, or says which part of the model is unsupported or wrong.
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Self, LoadError> {
        let name = gguf.metadata().get_str("general.architecture")?;
        let architecture = Architecture::of_gguf(name)?;
        let keys = Keys {
            metadata: gguf.metadata(),
            prefix: architecture.name(),
        };
        keys.check_supported()?;
        let heads = keys.size("attention.head_count", LARGEST_HEADS)?;
        let embedding = keys.size("embedding_length", LARGEST_WIDTH)?;
        let head_dim = keys.size_or("attention.key_length", LARGEST_HEAD_DIM, embedding / heads)?;
        let layers = keys.size("block_count", LARGEST_LAYERS)?;
        let context_tokens = keys.size("context_length", LARGEST_CONTEXT)?;
        let attention_scale = if layers::scaled_by_width(architecture, layers) {
            inverse_root(embedding / heads)
        } else {
            inverse_root(head_dim)
        };
        let ropes = keys.ropes(architecture, head_dim, context_tokens)?;
        let window = keys.window(context_tokens)?;
        let period = keys.size_or(
            "attention.sliding_window_pattern",
            LARGEST_LAYERS,
            architecture.window_period(),
        )?;
        let config = Self {
            architecture,
            embedding,
            feed_forward: keys.size("feed_forward_length", LARGEST_WIDTH)?,
            heads,
            kv_heads: keys.size_or("attention.head_count_kv", LARGEST_HEADS, heads)?,
            head_dim,
            norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            context_tokens,
            vocab_size: vocabulary(gguf)?,
            activation: architecture.activation(),
            embedding_scale: architecture.embedding_scale(embedding),
            attention_scale,
            attention_softcap: keys.optional_positive("attn_logit_softcapping")?,
            logit_softcap: keys.optional_positive("final_logit_softcapping")?,
            layers: layers::windowed(layers, window, period, ropes.len()),
            ropes,
            pooling: keys.pooling()?,
        };
        keys.check_values(config.head_dim)?;
        config.check()?;
        Ok(config)
    }
}

struct Keys<'a> {
    metadata: &'a Metadata,
    /// The architecture's name.
    prefix: &'static str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn has(&self, key: &str) -> bool {
        self.metadata.get(&self.key(key)).is_some()
    }

    fn size(&self, key: &str, largest: usize) -> Result<usize, LoadError> {
        let key = self.key(key);
        let value = self.metadata.get_u64(&key)?;
        match usize::try_from(value) {
            Ok(size) if (1..=largest).contains(&size) => Ok(size),
            _ => Err(LoadError::Invalid(format!(
                "{key} is {value}; expected 1 to {largest}"
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
        let key = self.key(key);
        let value = self.metadata.get_f32(&key)?;
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(LoadError::Invalid(format!(
            "{key} is {value}; expected a positive number"
        )))
    }

    fn optional_positive(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.has(key).then(|| self.positive(key)).transpose()
    }

    fn positive_or(&self, key: &str, default: f32) -> Result<f32, LoadError> {
        Ok(self.optional_positive(key)?.unwrap_or(default))
    }

    fn check_supported(&self) -> Result<(), LoadError> {
        let experts = self.key("expert_count");
        if self.has("expert_count") && self.metadata.get_u64(&experts)? > 0 {
            return Err(LoadError::UnsupportedModel(format!(
                "a mixture of experts ({experts} above 0)"
            )));
        }
        Ok(())
    }

    fn check_values(&self, head_dim: usize) -> Result<(), LoadError> {
        let value = self.size_or("attention.value_length", LARGEST_HEAD_DIM, head_dim)?;
        if value == head_dim {
            return Ok(());
        }
        Err(LoadError::UnsupportedModel(format!(
            "values of {value} beside keys of {head_dim} numbers a head"
        )))
    }

    fn window(&self, context_tokens: usize) -> Result<Option<usize>, LoadError> {
        let key = self.key("attention.sliding_window");
        if self.metadata.get(&key).is_none() {
            return Ok(None);
        }
        Ok(effective_window(
            self.metadata.get_u64(&key)?,
            context_tokens,
        ))
    }

    /// The embedding of layers that see everything, then that of layers with a window where it is another.
    fn ropes(
        &self,
        architecture: Architecture,
        head_dim: usize,
        context_tokens: usize,
    ) -> Result<Vec<Rope>, LoadError> {
        let rope = Rope {
            style: architecture.gguf_rope_style(),
            dims: self.size_or("rope.dimension_count", LARGEST_HEAD_DIM, head_dim)?,
            base: f64::from(self.positive_or("rope.freq_base", 10_000.0)?),
            scaling: self.scaling(context_tokens)?,
        };
        if architecture != Architecture::Gemma3 {
            return Ok(vec![rope]);
        }
        let local = self.positive_or("rope.freq_base_swa", GEMMA3_LOCAL_BASE)?;
        let local = Rope {
            base: f64::from(local),
            scaling: RopeScaling::None,
            ..rope
        };
        Ok(vec![rope, local])
    }

    /// Llama 3's and LongRoPE's frequencies come as tensors, which [`crate::weights`] reads.
    fn scaling(&self, context_tokens: usize) -> Result<RopeScaling, LoadError> {
        let linear = |factor: f32| RopeScaling::Linear(f64::from(factor));
        if !self.has("rope.scaling.type") {
            let factor = self.optional_positive("rope.scale_linear")?;
            return Ok(factor.map_or(RopeScaling::None, linear));
        }
        let kind = self.metadata.get_str(&self.key("rope.scaling.type"))?;
        match kind {
            "none" => Ok(RopeScaling::None),
            "linear" => Ok(linear(self.positive("rope.scaling.factor")?)),
            "yarn" => self.yarn(),
            "longrope" => self.long_rope(context_tokens),
            other => Err(LoadError::UnsupportedModel(format!(
                "position scaling {:?}; none, linear, yarn and longrope are computed",
                shown(other)
            ))),
        }
    }

    fn original_context(&self) -> Result<f64, LoadError> {
        Ok(self.size("rope.scaling.original_context_length", LARGEST_CONTEXT)? as f64)
    }

    fn yarn(&self) -> Result<RopeScaling, LoadError> {
        let factor = f64::from(self.positive("rope.scaling.factor")?);
        let attention = f64::from(self.positive_or("rope.scaling.attn_factor", 1.0)?);
        Ok(RopeScaling::Yarn(YarnScaling {
            factor,
            original_context: self.original_context()?,
            beta_fast: f64::from(self.positive_or("rope.scaling.yarn_beta_fast", 32.0)?),
            beta_slow: f64::from(self.positive_or("rope.scaling.yarn_beta_slow", 1.0)?),
            magnitude: attention * YarnScaling::usual_magnitude(factor),
            truncate: true,
        }))
    }

    fn long_rope(&self, context_tokens: usize) -> Result<RopeScaling, LoadError> {
        let original = self.original_context()?;
        let usual = LongScaling::usual_magnitude(context_tokens as f64 / original, original);
        let magnitude = self
            .optional_positive("rope.scaling.attn_factor")?
            .map_or(usual, f64::from);
        Ok(RopeScaling::Long(LongScaling {
            original_context: original,
            short: Vec::new(),
            long: Vec::new(),
            magnitude,
        }))
    }

    fn pooling(&self) -> Result<Option<Pooling>, LoadError> {
        let key = self.key("pooling_type");
        if self.metadata.get(&key).is_none() {
            return Ok(None);
        }
        match self.metadata.get_u32(&key)? {
            0 => Ok(None),
            1 => Ok(Some(Pooling::Mean)),
            2 => Ok(Some(Pooling::First)),
            3 => Ok(Some(Pooling::Last)),
            other => Err(LoadError::UnsupportedModel(format!(
                "{key} is {other}; 0 to 3 (none, mean, first, last) are computed"
            ))),
        }
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
