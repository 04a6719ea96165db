//! GGUF container parser: the header of a model file, checked before anything trusts it.
//!
//! [`Gguf::parse`] reads the metadata and the tensor table of a version 2 or 3 file and leaves the
//! weights where they are: a [`TensorInfo`] names an absolute byte range of the caller's buffer
//! (usually a memory map) that is known to lie inside it and to overlap no other tensor.
//!
//! The file is treated as hostile. Every count is held against the bytes that are left before
//! anything is allocated for it, sizes are computed without overflow, nesting is bounded, and each
//! way a file can be wrong is its own [`GgufError`].

#[cfg(any(test, feature = "test-support"))]
mod builder;
mod error;
mod metadata;
mod parse;
mod reader;
#[cfg(any(test, feature = "test-support"))]
mod soundness;
mod tensor;

#[cfg(any(test, feature = "test-support"))]
pub use builder::GgufBuilder;
pub use error::GgufError;
pub use metadata::{Array, Metadata, MetadataError, Optional, Value};
pub use parse::Gguf;
#[cfg(any(test, feature = "test-support"))]
pub use soundness::assert_sound;
pub use tensor::{TensorInfo, TensorType};

#[cfg(test)]
mod tests;
