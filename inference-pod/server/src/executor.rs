//! The seam behind which forward passes happen, as the model crate defines it.

pub use pagoda_model::{Executor, ExecutorError, ExecutorInfo, Logits, StepRow};
