//! Calls of tools: how models write them, how they are forced to, and how they are read as they are written.
//!
//! A template that takes `tools` was trained with one way of writing calls, and its text tells which ([`ToolFormat`]).
//! For templates that know of no tools, [`instruct`] tells the model about them in words, in the most common way.

mod format;
mod instruct;
mod parser;
mod scanner;

pub use format::{CallPolicy, Tool, ToolFormat};
pub use instruct::{instruct, needs_words};
pub use parser::{ToolCallParser, ToolEvent};
