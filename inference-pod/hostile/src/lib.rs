//! What a stranger's bytes meet: one function an entry point, which panics where something does not hold that must, whatever
//! the bytes are. `fuzz/` runs them under `cargo fuzz`; this crate's tests run them on seeds that [`Mutator`] changes.
//!
//! - [`gguf`]: a model file: container, tokenizer, chat template, configuration and tensor table.
//! - [`model_folder`]: a model as Hugging Face lays them out: configuration, index and headers of safetensors.
//! - [`chat_template`]: a template and its rendering.
//! - [`request`]: a request's body, through the router, the scheduler and a simulated model, to the answer's last byte.

mod files;
mod folders;
mod mutate;
mod requests;
mod templates;

pub use files::{gguf, gguf_inputs, gguf_seeds};
pub use folders::{folder_inputs, folder_seeds, model_folder};
pub use mutate::Mutator;
pub use requests::{request, request_inputs, request_seeds};
pub use templates::{chat_template, template_inputs, template_seeds};
