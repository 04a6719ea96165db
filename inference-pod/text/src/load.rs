//! A tokenizer out of a GGUF file's metadata.

use pagoda_gguf::{Metadata, MetadataError, Optional};

use crate::bpe::{self, Bpe};
use crate::pretokenize::PreTokenizer;
use crate::special::SpecialFinder;
use crate::spm::{self, SpacePrefix, Spm};
use crate::tokenizer::{Model, Tokenizer};
use crate::vocab::{TokenKind, Vocab};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// Further keys whose token ends a generation.
const END_KEYS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Texts that end a turn or a document wherever they are a token, as files often name only one of
/// several in their metadata. `</s>` is not among them: where it ends text the file says so, and
/// elsewhere it closes HTML's `<s>`.
const END_TEXTS: [&str; 15] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// Why no tokenizer can be made of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A file is not the JSON it has to be, or contradicts itself.
    #[error("{name}: {message}")]
    File {
        /// The file.
        name: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// A key is missing or of another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The kind of tokenizer is not one of ours.
    #[error(
        "tokenizer model {model:?} is not supported: supported are gpt2 (byte-pair) and llama (SentencePiece)"
    )]
    UnsupportedModel {
        /// The kind as the file states it.
        model: String,
    },
    /// The pattern that cuts words is unknown, and a wrong one would quietly spoil every answer.
    #[error("pre-tokenizer {pre:?} is not supported")]
    UnsupportedPreTokenizer {
        /// `tokenizer.ggml.pre` as the file states it.
        pre: String,
    },
    /// No tokens at all.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// An array beside the tokens has another length.
    #[error("metadata key {key} has {found} elements for {tokens} tokens")]
    LengthMismatch {
        /// The array's key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// Length of the vocabulary.
        tokens: usize,
    },
    /// Two tokens of one text.
    #[error("tokens {first} and {second} have the same text")]
    DuplicateToken {
        /// The first of them.
        first: u32,
        /// The second.
        second: u32,
    },
    /// A merge that is not two texts with a space between.
    #[error("merge {index} is not two symbols separated by a space")]
    BadMerge {
        /// Position in the list.
        index: usize,
    },
    /// A special token's id outside the vocabulary.
    #[error("metadata key {key} names token {id}, the vocabulary has {tokens}")]
    NoSuchToken {
        /// The key.
        key: &'static str,
        /// The id it holds.
        id: u32,
        /// Length of the vocabulary.
        tokens: usize,
    },
    /// A beginning-of-sequence token is wanted and not named.
    #[error(
        "the file wants a beginning-of-sequence token but names none in tokenizer.ggml.bos_token_id"
    )]
    NoBosToken,
    /// A score that orders nothing.
    #[error("the score of token {id} is not a number")]
    NanScore {
        /// The token.
        id: u32,
    },
    /// A byte that could not be written at all.
    #[error("the vocabulary has no token for byte {byte:#04x} and no unknown token")]
    NoByteFallback {
        /// The first such byte.
        byte: u8,
    },
    /// More text in special tokens than a search for them should hold.
    #[error("special tokens hold {bytes} bytes of text, the limit is {limit_bytes}")]
    SpecialTextTooLong {
        /// Bytes in all of them.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The search for special tokens could not be built.
    #[error("cannot search for special tokens: {message}")]
    SpecialTokens {
        /// What the search said.
        message: String,
    },
}

impl Tokenizer {
    /// Builds the tokenizer a GGUF file describes. It encodes as llama.cpp does.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let texts = metadata.get_strings(TOKENS)?.to_vec();
        if texts.is_empty() {
            return Err(TokenizerError::EmptyVocabulary);
        }
        let kinds = read_kinds(metadata, texts.len())?;
        match metadata.get_str(MODEL)? {
            "gpt2" => byte_pair(metadata, texts, kinds),
            "llama" => sentence_piece(metadata, texts, kinds),
            other => Err(TokenizerError::UnsupportedModel {
                model: other.chars().take(80).collect(),
            }),
        }
    }
}

fn byte_pair(
    metadata: &Metadata,
    texts: Vec<String>,
    kinds: Vec<TokenKind>,
) -> Result<Tokenizer, TokenizerError> {
    let pre = metadata.get_str(PRE).optional()?;
    if pre.is_none() {
        tracing::warn!(
            "the file names no pre-tokenizer in {PRE}; with the default one answers may be worse"
        );
    }
    let pre = pre.unwrap_or("default");
    let words =
        PreTokenizer::named(pre).ok_or_else(|| TokenizerError::UnsupportedPreTokenizer {
            pre: pre.chars().take(80).collect(),
        })?;
    let vocab = Vocab::new(texts, kinds, bpe::piece_of)?;
    let bpe = Bpe::new(&vocab, metadata.get_strings(MERGES)?, words)?;
    finish(
        metadata,
        vocab,
        Model::Bpe(Box::new(bpe)),
        words.add_bos,
        [None, None],
    )
}

