//! How much memory a model takes, before any is taken.

use pagoda_kernels::{BLOCK_TOKENS, Cpu, KvElement, KvShape};

use crate::config::ModelConfig;
use crate::error::LoadError;

/// Room for keys and values of past tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvBudget {
    /// As many blocks as fit in these bytes.
    Bytes(u64),
    /// This many blocks of 16 tokens.
    Blocks(usize),
}

/// How to load a model on CPUs.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads that compute, the caller's included; at least 1.
    pub threads: usize,
    /// Room for keys and values.
    pub kv: KvBudget,
    /// Longest context to serve; the model's own when `None`.
    pub context_tokens: Option<usize>,
    /// How keys and values are stored.
    pub kv_element: KvElement,
    /// Instruction set; `PAGODA_CPU`'s, or else the fastest, when `None`.
    pub cpu: Option<Cpu>,
}

impl Default for CpuOptions {
    /// One thread, and keys and values in 256 MiB.
    fn default() -> Self {
        Self {
            threads: 1,
            kv: KvBudget::Bytes(256 << 20),
            context_tokens: None,
            kv_element: KvElement::F16,
            cpu: None,
        }
    }
}

/// Bytes a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights as held in memory.
    pub weight_bytes: u64,
    /// Keys and values of one block over all layers.
    pub block_bytes: u64,
    /// Blocks of the pool.
    pub block_count: usize,
    /// Keys and values of all blocks.
    pub kv_bytes: u64,
    /// Intermediate results of the largest step, and buffers while loading.
    pub working_bytes: u64,
    /// Longest context served.
    pub context_tokens: usize,
}

impl MemoryPlan {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes
            .saturating_add(self.kv_bytes)
            .saturating_add(self.working_bytes)
    }
}

/// The plan for a model of `weight_bytes` in memory whose largest tensor takes `largest_tensor_bytes` in the file.
pub(crate) fn plan(
    config: &ModelConfig,
    weight_bytes: u64,
    largest_tensor_bytes: u64,
    options: &CpuOptions,
) -> Result<MemoryPlan, LoadError> {
    let invalid = |what: String| LoadError::InvalidOptions(what);
    let context_tokens = options.context_tokens.unwrap_or(config.context_tokens);
    if context_tokens == 0 || context_tokens > config.context_tokens {
        let made_for = config.context_tokens;
        return Err(invalid(format!(
            "a context of {context_tokens} tokens; the model was made for 1 to {made_for}"
        )));
    }
    let block_bytes = kv_shape(config, 1, options.kv_element)
        .block_bytes()
        .ok_or_else(|| invalid("a block's size overflows".into()))? as u64;
    let block_count = match options.kv {
        KvBudget::Blocks(blocks) => blocks as u64,
        KvBudget::Bytes(bytes) => bytes / block_bytes,
    };
    if block_count == 0 {
        return Err(invalid(format!(
            "no room for keys and values: one block of {BLOCK_TOKENS} tokens takes {block_bytes} bytes"
        )));
    }
    // Block ids are 32 bits.
    let (Ok(_), Some(kv_bytes)) = (
        u32::try_from(block_count),
        block_count.checked_mul(block_bytes),
    ) else {
        return Err(invalid(format!(
            "{block_count} blocks of {block_bytes} bytes are more than can be addressed"
        )));
    };
    let working_bytes = working_bytes(config).saturating_add(largest_tensor_bytes);
    Ok(MemoryPlan {
        weight_bytes,
        block_bytes,
        block_count: block_count as usize,
        kv_bytes,
        working_bytes,
        context_tokens,
    })
}

pub(crate) fn kv_shape(config: &ModelConfig, blocks: usize, element: KvElement) -> KvShape {
    KvShape {
        layers: config.layers.len(),
        blocks,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        element,
    }
}

/// Buffers of a slab of tokens: state, a product to be normalised, queries with keys and values, attention's and the feed-forward's
/// outputs as floats, and each input of a product as bytes (48 a block of 32).
fn working_bytes(config: &ModelConfig) -> u64 {
    let attention = config.heads * config.head_dim;
    let floats = config.embedding * 3
        + attention * 2
        + 2 * config.kv_heads * config.head_dim
        + config.feed_forward;
    let quantised = (config.embedding + attention + config.feed_forward) * 48 / 32;
    (crate::forward::SLAB_TOKENS * (floats * 4 + quantised)) as u64
}
