//! A model's configuration out of Hugging Face's `config.json`, in the forms that versions 4 and 5 of `transformers` write.

use serde_json::{Map, Value};

use super::layers::{self, effective_window};
use super::{
    Architecture, LARGEST_CONTEXT, LARGEST_HEAD_DIM, LARGEST_HEADS, LARGEST_LAYERS,
    LARGEST_VOCABULARY, LARGEST_WIDTH, LayerPlan, ModelConfig, Pooling, inverse_root, shown,
};
use crate::error::LoadError;
use crate::rope::{Llama3Scaling, LongScaling, Rope, RopeScaling, YarnScaling};
use pagoda_kernels::RopeStyle;

impl ModelConfig {
    /// Reads the configuration, or says which part of the model is unsupported or wrong. `pooling` is
    /// `1_Pooling/config.json` of sentence embedding models.
    pub(crate) fn from_hugging_face(
        config: &[u8],
        pooling: Option<&[u8]>,
    ) -> Result<Self, LoadError> {
        let root = object(config, "config.json")?;
        let keys = Keys { map: &root, at: "" };
        let architecture = Architecture::of_hugging_face(keys.text("model_type")?)?;
        keys.check_supported(architecture)?;
        let heads = keys.size("num_attention_heads", LARGEST_HEADS)?;
        let embedding = keys.size("hidden_size", LARGEST_WIDTH)?;
        let head_dim = keys.size_or("head_dim", LARGEST_HEAD_DIM, embedding / heads)?;
        let layers = keys.size("num_hidden_layers", LARGEST_LAYERS)?;
        let context_tokens = keys.size("max_position_embeddings", LARGEST_CONTEXT)?;
        let attention_scale = match keys.optional("query_pre_attn_scalar") {
            Some(_) => (1.0 / keys.positive("query_pre_attn_scalar")?.sqrt()) as f32,
            None => inverse_root(head_dim),
        };
        let ropes = ropes(&keys, architecture, head_dim, context_tokens)?;
        let config = Self {
            architecture,
            embedding,
            feed_forward: keys.size("intermediate_size", LARGEST_WIDTH)?,
            heads,
            kv_heads: keys.size_or("num_key_value_heads", LARGEST_HEADS, heads)?,
            head_dim,
            norm_eps: keys.positive("rms_norm_eps")? as f32,
            context_tokens,
            vocab_size: keys.size("vocab_size", LARGEST_VOCABULARY)?,
            activation: architecture.activation(),
            embedding_scale: architecture.embedding_scale(embedding),
            attention_scale,
            attention_softcap: keys.optional_positive("attn_logit_softcapping")?,
            logit_softcap: keys.optional_positive("final_logit_softcapping")?,
            layers: plans(&keys, architecture, layers, context_tokens, ropes.len())?,
            ropes,
            pooling: pooling.map(pooling_of).transpose()?.flatten(),
        };
        config.check()?;
        Ok(config)
    }
}

fn object(bytes: &[u8], name: &str) -> Result<Map<String, Value>, LoadError> {
    serde_json::from_slice(bytes).map_err(|error| LoadError::Invalid(format!("{name}: {error}")))
}

/// Keys of one object of the configuration.
#[derive(Clone, Copy)]
struct Keys<'a> {
    map: &'a Map<String, Value>,
    /// Its path, for messages: empty, or with a dot at the end.
    at: &'static str,
}

impl<'a> Keys<'a> {
    /// A value that is there and not null.
    fn optional(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &str) -> LoadError {
        let found = self
            .map
            .get(key)
            .map_or_else(|| "missing".to_owned(), |value| shown(&value.to_string()));
        LoadError::Invalid(format!(
            "config.json: {}{key} is {found}; expected {expected}",
            self.at
        ))
    }