fn sentence_piece(
    metadata: &Metadata,
    texts: Vec<String>,
    kinds: Vec<TokenKind>,
) -> Result<Tokenizer, TokenizerError> {
    let vocab = Vocab::new(texts, kinds, spm::piece_of)?;
    let scores = metadata.get_f32s(SCORES)?.to_vec();
    same_length(SCORES, scores.len(), vocab.len())?;
    let unknown = special_id(metadata, &vocab, UNKNOWN)?.or(Some(0));
    let add_space_prefix = metadata
        .get_bool(ADD_SPACE_PREFIX)
        .optional()?
        .unwrap_or(true);
    let space_prefix = if add_space_prefix {
        SpacePrefix::AfterToken
    } else {
        SpacePrefix::Never
    };
    let spm = Spm::new(&vocab, scores, unknown, space_prefix)?;
    // SentencePiece's own defaults, which files leave out.
    let defaults = [vocab.text(1).map(|_| 1), vocab.text(2).map(|_| 2)];
    let mut tokenizer = finish(metadata, vocab, Model::Spm(spm), true, defaults)?;
    if metadata.get_str("general.architecture") == Ok("phi3") {
        take_space_after(&mut tokenizer);
    }
    Ok(tokenizer)
}

/// Phi-3's control tokens take the white space after them, all but those that begin and end documents. GGUF files do not say so; this is
/// llama.cpp's rule.
fn take_space_after(tokenizer: &mut Tokenizer) {
    let keeps = ["<unk>", "<s>", "<|endoftext|>"];
    let ids: Vec<u32> = tokenizer
        .vocab
        .iter()
        .filter(|(_, text, kind)| kind.is_control() && !keeps.contains(text))
        .map(|(id, _, _)| id)
        .collect();
    for id in ids {
        tokenizer.special.strip_around(id, false, true);
    }
}

fn finish(
    metadata: &Metadata,
    vocab: Vocab,
    model: Model,
    add_bos_by_default: bool,
    [default_bos, default_eos]: [Option<u32>; 2],
) -> Result<Tokenizer, TokenizerError> {
    let bos = special_id(metadata, &vocab, BOS)?.or(default_bos);
    let eos = special_id(metadata, &vocab, EOS)?.or(default_eos);
    let add_bos = metadata
        .get_bool(ADD_BOS)
        .optional()?
        .unwrap_or(add_bos_by_default);
    if add_bos && bos.is_none() {
        return Err(TokenizerError::NoBosToken);
    }
    let mut others = Vec::new();
    for key in END_KEYS {
        others.extend(special_id(metadata, &vocab, key)?);
    }
    let ends = Ends {
        bos,
        eos,
        add_bos,
        others,
    };
    assemble(vocab, model, ends)
}

/// Which tokens begin and end text.
pub(crate) struct Ends {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) add_bos: bool,
    /// Further tokens that end a generation.
    pub(crate) others: Vec<u32>,
}

/// The tokenizer of these parts, whose ids all exist.
pub(crate) fn assemble(
    mut vocab: Vocab,
    model: Model,
    Ends {
        bos,
        eos,
        add_bos,
        others,
    }: Ends,
) -> Result<Tokenizer, TokenizerError> {
    let mut ends: Vec<u32> = END_TEXTS.iter().filter_map(|text| vocab.id(text)).collect();
    ends.extend(eos);
    ends.extend(others);
    ends.sort_unstable();
    ends.dedup();
    // Some converters leave these as ordinary tokens; shown or typed as text they would do harm.
    for &id in &ends {
        vocab.set_kind(id, TokenKind::Control);
    }
    let special = SpecialFinder::new(&vocab)?;
    Ok(Tokenizer {
        vocab,
        model,
        special,
        bos,
        eos,
        add_bos,
        ends,
    })
}

fn read_kinds(metadata: &Metadata, tokens: usize) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(ids) = metadata.get_i32s(TOKEN_TYPES).optional()? else {
        return Ok(vec![TokenKind::Normal; tokens]);
    };
    same_length(TOKEN_TYPES, ids.len(), tokens)?;
    Ok(ids.iter().map(|&id| TokenKind::from_id(id)).collect())
}

fn same_length(key: &'static str, found: usize, tokens: usize) -> Result<(), TokenizerError> {
    if found == tokens {
        Ok(())
    } else {
        Err(TokenizerError::LengthMismatch { key, found, tokens })
    }
}

fn special_id(
    metadata: &Metadata,
    vocab: &Vocab,
    key: &'static str,
) -> Result<Option<u32>, TokenizerError> {
    match metadata.get_u32(key).optional()? {
        Some(id) if vocab.text(id).is_none() => Err(TokenizerError::NoSuchToken {
            key,
            id,
            tokens: vocab.len(),
        }),
        id => Ok(id),
    }
}
