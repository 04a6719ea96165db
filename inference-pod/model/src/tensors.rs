//! Which tensors a model of a configuration has: found by the container's names, of the right shape, of a type that is computed.

use pagoda_kernels::{Format, PackedMatrix};

use crate::catalog::{Catalog, TensorEntry};
use crate::config::{ModelConfig, shown};
use crate::error::LoadError;

/// How a container names tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    Gguf,
    HuggingFace {
        /// Before the names of all tensors but the head's: `model.`, or nothing in files of embedding models.
        prefix: &'static str,
        /// Layers have a norm after attention and another before the feed-forward part.
        output_norms: bool,
    },
}

/// What a tensor is within a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    AttentionNorm,
    Query,
    Key,
    Value,
    Qkv,
    QueryNorm,
    KeyNorm,
    AttentionOutput,
    AttentionOutputNorm,
    FeedForwardNorm,
    Gate,
    Up,
    GateUp,
    Down,
    FeedForwardOutputNorm,
}

impl Naming {
    pub fn table(self) -> String {
        match self {
            Self::Gguf => "token_embd.weight".into(),
            Self::HuggingFace { prefix, .. } => format!("{prefix}embed_tokens.weight"),
        }
    }

    pub fn head(self) -> &'static str {
        match self {
            Self::Gguf => "output.weight",
            Self::HuggingFace { .. } => "lm_head.weight",
        }
    }

    pub fn output_norm(self) -> String {
        match self {
            Self::Gguf => "output_norm.weight".into(),
            Self::HuggingFace { prefix, .. } => format!("{prefix}norm.weight"),
        }
    }

    fn layer(self, layer: usize, part: Part, suffix: &str) -> String {
        match self {
            Self::Gguf => format!("blk.{layer}.{}.{suffix}", part.gguf()),
            Self::HuggingFace {
                prefix,
                output_norms,
            } => {
                let part = part.hugging_face(output_norms);
                format!("{prefix}layers.{layer}.{part}.{suffix}")
            }
        }
    }
}

impl Part {
    fn gguf(self) -> &'static str {
        match self {
            Self::AttentionNorm => "attn_norm",
            Self::Query => "attn_q",
            Self::Key => "attn_k",
            Self::Value => "attn_v",
            Self::Qkv => "attn_qkv",
            Self::QueryNorm => "attn_q_norm",
            Self::KeyNorm => "attn_k_norm",
            Self::AttentionOutput => "attn_output",
            Self::AttentionOutputNorm => "post_attention_norm",
            Self::FeedForwardNorm => "ffn_norm",
            Self::Gate => "ffn_gate",
            Self::Up | Self::GateUp => "ffn_up",
            Self::Down => "ffn_down",
            Self::FeedForwardOutputNorm => "post_ffw_norm",
        }
    }

    fn hugging_face(self, output_norms: bool) -> &'static str {
        match self {
            Self::AttentionNorm => "input_layernorm",
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::Qkv => "self_attn.qkv_proj",
            Self::QueryNorm => "self_attn.q_norm",
            Self::KeyNorm => "self_attn.k_norm",
            Self::AttentionOutput => "self_attn.o_proj",
            Self::FeedForwardNorm if output_norms => "pre_feedforward_layernorm",
            Self::AttentionOutputNorm | Self::FeedForwardNorm => "post_attention_layernorm",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::GateUp => "mlp.gate_up_proj",
            Self::Down => "mlp.down_proj",
            Self::FeedForwardOutputNorm => "post_feedforward_layernorm",
        }
    }
}

/// A matrix of the files, checked: `n` outputs of `k` inputs.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub source: Source,
    pub n: usize,
    pub k: usize,
}

/// A vector of the files, checked: floats.
#[derive(Clone, Debug)]
pub(crate) struct Vector {
    pub source: Source,
}

/// Where a matrix's or vector's numbers lie.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub name: String,
    pub format: Format,
    pub file: usize,
    pub offset: u64,
    pub bytes: u64,
}

/// The tensors of one layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerTensors {
    pub attention_norm: Vector,
    /// Queries, keys and values, whose outputs lie side by side.
    pub qkv: Vec<Matrix>,
    /// As many biases, or none.
    pub qkv_bias: Vec<Vector>,
    pub head_norms: Option<[Vector; 2]>,
    pub attention_output: Matrix,
    pub attention_output_norm: Option<Vector>,
    pub feed_forward_norm: Vector,
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    pub feed_forward_output_norm: Option<Vector>,
}

/// Factors that pairs of a head are slowed by, as GGUF files hold them.
#[derive(Clone, Debug)]
pub(crate) enum RopeFactors {
    /// For every context (Llama 3).
    Always(Vector),
    /// For contexts up to the original one, and for longer ones (Phi-3).
    ByContext { short: Vector, long: Vector },
}

