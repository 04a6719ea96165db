//! A tokenizer out of Hugging Face's files: `tokenizer.json`, and what `tokenizer_config.json` says besides.
//!
//! Two kinds are read: byte-level byte-pair encoding (GPT-2, SmolLM2, Llama 3, Qwen), and SentencePiece's byte-pair form with bytes for
//! what has no token (Llama 2, Mistral, Gemma, Phi-3), whose merges become scores. Unicode normalisation (Qwen's NFC) is left out, as in
//! llama.cpp: text that is not composed gives other tokens.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::bpe::{self, Bpe};
use crate::load::{Ends, TokenizerError, assemble};
use crate::pretokenize::PreTokenizer;
use crate::spm::{self, SpacePrefix, Spm};
use crate::template::{CHATML, ChatTemplate, TemplateError};
use crate::tokenizer::{Model, Tokenizer};
use crate::vocab::{TokenKind, Vocab, byte_of};

/// Ids beyond this are not a vocabulary but an attack on memory.
const LARGEST_ID: u32 = 1 << 22;

/// The score of a token that no merge makes: below every merge's.
const NEVER_MERGED: f32 = -1e9;

/// Llama 3's pattern of words, and Qwen's, which differ in how many digits go together.
const LLAMA_3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The contents of a model's files that say how it reads and writes text.
#[derive(Clone, Copy, Debug, Default)]
pub struct HuggingFaceFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `generation_config.json`.
    pub generation_config: Option<&'a [u8]>,
    /// `chat_template.jinja`, where newer models keep their template.
    pub chat_template: Option<&'a str>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    model: ModelFile,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct ModelFile {
    /// Absent in old files, where it is byte-pair encoding.
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Value,
    #[serde(default)]
    merges: Vec<Merge>,
    unk_token: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

impl Merge {
    /// The two sides with a space between.
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Pair(left, right) => format!("{left} {right}"),
        }
    }

    /// What the merge makes.
    fn result(&self) -> String {
        match self {
            // SentencePiece's symbols hold no spaces of their own.
            Self::Text(text) => text.replacen(' ', "", 1),
            Self::Pair(left, right) => format!("{left}{right}"),
        }
    }
}

impl Tokenizer {
    /// Builds the tokenizer of a Hugging Face model.
    pub fn from_hugging_face(files: &HuggingFaceFiles<'_>) -> Result<Self, TokenizerError> {
        let file: File = json("tokenizer.json", files.tokenizer)?;
        let config = optional_json("tokenizer_config.json", files.tokenizer_config)?;
        let generation = optional_json("generation_config.json", files.generation_config)?;
        match file.model.kind.as_deref() {
            None | Some("BPE") => {}
            Some(other) => {
                return Err(TokenizerError::UnsupportedModel {
                    model: other.chars().take(80).collect(),
                });
            }
        }
        let texts = texts(&file)?;
        let kinds = kinds(&file, &texts);
        let (vocab, model) = if file.model.byte_fallback {
            sentence_piece(&file, texts, kinds)?
        } else {
            byte_level(&file, texts, kinds)?
        };
        let named = |key: &str| token_named(&vocab, &config, key);
        let (bos, eos) = (named("bos_token"), named("eos_token"));
        let ends = Ends {
            bos,
            eos,
            add_bos: adds_bos(&file, &config, bos.and_then(|id| vocab.text(id))),
            others: generation_ends(&generation, &vocab),
        };
        let mut tokenizer = assemble(vocab, model, ends)?;
        for token in file.added_tokens.iter().filter(|t| t.lstrip || t.rstrip) {
            tokenizer
                .special
                .strip_around(token.id, token.lstrip, token.rstrip);
        }
        Ok(tokenizer)
    }
}

impl ChatTemplate {
    /// The template of a Hugging Face model, or [`CHATML`] where it has none.
    pub fn from_hugging_face(files: &HuggingFaceFiles<'_>) -> Result<Self, TemplateError> {
        if let Some(template) = files.chat_template {
            return Self::parse(template);
        }
        let config = files
            .tokenizer_config
            .and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        let template = match config
            .as_ref()
            .and_then(|config| config.get("chat_template"))
        {
            Some(Value::String(template)) => template,
            // Several templates, each with a name.
            Some(Value::Array(named)) => named
                .iter()
                .find(|entry| entry["name"] == "default")
                .and_then(|entry| entry["template"].as_str())
                .unwrap_or(CHATML),
            _ => CHATML,
        };
        Self::parse(template)
    }
}

fn json<T: serde::de::DeserializeOwned>(
    name: &'static str,
    bytes: &[u8],
) -> Result<T, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|error| TokenizerError::File {
        name,
        message: error.to_string(),
    })
}

fn optional_json(name: &'static str, bytes: Option<&[u8]>) -> Result<Value, TokenizerError> {
    bytes.map_or(Ok(Value::Null), |bytes| json(name, bytes))
}

