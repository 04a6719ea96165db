//! From a form to the tokens that keep to it, by `llguidance`.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::schema::CheckedSchema;
use crate::tokenizer::Tokenizer;

/// Longest token that a grammar can use; the library's trie is 1,024 deep.
const MAX_TOKEN_BYTES: usize = 1000;

/// White space between JSON's symbols: enough to indent, too little to fill an answer with.
const WHITE_SPACE: &str = r"[ \n\r\t]{1,24}";

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// JSON of a schema.
    Json(CheckedSchema),
    /// A grammar in the library's dialect of Lark, of our own making.
    Lark(String),
}

/// Why a form cannot be kept to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The library says why.
    #[error("{0}")]
    Unsupported(String),
    /// The vocabulary cannot be searched.
    #[error("this model's vocabulary allows no grammars: {0}")]
    Vocabulary(String),
}

/// An answer that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer's form became too complex to keep to: {0}")]
pub struct ConstraintError(String);

/// Compiles forms for one vocabulary. Building it takes tenths of a second and some megabytes.
pub struct GrammarCompiler(ParserFactory);

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GrammarCompiler")
    }
}

impl GrammarCompiler {
    /// A compiler for a model's vocabulary.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let Some((&first_end, _)) = tokenizer.end_of_generation().split_first() else {
            return Err(GrammarError::Vocabulary("no token ends an answer".into()));
        };
        let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32)
            .map(|id| word(tokenizer, id))
            .collect();
        let info = TokRxInfo::new(words.len() as u32, first_end);
        let build = || {
            let trie = TokTrie::from(&info, &words).with_eos_tokens(tokenizer.end_of_generation());
            let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            ParserFactory::new(
                &environment,
                InferenceCapabilities::default(),
                &llguidance::earley::SlicedBiasComputer::general_slices(),
            )
        };
        let mut factory =
            guarded(build).map_err(|message| GrammarError::Vocabulary(first_line(&message)))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self(factory))
    }

    /// The constraint of a form at the start of an answer.
    ///
    /// Time is bounded by the bounds of [`CheckedSchema`] and the library's own, stack is not: give it some megabytes.
    pub fn compile(&self, form: &Form) -> Result<Constraint, GrammarError> {
        let grammar = match form {
            Form::Json(schema) => TopLevelGrammar::from_json_schema(with_options(schema.value())),
            Form::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let parser = guarded(|| self.0.create_parser(grammar))
            .map_err(|message| GrammarError::Unsupported(first_line(&message)))?;
        let mut matcher = Matcher::new(Ok(parser));
        // What allows no first token at all would fail in the middle of somebody's answer.
        match matcher.compute_mask() {
            Ok(_) => Ok(Constraint(matcher)),
            Err(error) => Err(GrammarError::Unsupported(first_line(&error.to_string()))),
        }
    }
}

/// The text of a form, for use within another grammar.
pub(crate) fn embedded_json(schema: &CheckedSchema) -> String {
    format!("%json {}", with_options(schema.value()))
}

/// A schema with the options that we choose; the client's own `x-guidance` never gets here.
fn with_options(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        Value::Bool(false) => return schema.clone(),
        _ => json!({"anyOf": [true]}),
    };
    schema["x-guidance"] = json!({"whitespace_pattern": WHITE_SPACE});
    schema
}

fn limits() -> ParserLimits {
    ParserLimits {
        // A mask is computed between two steps of everybody's answers: some milliseconds at most.
        step_lexer_fuel: 100_000,
        step_max_items: 30_000,
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        // Errors carry no answer's text.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Bytes of a token as the library wants them: control tokens are marked, and what is no text is empty.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let mut bytes = tokenizer.token_bytes(id).unwrap_or_default().to_vec();
    if tokenizer.is_control(id) {
        bytes.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
    }
    if bytes.len() > MAX_TOKEN_BYTES {
        bytes.clear();
    }
    bytes
}

/// The library asserts what we checked; should we have missed something, one request fails and not the server.
fn guarded<T, E: Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it cannot be compiled".into()),
    }
}

fn first_line(message: &str) -> String {
    message
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(300)
        .collect()
}

/// Says which tokens may come next in one answer.
pub struct Constraint(Matcher);

impl Clone for Constraint {
    fn clone(&self) -> Self {
        // Sharing the lexer's caches would make answers wait for each other.
        Self(self.0.deep_clone())
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Constraint")
    }
}

/// A set of tokens.
#[derive(Debug)]
pub struct TokenMask(SimpleVob);

impl TokenMask {
    /// One bit a token, from the least significant bit of the first word on.
    pub fn words(&self) -> &[u32] {
        self.0.as_slice()
    }
}

impl Constraint {
    /// The tokens that may come next. An ending token is among them where the answer may end.
    pub fn allowed(&mut self) -> Result<TokenMask, ConstraintError> {
        let mask = self.0.compute_mask_or_eos();
        mask.map(TokenMask).map_err(|error| failed(&error))
    }

    /// A token became part of the answer.
    pub fn consume(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.0.consume_token(token).map_err(|error| failed(&error))
    }

    /// Whether nothing may follow any more.
    pub fn is_complete(&self) -> bool {
        self.0.is_stopped()
    }
}

fn failed(error: &impl Display) -> ConstraintError {
    ConstraintError(first_line(&error.to_string()))
}

#[cfg(test)]
mod tests;
