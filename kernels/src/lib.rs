//! CPU kernels for quantised inference: matrix products over weights repacked at load, paged attention,
//! normalisation, rotary embedding, and the thread pool they share.
//!
//! Every operation is *batch invariant*: the sequence of floating-point operations behind one output element depends on
//! the shapes of the model alone, never on how many rows are computed together, how a prompt was cut, or how many
//! threads run. Every instruction-set path performs that same sequence, so paths agree bit for bit on finite values.
//!
//! Shapes that do not fit are programming errors and panic; bad *data* (a file's tensor) is refused by
//! [`PackedMatrix::pack`] with a [`PackError`].
#![allow(unsafe_code)] // Vector instructions, and outputs shared by threads in disjoint parts.
#![allow(
    clippy::inline_always, // Bodies must end up in a function compiled for their instruction set: see `cpu::Kernel`.
    clippy::needless_range_loop, // Rows and lanes index several arrays at once, in constant-length loops.
    clippy::too_many_arguments, // A kernel's operands.
    clippy::cast_ptr_alignment // Vector loads ask for no alignment.
)]
#![cfg_attr(test, allow(clippy::float_cmp))] // Tests compare to the bit where they can.

mod activation;
mod attention;
mod buffer;
mod cpu;
mod format;
mod kv;
mod math;
mod matmul;
mod norm;
mod pack;
mod pool;
mod rope;
mod simd;

pub use activation::{QuantisedRows, quantise_rows};
pub use attention::{AttentionScratch, AttentionShape, Segment, attend};
pub use buffer::AlignedBuffer;
pub use cpu::{Cpu, CpuError};
pub use format::{Format, dequantise, first_non_finite};
pub use kv::{BLOCK_TOKENS, KvCache, KvElement, KvShape};
pub use math::{Activation, activate_rows, exp_rows, softcap_rows};
pub use matmul::{Input, Output, gated, matmul};
pub use norm::{NormOutput, rms_norm};
pub use pack::{PANEL_COLUMNS, PackError, PackedMatrix};
pub use pool::ThreadPool;
pub use rope::{QkNorm, QkvAdjust, RopeStyle, RopeTable, rope_and_store};