fn invalid(message: impl Into<String>) -> TokenizerError {
    TokenizerError::File {
        name: "tokenizer.json",
        message: message.into(),
    }
}

/// All texts by id. Ids that nothing names get a name of their own.
fn texts(file: &File) -> Result<Vec<String>, TokenizerError> {
    let Value::Object(vocab) = &file.model.vocab else {
        return Err(invalid("model.vocab is no object"));
    };
    let mut by_id: HashMap<u32, &str> = HashMap::with_capacity(vocab.len());
    let own = vocab.iter().map(|(text, id)| {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        (text.as_str(), id)
    });
    let added = file
        .added_tokens
        .iter()
        .map(|token| (token.content.as_str(), Some(token.id)));
    for (text, id) in own.chain(added) {
        let id = id
            .filter(|id| *id < LARGEST_ID)
            .ok_or_else(|| invalid(format!("a token's id is not below {LARGEST_ID}")))?;
        if by_id.insert(id, text).is_some_and(|other| other != text) {
            return Err(invalid(format!("two tokens have id {id}")));
        }
    }
    let count = by_id.keys().max().map_or(0, |id| id + 1);
    if count == 0 {
        return Err(TokenizerError::EmptyVocabulary);
    }
    if count as usize > 2 * by_id.len() {
        return Err(invalid(format!("{count} ids for {} tokens", by_id.len())));
    }
    let text = |id| match by_id.get(&id) {
        Some(text) => (*text).to_owned(),
        None => unused(id),
    };
    Ok((0..count).map(text).collect())
}

/// The name of an id that nothing names.
fn unused(id: u32) -> String {
    format!("[UNUSED_{id}]")
}

fn kinds(file: &File, texts: &[String]) -> Vec<TokenKind> {
    let byte = |text: &String| file.model.byte_fallback && byte_of(text).is_some();
    let mut kinds: Vec<TokenKind> = texts
        .iter()
        .enumerate()
        .map(|(id, text)| {
            if byte(text) {
                TokenKind::Byte
            } else if *text == unused(id as u32) {
                TokenKind::Unused
            } else {
                TokenKind::Normal
            }
        })
        .collect();
    for token in &file.added_tokens {
        kinds[token.id as usize] = if token.special {
            TokenKind::Control
        } else {
            TokenKind::UserDefined
        };
    }
    kinds
}

fn byte_level(
    file: &File,
    texts: Vec<String>,
    kinds: Vec<TokenKind>,
) -> Result<(Vocab, Model), TokenizerError> {
    check_normalizer(file.normalizer.as_ref())?;
    let mut words = words_of(file.pre_tokenizer.as_ref())?;
    words.ignore_merges = file.model.ignore_merges;
    let vocab = Vocab::new(texts, kinds, bpe::piece_of)?;
    let merges: Vec<String> = file.model.merges.iter().map(Merge::text).collect();
    let bpe = Bpe::new(&vocab, &merges, words)?;
    Ok((vocab, Model::Bpe(Box::new(bpe))))
}

fn kind_of(value: &Value) -> &str {
    value["type"].as_str().unwrap_or_default()
}

fn unsupported(what: &str, value: &Value) -> TokenizerError {
    let text: String = value.to_string().chars().take(80).collect();
    TokenizerError::UnsupportedPreTokenizer {
        pre: format!("{what} {text}"),
    }
}

/// Byte-level vocabularies take text as it is, or composed (NFC), which makes no difference to text that is.
fn check_normalizer(normalizer: Option<&Value>) -> Result<(), TokenizerError> {
    match normalizer {
        None => Ok(()),
        Some(value) if kind_of(value) == "NFC" => Ok(()),
        Some(value)
            if kind_of(value) == "Sequence" && value["normalizers"] == Value::Array(vec![]) =>
        {
            Ok(())
        }
        Some(value) => Err(unsupported("normalizer", value)),
    }
}

/// The steps of a pre-tokenizer, flattened.
fn steps(value: &Value) -> Vec<&Value> {
    match (kind_of(value), &value["pretokenizers"]) {
        ("Sequence", Value::Array(steps)) => steps.iter().collect(),
        _ => vec![value],
    }
}

fn words_of(pre_tokenizer: Option<&Value>) -> Result<PreTokenizer, TokenizerError> {
    let value = pre_tokenizer.unwrap_or(&Value::Null);
    let steps = steps(value);
    let name = match steps[..] {
        [bytes] if is_byte_level(bytes, true) => Some("gpt-2"),
        [digits, bytes] if is_each_digit(digits) && is_byte_level(bytes, true) => Some("smollm"),
        [split, bytes] if is_byte_level(bytes, false) => named_pattern(split),
        _ => None,
    };
    name.and_then(PreTokenizer::named)
        .ok_or_else(|| unsupported("pre_tokenizer", value))
}