    fn text(&self, key: &str) -> Result<&'a str, LoadError> {
        let value = self.optional(key).and_then(Value::as_str);
        value.ok_or_else(|| self.wrong(key, "a string"))
    }

    fn size(&self, key: &str, largest: usize) -> Result<usize, LoadError> {
        self.optional(key)
            .and_then(Value::as_u64)
            .and_then(|value| usize::try_from(value).ok())
            .filter(|size| (1..=largest).contains(size))
            .ok_or_else(|| self.wrong(key, &format!("1 to {largest}")))
    }

    fn size_or(&self, key: &str, largest: usize, default: usize) -> Result<usize, LoadError> {
        match self.optional(key) {
            Some(_) => self.size(key, largest),
            None => Ok(default),
        }
    }

    fn positive(&self, key: &str) -> Result<f64, LoadError> {
        self.optional(key)
            .and_then(Value::as_f64)
            .filter(|value| value.is_finite() && *value > 0.0)
            .ok_or_else(|| self.wrong(key, "a positive number"))
    }

    fn positive_or(&self, key: &str, default: f64) -> Result<f64, LoadError> {
        match self.optional(key) {
            Some(_) => self.positive(key),
            None => Ok(default),
        }
    }

    fn optional_positive(&self, key: &str) -> Result<Option<f32>, LoadError> {
        match self.optional(key) {
            Some(_) => Ok(Some(self.positive(key)? as f32)),
            None => Ok(None),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, LoadError> {
        match self.optional(key) {
            None => Ok(false),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    fn nested(&self, key: &str, at: &'static str) -> Result<Option<Keys<'a>>, LoadError> {
        match self.optional(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Keys { map, at })),
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    fn numbers(&self, key: &str) -> Result<Vec<f64>, LoadError> {
        let list = self.optional(key).and_then(Value::as_array);
        list.and_then(|list| list.iter().map(Value::as_f64).collect())
            .ok_or_else(|| self.wrong(key, "a list of numbers"))
    }

    fn check_supported(&self, architecture: Architecture) -> Result<(), LoadError> {
        let unsupported = |what: &str| Err(LoadError::UnsupportedModel(what.to_owned()));
        if self.optional("quantization_config").is_some() {
            return unsupported(
                "quantized weights in a Hugging Face directory (quantization_config); quantized models are read from GGUF files",
            );
        }
        if self.optional("num_experts").is_some() || self.optional("num_local_experts").is_some() {
            return unsupported("a mixture of experts");
        }
        // Qwen 2 always has biases and its files do not say so.
        if self.flag("attention_bias")? {
            return unsupported("biases of attention's output (attention_bias)");
        }
        if self.flag("mlp_bias")? {
            return unsupported("biases of the feed-forward part (mlp_bias)");
        }
        if self.flag("use_bidirectional_attention")? {
            return unsupported("attention to later tokens (use_bidirectional_attention)");
        }
        self.check_activation(architecture)
    }

    /// Gemma's files may name the activation twice, the older one wrongly.
    fn check_activation(&self, architecture: Architecture) -> Result<(), LoadError> {
        use pagoda_kernels::Activation;
        let key = if self.optional("hidden_activation").is_some() {
            "hidden_activation"
        } else {
            "hidden_act"
        };
        let gelu = ["gelu_pytorch_tanh", "gelu"];
        let computed: &[&str] = match architecture.activation() {
            Activation::Silu => &["silu"],
            Activation::GeluTanh => &gelu[..if key == "hidden_act" { 2 } else { 1 }],
        };
        let name = match self.optional(key) {
            None => return Ok(()),
            Some(_) => self.text(key)?,
        };
        if computed.contains(&name) {
            return Ok(());
        }
        Err(LoadError::UnsupportedModel(format!(
            "activation {:?}; {} models are computed with {}",
            shown(name),
            architecture.name(),
            computed[0]
        )))
    }
}

/// Which layers have the window: as a list says, or by the family's habit.
fn plans(
    keys: &Keys<'_>,
    architecture: Architecture,
    layers: usize,
    context_tokens: usize,
    ropes: usize,
) -> Result<Vec<LayerPlan>, LoadError> {
    let window = match keys.optional("sliding_window") {
        Some(_) => effective_window(
            keys.size("sliding_window", LARGEST_CONTEXT)? as u64,
            context_tokens,
        ),
        None => None,
    };
    if keys.optional("layer_types").is_some() {
        return listed(keys, layers, window, ropes);
    }
    Ok(match architecture {
        Architecture::Qwen2 | Architecture::Qwen3 => {
            let full = if keys.flag("use_sliding_window")? {
                keys.size_or("max_window_layers", LARGEST_LAYERS, 0)?
            } else {
                layers
            };
            (0..layers)
                .map(|layer| layers::plan(layer >= full, window, ropes))
                .collect()
        }
        _ => {
            let usual = architecture.window_period();
            let period = keys.size_or("sliding_window_pattern", LARGEST_LAYERS, usual)?;
            layers::windowed(layers, window, period, ropes)
        }
    })
}

fn listed(
    keys: &Keys<'_>,
    layers: usize,
    window: Option<usize>,
    ropes: usize,
) -> Result<Vec<LayerPlan>, LoadError> {
    let wrong = || keys.wrong("layer_types", "full_attention or sliding_attention a layer");
    let list = keys
        .optional("layer_types")
        .and_then(Value::as_array)
        .filter(|list| list.len() == layers)
        .ok_or_else(wrong)?;
    list.iter()
        .map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(layers::plan(false, window, ropes)),
            Some("sliding_attention") => Ok(layers::plan(true, window, ropes)),
            _ => Err(wrong()),
        })
        .collect()
}

/// The embedding of layers that see everything, then that of layers with a window where it is another.
fn ropes(
    keys: &Keys<'_>,
    architecture: Architecture,
    head_dim: usize,
    context_tokens: usize,
) -> Result<Vec<Rope>, LoadError> {
    let empty = Map::new();
    let none = Keys {
        map: &empty,
        at: "",
    };
    let newer = keys.nested("rope_parameters", "rope_parameters.")?;
    let older = keys.nested("rope_scaling", "rope_scaling.")?;
    let of = |parameters: Option<Keys<'_>>, base: f64| -> Result<Rope, LoadError> {
        let parameters = parameters.unwrap_or(none);
        let share = match parameters.optional("partial_rotary_factor") {
            Some(_) => parameters.positive("partial_rotary_factor")?,
            None => keys.positive_or("partial_rotary_factor", 1.0)?,
        };
        Ok(Rope {
            style: RopeStyle::Halves,
            dims: (head_dim as f64 * share.min(1.0)) as usize,
            base: parameters.positive_or("rope_theta", base)?,
            scaling: scaling(keys, &parameters, context_tokens)?,
        })
    };
    let base = keys.positive_or("rope_theta", 10_000.0)?;
    if architecture != Architecture::Gemma3 {
        return Ok(vec![of(newer.or(older), base)?]);
    }
    let local_base = keys.positive_or("rope_local_base_freq", 10_000.0)?;
    let Some(newer) = newer else {
        return Ok(vec![of(older, base)?, of(None, local_base)?]);
    };
    let full = newer.nested("full_attention", "rope_parameters.full_attention.")?;
    let local = newer.nested("sliding_attention", "rope_parameters.sliding_attention.")?;
    Ok(vec![of(full, base)?, of(local, local_base)?])
}

fn scaling(
    root: &Keys<'_>,
    keys: &Keys<'_>,
    context_tokens: usize,
) -> Result<RopeScaling, LoadError> {
    let name = ["rope_type", "type"]
        .into_iter()
        .find(|key| keys.optional(key).is_some());
    let Some(name) = name else {
        return Ok(RopeScaling::None);
    };
    match keys.text(name)? {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear(keys.positive("factor")?)),
        "llama3" => Ok(RopeScaling::Llama3(Llama3Scaling {
            factor: keys.positive("factor")?,
            low: keys.positive("low_freq_factor")?,
            high: keys.positive("high_freq_factor")?,
            original_context: keys.positive("original_max_position_embeddings")?,
        })),
        "yarn" => yarn(keys, context_tokens),
        "longrope" | "su" => long(root, keys, context_tokens),
        other => Err(LoadError::UnsupportedModel(format!(
            "position scaling {:?}; default, linear, llama3, yarn and longrope are computed",
            shown(other)
        ))),
    }
}