/// The tensors of a model.
#[derive(Debug)]
pub(crate) struct Tensors {
    pub table: Matrix,
    /// The table where there is none.
    pub head: Option<Matrix>,
    pub layers: Vec<LayerTensors>,
    pub output_norm: Vector,
    pub rope_factors: Option<RopeFactors>,
}

impl Tensors {
    /// Finds every tensor the configuration asks for; any further tensor would be left out of the arithmetic, so it is refused. A head
    /// beside a `tied` table is left out, as it is where the model was made.
    pub fn find(
        mut catalog: Catalog,
        config: &ModelConfig,
        naming: Naming,
        tied: bool,
    ) -> Result<Self, LoadError> {
        let has_head = catalog.tensors.contains_key(naming.head());
        if tied && has_head {
            catalog.take(naming.head())?;
        }
        let mut finder = Finder { catalog, naming };
        let (width, vocabulary) = (config.embedding, config.vocab_size);
        let tensors = Self {
            table: finder.matrix(&naming.table(), vocabulary, width)?,
            head: (has_head && !tied)
                .then(|| finder.matrix(naming.head(), vocabulary, width))
                .transpose()?,
            layers: (0..config.layers.len())
                .map(|layer| finder.layer(layer, config))
                .collect::<Result<_, _>>()?,
            output_norm: finder.vector(&naming.output_norm(), width)?,
            rope_factors: finder.rope_factors(config)?,
        };
        finder.finish(config)?;
        Ok(tensors)
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let layers = self.layers.iter().flat_map(|layer| {
            let others = [&layer.attention_output, &layer.gate, &layer.up, &layer.down];
            layer.qkv.iter().chain(others)
        });
        [Some(&self.table), self.head.as_ref()]
            .into_iter()
            .flatten()
            .chain(layers)
    }

    /// Bytes of all matrices in the files.
    pub fn file_bytes(&self) -> u64 {
        self.matrices().map(|m| m.source.bytes).sum()
    }

    /// Bytes of all matrices once packed. No sum here overflows: each is within a small factor of the file's length.
    pub fn packed_bytes(&self) -> u64 {
        let packed = |m: &Matrix| PackedMatrix::packed_bytes(m.source.format, m.n, m.k);
        self.matrices()
            .map(|m| packed(m).unwrap_or(usize::MAX) as u64)
            .fold(0, u64::saturating_add)
    }
}

struct Finder {
    catalog: Catalog,
    naming: Naming,
}

impl Finder {
    fn layer(&mut self, layer: usize, config: &ModelConfig) -> Result<LayerTensors, LoadError> {
        let (width, inner, parts) = (
            config.embedding,
            config.feed_forward,
            config.architecture.parts(),
        );
        let queries = config.heads * config.head_dim;
        let norm = |this: &mut Self, part| this.layer_vector(layer, part, "weight", width);
        let optional =
            |this: &mut Self, part| parts.norms.outputs.then(|| norm(this, part)).transpose();
        let [gate, up] = self.gate_and_up(layer, config)?;
        Ok(LayerTensors {
            attention_norm: norm(self, Part::AttentionNorm)?,
            qkv: self.qkv(layer, config)?,
            qkv_bias: self.qkv_bias(layer, config)?,
            head_norms: self.head_norms(layer, config)?,
            attention_output: self.layer_matrix(layer, Part::AttentionOutput, width, queries)?,
            attention_output_norm: optional(self, Part::AttentionOutputNorm)?,
            feed_forward_norm: norm(self, Part::FeedForwardNorm)?,
            gate,
            up,
            down: self.layer_matrix(layer, Part::Down, width, inner)?,
            feed_forward_output_norm: optional(self, Part::FeedForwardOutputNorm)?,
        })
    }

    fn qkv(&mut self, layer: usize, config: &ModelConfig) -> Result<Vec<Matrix>, LoadError> {
        let width = config.embedding;
        if config.architecture.parts().fused {
            let outputs = (config.heads + 2 * config.kv_heads) * config.head_dim;
            return Ok(vec![self.layer_matrix(layer, Part::Qkv, outputs, width)?]);
        }
        qkv_parts(config)
            .into_iter()
            .map(|(part, outputs)| self.layer_matrix(layer, part, outputs, width))
            .collect()
    }

    fn qkv_bias(&mut self, layer: usize, config: &ModelConfig) -> Result<Vec<Vector>, LoadError> {
        if !config.architecture.parts().qkv_bias {
            return Ok(Vec::new());
        }
        qkv_parts(config)
            .into_iter()
            .map(|(part, outputs)| self.layer_vector(layer, part, "bias", outputs))
            .collect()
    }