fn is_byte_level(step: &Value, splits: bool) -> bool {
    kind_of(step) == "ByteLevel"
        && step["add_prefix_space"] != Value::Bool(true)
        && step["use_regex"].as_bool().unwrap_or(true) == splits
}

fn is_each_digit(step: &Value) -> bool {
    kind_of(step) == "Digits" && step["individual_digits"] == Value::Bool(true)
}

fn named_pattern(step: &Value) -> Option<&'static str> {
    let isolated = kind_of(step) == "Split"
        && step["behavior"] == "Isolated"
        && step["invert"] != Value::Bool(true);
    match step["pattern"]["Regex"].as_str().filter(|_| isolated)? {
        LLAMA_3_WORDS => Some("llama3"),
        QWEN_2_WORDS => Some("qwen2"),
        _ => None,
    }
}

fn sentence_piece(
    file: &File,
    texts: Vec<String>,
    kinds: Vec<TokenKind>,
) -> Result<(Vocab, Model), TokenizerError> {
    let prefix = space_prefix(file)?;
    let vocab = Vocab::new(texts, kinds, spm::piece_of)?;
    let mut scores = vec![NEVER_MERGED; vocab.len()];
    for (rank, merge) in file.model.merges.iter().enumerate().rev() {
        if let Some(id) = vocab.id(&merge.result()) {
            // The first merge that makes a token says when it is made.
            scores[id as usize] = -(rank as f32);
        }
    }
    let unknown = file.model.unk_token.as_ref();
    let unknown = unknown.and_then(|text| vocab.id(text));
    let spm = Spm::new(&vocab, scores, unknown, prefix)?;
    Ok((vocab, Model::Spm(spm)))
}

/// Where a space goes before text: by a normalizer that prepends one, or by a pre-tokenizer that does.
fn space_prefix(file: &File) -> Result<SpacePrefix, TokenizerError> {
    let normalizers: Vec<&Value> = match &file.normalizer {
        None => Vec::new(),
        Some(value) => match (kind_of(value), &value["normalizers"]) {
            ("Sequence", Value::Array(list)) => list.iter().collect(),
            _ => vec![value],
        },
    };
    let mut prefix = SpacePrefix::Never;
    for normalizer in normalizers {
        match kind_of(normalizer) {
            "Prepend" if normalizer["prepend"] == "\u{2581}" => prefix = SpacePrefix::AfterToken,
            "Replace"
                if normalizer["content"] == "\u{2581}"
                    && normalizer["pattern"]["String"] == " " => {}
            _ => return Err(unsupported("normalizer", normalizer)),
        }
    }
    match &file.pre_tokenizer {
        None => Ok(prefix),
        // Spaces are replaced before, so that there is none to split at.
        Some(value) if kind_of(value) == "Split" && value["pattern"]["String"] == " " => Ok(prefix),
        Some(value) if kind_of(value) == "Metaspace" && value["split"] != Value::Bool(true) => {
            match value["prepend_scheme"].as_str() {
                Some("never") => Ok(prefix),
                Some("first") => Ok(SpacePrefix::Start),
                Some("always") => Ok(SpacePrefix::AfterToken),
                _ => Err(unsupported("pre_tokenizer", value)),
            }
        }
        Some(value) => Err(unsupported("pre_tokenizer", value)),
    }
}

/// The token that a key of the configuration names, by its text or by an object with its text.
fn token_named(vocab: &Vocab, config: &Value, key: &str) -> Option<u32> {
    let value = &config[key];
    let text = value.as_str().or_else(|| value["content"].as_str())?;
    vocab.id(text)
}

/// Whether a prompt starts with BOS: as the post-processor does it, or else as the configuration says.
fn adds_bos(file: &File, config: &Value, bos: Option<&str>) -> bool {
    let Some(bos) = bos else { return false };
    let processors: Vec<&Value> = match &file.post_processor {
        None => Vec::new(),
        Some(value) => match (kind_of(value), &value["processors"]) {
            ("Sequence", Value::Array(list)) => list.iter().collect(),
            _ => vec![value],
        },
    };
    let template = processors
        .into_iter()
        .find(|processor| kind_of(processor) == "TemplateProcessing");
    match template {
        Some(template) => template["single"][0]["SpecialToken"]["id"] == bos,
        None => config["add_bos_token"].as_bool().unwrap_or(false),
    }
}

/// One id or several, those that exist.
fn generation_ends(config: &Value, vocab: &Vocab) -> Vec<u32> {
    let value = &config["eos_token_id"];
    std::iter::once(value)
        .chain(value.as_array().into_iter().flatten())
        .filter_map(Value::as_u64)
        .filter_map(|id| u32::try_from(id).ok())
        .filter(|id| vocab.text(*id).is_some())
        .collect()
}

#[cfg(test)]
mod tests;
