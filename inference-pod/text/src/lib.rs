//! Text in, tokens out, and back: everything between a request's words and a model's token ids.
//!
//! - [`Tokenizer`]: byte-pair or SentencePiece encoding from a GGUF file's own metadata, or from Hugging Face's files.
//! - [`ChatTemplate`]: a conversation rendered by the model's own template, within a budget.
//! - [`StreamDecoder`]: token ids to text as they arrive, never cutting a character.
//! - [`StopMatcher`]: stop strings in that text, wherever its pieces are cut.
//! - [`structured`]: answers that keep to JSON, a schema, or a call of tools.
//! - [`tools`]: how models write calls of tools, forced and free, and reading them as they come.
//!
//! **Control tokens and clients.** The text of a control token (`<|im_end|>`) in a template means
//! the token; the same text in a message is only text, or a client could end its own turn and speak
//! as the system. [`Tokenizer::encode_chat`] therefore plants a guard character, one that occurs
//! nowhere else in the conversation, inside every such text before rendering and takes it out again
//! between splitting off control tokens and encoding what is left. Templates still see, trim and
//! split contents as they are otherwise.
//!
//! Nothing here reads a clock, a file or the environment.

mod bpe;
mod chat;
mod guard;
mod hugging_face;
mod json;
mod load;
mod pretokenize;
mod special;
mod spm;
mod stop;
mod stream;
pub mod structured;
mod template;
mod tokenizer;
pub mod tools;
mod vocab;

pub use chat::{ChatRequest, Content, Json, Message};
pub use hugging_face::HuggingFaceFiles;
pub use load::TokenizerError;
pub use stop::{StopMatcher, Stopped};
pub use stream::StreamDecoder;
pub use template::{CHATML, ChatTemplate, TemplateError};
pub use tokenizer::{SpecialTokens, Tokenizer, UnknownToken};
