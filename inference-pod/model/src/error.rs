//! Why a model does not load, and why a step does not run.

use std::path::PathBuf;

use pagoda_gguf::{GgufError, MetadataError};
use pagoda_kernels::{CpuError, PackError};

use crate::safetensors::SafetensorsError;

/// Why a model cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened or read.
    #[error("cannot read model {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no GGUF file, or a damaged one.
    #[error("invalid model: {0}")]
    Gguf(#[from] GgufError),
    /// It is no safetensors file, or a damaged one.
    #[error("invalid model: {0}")]
    Safetensors(#[from] SafetensorsError),
    /// A metadata key is missing or of another type.
    #[error("invalid model: {0}")]
    Metadata(#[from] MetadataError),
    /// Metadata or tensors contradict each other or reason.
    #[error("invalid model: {0}")]
    Invalid(String),
    /// A whole and valid model that this engine does not compute.
    #[error("unsupported model: {0}")]
    UnsupportedModel(String),
    /// A tensor's data are damaged.
    #[error("invalid model: tensor {name}: {source}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        source: PackError,
    },
    /// Options that this model cannot be loaded with.
    #[error("invalid engine options: {0}")]
    InvalidOptions(String),
    /// The forced instruction set is not there.
    #[error("invalid engine options: PAGODA_CPU: {0}")]
    Cpu(#[from] CpuError),
    /// The system gives no threads.
    #[error("cannot start compute threads: {0}")]
    Threads(std::io::Error),
}

/// Why a step was refused. Nothing was computed and no block was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// A row has no tokens.
    #[error("row {row} has no tokens")]
    EmptyRow {
        /// Index in the step.
        row: usize,
    },
    /// The executor has no model that makes embeddings.
    #[error("this model makes no embeddings")]
    NoEmbeddings,
    /// A row wants logits of more tokens than it has.
    #[error("row {row} wants logits of {wanted} tokens, it has {tokens}")]
    Logits {
        /// Index in the step.
        row: usize,
        /// Tokens whose logits are wanted.
        wanted: usize,
        /// Tokens of the row.
        tokens: usize,
    },
    /// A token is not in the vocabulary.
    #[error("row {row}: token {token} is not below the vocabulary size {vocab_size}")]
    TokenOutOfRange {
        /// Index in the step.
        row: usize,
        /// The token.
        token: u32,
        /// Tokens in the vocabulary.
        vocab_size: usize,
    },
    /// A row reaches past the context.
    #[error(
        "row {row}: positions {start} to {end} reach past the context of {context_tokens} tokens"
    )]
    ContextExceeded {
        /// Index in the step.
        row: usize,
        /// First position.
        start: usize,
        /// Position after the last.
        end: usize,
        /// Longest context.
        context_tokens: usize,
    },
    /// A row's block table is too short or names a block that does not exist.
    #[error(
        "row {row}: {end} tokens need {needed} blocks below {block_count}, the table has {found}"
    )]
    BlockTable {
        /// Index in the step.
        row: usize,
        /// Position after the row's last token.
        end: usize,
        /// Blocks these positions take.
        needed: usize,
        /// Blocks in the table.
        found: usize,
        /// Blocks in the pool.
        block_count: usize,
    },
}