    fn head_norms(
        &mut self,
        layer: usize,
        config: &ModelConfig,
    ) -> Result<Option<[Vector; 2]>, LoadError> {
        if !config.architecture.parts().norms.heads {
            return Ok(None);
        }
        let mut norm = |part| self.layer_vector(layer, part, "weight", config.head_dim);
        Ok(Some([norm(Part::QueryNorm)?, norm(Part::KeyNorm)?]))
    }

    /// In a fused tensor the gate's rows come first.
    fn gate_and_up(
        &mut self,
        layer: usize,
        config: &ModelConfig,
    ) -> Result<[Matrix; 2], LoadError> {
        let (inner, width) = (config.feed_forward, config.embedding);
        if !config.architecture.parts().fused {
            return Ok([
                self.layer_matrix(layer, Part::Gate, inner, width)?,
                self.layer_matrix(layer, Part::Up, inner, width)?,
            ]);
        }
        let both = self.layer_matrix(layer, Part::GateUp, 2 * inner, width)?;
        let bytes = both.source.bytes / 2;
        let half = |index: u64| Matrix {
            source: Source {
                offset: both.source.offset + index * bytes,
                bytes,
                ..both.source.clone()
            },
            n: inner,
            k: width,
        };
        Ok([half(0), half(1)])
    }

    fn rope_factors(&mut self, config: &ModelConfig) -> Result<Option<RopeFactors>, LoadError> {
        if self.naming != Naming::Gguf {
            return Ok(None);
        }
        let pairs = config.ropes[0].dims / 2;
        if self.catalog.tensors.contains_key("rope_freqs.weight") {
            let factors = self.vector("rope_freqs.weight", pairs)?;
            return Ok(Some(RopeFactors::Always(factors)));
        }
        if !matches!(config.ropes[0].scaling, crate::rope::RopeScaling::Long(_)) {
            return Ok(None);
        }
        Ok(Some(RopeFactors::ByContext {
            short: self.vector("rope_factors_short.weight", pairs)?,
            long: self.vector("rope_factors_long.weight", pairs)?,
        }))
    }

    fn layer_matrix(
        &mut self,
        layer: usize,
        part: Part,
        n: usize,
        k: usize,
    ) -> Result<Matrix, LoadError> {
        self.matrix(&self.naming.layer(layer, part, "weight"), n, k)
    }

    fn layer_vector(
        &mut self,
        layer: usize,
        part: Part,
        suffix: &str,
        len: usize,
    ) -> Result<Vector, LoadError> {
        self.vector(&self.naming.layer(layer, part, suffix), len)
    }

    fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<Matrix, LoadError> {
        let entry = self.catalog.take(name)?;
        let source = checked(name, &entry, &[n, k])?;
        let block = source.format.block_elements();
        if !k.is_multiple_of(block) {
            let kind = entry.kind;
            return Err(LoadError::Invalid(format!(
                "{name}: rows of {k} are no whole number of {kind} blocks of {block}"
            )));
        }
        Ok(Matrix { source, n, k })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vector, LoadError> {
        let entry = self.catalog.take(name)?;
        let source = checked(name, &entry, &[len])?;
        if source.format.is_quantised() {
            return Err(LoadError::UnsupportedModel(format!(
                "{name} is {}; vectors are floats",
                entry.kind
            )));
        }
        Ok(Vector { source })
    }

    fn finish(self, config: &ModelConfig) -> Result<(), LoadError> {
        let left = self
            .catalog
            .tensors
            .keys()
            // Frequencies that old checkpoints stored beside the weights; they follow from the configuration.
            .find(|name| !name.ends_with(".rotary_emb.inv_freq"));
        match left {
            None => Ok(()),
            Some(name) => Err(LoadError::UnsupportedModel(format!(
                "tensor {} is no part of the {} layout computed here",
                shown(name),
                config.architecture.name()
            ))),
        }
    }
}

fn qkv_parts(config: &ModelConfig) -> [(Part, usize); 3] {
    let (queries, keys) = (
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
    );
    [
        (Part::Query, queries),
        (Part::Key, keys),
        (Part::Value, keys),
    ]
}

fn checked(name: &str, entry: &TensorEntry, shape: &[usize]) -> Result<Source, LoadError> {
    if entry.shape != shape {
        return Err(LoadError::Invalid(format!(
            "tensor {name} has shape {:?}, not {shape:?}",
            entry.shape
        )));
    }
    let Some(format) = entry.format else {
        let computed = Format::ALL.map(Format::name).join(", ");
        return Err(LoadError::UnsupportedModel(format!(
            "tensor {name} is {}; computed are {computed}",
            entry.kind
        )));
    };
    Ok(Source {
        name: name.to_owned(),
        format,
        file: entry.file,
        offset: entry.offset,
        bytes: entry.bytes,
    })
}
