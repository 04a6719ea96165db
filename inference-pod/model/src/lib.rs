//! From a model's files to logits: configuration and weights out of GGUF or safetensors, one forward pass for all architectures,
//! and the [`Executor`] seam behind which CPUs (and later accelerators) compute.
//!
//! ```no_run
//! use pagoda_model::{CpuExecutor, CpuOptions, Executor, KvBudget, Logits, StepRow};
//!
//! let options = CpuOptions { threads: 2, kv: KvBudget::Bytes(256 << 20), context_tokens: Some(2048), ..CpuOptions::default() };
//! let mut executor = CpuExecutor::load("model.gguf".as_ref(), &options, |loaded, total| eprintln!("{loaded}/{total}"))?;
//! let mut logits = Logits::default();
//! let row = StepRow { tokens: &[1, 2, 3], start: 0, block_table: &[0], logits: 1 };
//! executor.forward(&[row], &mut logits)?;
//! println!("{}", logits.row(0).len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod catalog;
mod config;
mod cpu;
mod error;
mod executor;
mod file;
mod forward;
mod memory;
mod pooling;
mod rope;
mod safetensors;
mod tensors;
mod weights;

pub use config::{Architecture, LayerPlan, ModelConfig, Pooling};
pub use cpu::CpuExecutor;
pub use error::{ExecutorError, LoadError};
pub use executor::{Executor, ExecutorInfo, Logits, StepRow};
pub use file::ModelFile;
pub use memory::{CpuOptions, KvBudget, MemoryPlan};
pub use pagoda_kernels::{BLOCK_TOKENS, Cpu, CpuError, KvElement};
pub use pooling::PooledStates;
pub use safetensors::SafetensorsError;
