//! Tiny random models of every architecture against the logits that `transformers` computed from them
//! (`e2e/reference/tiny_models.py`): from folders as Hugging Face lays them out, and the same weights as GGUF.

mod folders;
mod gguf;
mod models;
