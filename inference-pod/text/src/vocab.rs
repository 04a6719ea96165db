//! The vocabulary: texts, kinds and the bytes each token stands for.

use std::collections::HashMap;

use crate::load::TokenizerError;

/// What a token is for, numbered in the file as here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    pub(crate) fn from_id(id: i32) -> Self {
        match id {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }

    /// Whether the token is an instruction to the model and no part of the text.
    pub(crate) fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

#[derive(Debug)]
pub(crate) struct Vocab {
    texts: Vec<String>,
    kinds: Vec<TokenKind>,
    ids: HashMap<String, u32>,
    pieces: Vec<Box<[u8]>>,
}

impl Vocab {
    /// `pieces_of` gives the bytes of a token's text when it is emitted.
    pub(crate) fn new(
        texts: Vec<String>,
        kinds: Vec<TokenKind>,
        piece_of: impl Fn(&str, TokenKind) -> Vec<u8>,
    ) -> Result<Self, TokenizerError> {
        let mut ids = HashMap::with_capacity(texts.len());
        let texts: Vec<String> = texts.into_iter().enumerate().map(named).collect();
        for (id, text) in texts.iter().enumerate() {
            if let Some(first) = ids.insert(text.clone(), id as u32) {
                return Err(TokenizerError::DuplicateToken {
                    first,
                    second: id as u32,
                });
            }
        }
        let pieces = texts
            .iter()
            .zip(&kinds)
            .map(|(text, &kind)| piece_of(text, kind).into_boxed_slice())
            .collect();
        Ok(Self {
            texts,
            kinds,
            ids,
            pieces,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).map(String::as_str)
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    pub(crate) fn set_kind(&mut self, id: u32, kind: TokenKind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    /// The token's bytes, control tokens included.
    pub(crate) fn piece(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id as usize).map(AsRef::as_ref)
    }

    /// Ids, texts and kinds in order of ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> {
        self.texts
            .iter()
            .zip(&self.kinds)
            .enumerate()
            .map(|(id, (text, &kind))| (id as u32, text.as_str(), kind))
    }

    pub(crate) fn longest_text_bytes(&self) -> usize {
        self.texts.iter().map(String::len).max().unwrap_or(0)
    }
}

/// Empty texts cannot be told apart, so each gets a name, the one llama.cpp gives it.
fn named((id, text): (usize, String)) -> String {
    if text.is_empty() {
        format!("[EMPTY_{id}]")
    } else {
        text
    }
}

/// The bytes a token's text stands for; `plain` says it of a normal token, which is what vocabularies differ in.
pub(crate) fn piece_of(
    text: &str,
    kind: TokenKind,
    plain: impl FnOnce(&str) -> Vec<u8>,
) -> Vec<u8> {
    match kind {
        TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => {
            text.as_bytes().to_vec()
        }
        TokenKind::Unused => Vec::new(),
        TokenKind::Byte => byte_of(text).map_or_else(|| plain(text), |byte| vec![byte]),
        TokenKind::Normal => plain(text),
    }
}

/// The byte of a byte token's text, `<0x0A>`.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}
