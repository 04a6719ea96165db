//! Answers that keep to a form: JSON, JSON of a schema, calls of tools.
//!
//! [`CheckedSchema`] is a client's schema within bounds and without keywords that would quietly be ignored. A
//! [`GrammarCompiler`] makes a [`Constraint`] of it, which says before each token which ones keep to the form.

mod grammar;
mod schema;

pub(crate) use grammar::embedded_json;
pub use grammar::{Constraint, ConstraintError, Form, GrammarCompiler, GrammarError, TokenMask};
pub use schema::{CheckedSchema, SchemaError};