fn yarn(keys: &Keys<'_>, context_tokens: usize) -> Result<RopeScaling, LoadError> {
    let factor = keys.positive("factor")?;
    let magnitude = match keys.optional("attention_factor") {
        Some(_) => keys.positive("attention_factor")?,
        None => yarn_magnitude(keys, factor)?,
    };
    Ok(RopeScaling::Yarn(YarnScaling {
        factor,
        original_context: keys
            .positive_or("original_max_position_embeddings", context_tokens as f64)?,
        beta_fast: keys.positive_or("beta_fast", 32.0)?,
        beta_slow: keys.positive_or("beta_slow", 1.0)?,
        magnitude,
        truncate: keys.optional("truncate").is_none() || keys.flag("truncate")?,
    }))
}

/// DeepSeek's form has two weights of the logarithm, one of which divides.
fn yarn_magnitude(keys: &Keys<'_>, factor: f64) -> Result<f64, LoadError> {
    let weighted = |weight: f64| 1.0 + 0.1 * weight * factor.max(1.0).ln();
    if keys.optional("mscale").is_some() && keys.optional("mscale_all_dim").is_some() {
        let (over, under) = (keys.positive("mscale")?, keys.positive("mscale_all_dim")?);
        return Ok(weighted(over) / weighted(under));
    }
    Ok(YarnScaling::usual_magnitude(factor))
}

fn long(root: &Keys<'_>, keys: &Keys<'_>, context_tokens: usize) -> Result<RopeScaling, LoadError> {
    let original_key = "original_max_position_embeddings";
    let original_context = match keys.optional(original_key) {
        Some(_) => keys.positive(original_key)?,
        None => root.positive(original_key)?,
    };
    let stretch = context_tokens as f64 / original_context;
    let usual = LongScaling::usual_magnitude(stretch, original_context);
    Ok(RopeScaling::Long(LongScaling {
        original_context,
        short: keys.numbers("short_factor")?,
        long: keys.numbers("long_factor")?,
        magnitude: keys.positive_or("attention_factor", usual)?,
    }))
}

fn pooling_of(bytes: &[u8]) -> Result<Option<Pooling>, LoadError> {
    let root = object(bytes, "1_Pooling/config.json")?;
    let mode = |key: &str| root.get(key).and_then(Value::as_bool) == Some(true);
    let known = [
        ("pooling_mode_mean_tokens", Pooling::Mean),
        ("pooling_mode_cls_token", Pooling::First),
        ("pooling_mode_lasttoken", Pooling::Last),
    ];
    let on: Vec<&String> = root
        .iter()
        .filter(|(key, value)| key.starts_with("pooling_mode_") && value.as_bool() == Some(true))
        .map(|(key, _)| key)
        .collect();
    match known.into_iter().find(|(key, _)| mode(key)) {
        Some((_, pooling)) if on.len() == 1 => Ok(Some(pooling)),
        None if on.is_empty() => Ok(None),
        _ => Err(LoadError::UnsupportedModel(format!(
            "pooling {on:?}; one of mean, cls and last token is computed"
        ))),
    }
}
