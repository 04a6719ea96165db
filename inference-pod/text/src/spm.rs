//! SentencePiece's byte-pair form: unions by score, bytes for what has no token.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::load::TokenizerError;
use crate::vocab::{self, TokenKind, Vocab};

/// SentencePiece's stand-in for a space.
const SPACE: char = '\u{2581}';

/// Where text gets a space before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpacePrefix {
    Never,
    /// At the start and after every special token.
    AfterToken,
    /// At the start alone, unless there is one.
    Start,
}

#[derive(Debug)]
pub(crate) struct Spm {
    scores: Vec<f32>,
    byte_tokens: Vec<u32>,
    longest_token_bytes: usize,
    space_prefix: SpacePrefix,
}

impl Spm {
    pub(crate) fn new(
        vocab: &Vocab,
        scores: Vec<f32>,
        unknown: Option<u32>,
        space_prefix: SpacePrefix,
    ) -> Result<Self, TokenizerError> {
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(TokenizerError::NanScore { id: id as u32 });
        }
        let byte_token = |byte: u8| {
            let raw = char::from(byte).to_string();
            let plain = if byte.is_ascii() {
                vocab.id(&raw)
            } else {
                None
            };
            vocab.id(&format!("<0x{byte:02X}>")).or(plain).or(unknown)
        };
        let byte_tokens = (0..=255)
            .map(|byte| byte_token(byte).ok_or(TokenizerError::NoByteFallback { byte }))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            scores,
            byte_tokens,
            longest_token_bytes: vocab.longest_text_bytes(),
            space_prefix,
        })
    }

    /// Appends the tokens of `text`, which begins a prompt where `out` is empty. Time is O(n log n) in its length: a union is
    /// looked up only while it is no longer than the longest token.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, after_token: bool, out: &mut Vec<u32>) {
        let mut escaped = String::with_capacity(text.len() + SPACE.len_utf8());
        let prefixed = match self.space_prefix {
            SpacePrefix::Never => false,
            SpacePrefix::AfterToken => after_token,
            SpacePrefix::Start => out.is_empty() && !text.starts_with(' '),
        };
        if prefixed {
            escaped.push(SPACE);
        }
        escaped.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let mut merger = Merger {
            spm: self,
            vocab,
            text: &escaped,
            symbols: Vec::new(),
            queue: BinaryHeap::new(),
        };
        merger.run();
        for symbol in merger.symbols.iter().filter(|symbol| symbol.bytes > 0) {
            let part = &escaped[symbol.start..symbol.start + symbol.bytes];
            match vocab.id(part) {
                Some(id) => out.push(id),
                None => out.extend(part.bytes().map(|byte| self.byte_tokens[usize::from(byte)])),
            }
        }
    }
}

/// A stretch of the text; no bytes once it is part of its left neighbour.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: usize,
    bytes: usize,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// A union that may happen: best score first, leftmost first among equals. It is stale when the
/// two sides together no longer have `bytes`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    bytes: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        // Equal zeros of either sign are equal scores.
        let by_score = self
            .score
            .partial_cmp(&other.score)
            .unwrap_or(Ordering::Equal);
        by_score
            .then_with(|| other.left.cmp(&self.left))
            .then_with(|| other.bytes.cmp(&self.bytes))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Merger<'a> {
    spm: &'a Spm,
    vocab: &'a Vocab,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
}

impl Merger<'_> {
    fn run(&mut self) {
        let chars = self
            .text
            .char_indices()
            .enumerate()
            .map(|(at, (start, c))| Symbol {
                start,
                bytes: c.len_utf8(),
                previous: at.wrapping_sub(1),
                next: if start + c.len_utf8() < self.text.len() {
                    at + 1
                } else {
                    NONE
                },
            });
        self.symbols = chars.collect();
        for right in 1..self.symbols.len() {
            self.consider(right - 1, right);
        }
        while let Some(Candidate {
            left, right, bytes, ..
        }) = self.queue.pop()
        {
            let (a, b) = (self.symbols[left].bytes, self.symbols[right].bytes);
            if a > 0 && b > 0 && a + b == bytes {
                self.unite(left, right);
            }
        }
    }

    fn unite(&mut self, left: usize, right: usize) {
        let after = self.symbols[right].next;
        self.symbols[left].bytes += self.symbols[right].bytes;
        self.symbols[right].bytes = 0;
        self.symbols[left].next = after;
        let before = self.symbols[left].previous;
        if before != NONE {
            self.consider(before, left);
        }
        if after != NONE {
            self.symbols[after].previous = left;
            self.consider(left, after);
        }
    }

    fn consider(&mut self, left: usize, right: usize) {
        let start = self.symbols[left].start;
        let bytes = self.symbols[left].bytes + self.symbols[right].bytes;
        if bytes > self.spm.longest_token_bytes {
            return;
        }
        if let Some(id) = self.vocab.id(&self.text[start..start + bytes]) {
            self.queue.push(Candidate {
                score: self.spm.scores[id as usize],
                left,
                right,
                bytes,
            });
        }
    }
}

/// The bytes a token's text stands for.
pub(crate) fn piece_of(text: &str, kind: TokenKind) -> Vec<u8> {
    vocab::piece_of(text, kind, |text| text.replace(SPACE, " ").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::{SpacePrefix, Spm, piece_of};
    use crate::load::TokenizerError;
    use crate::vocab::{TokenKind, Vocab};

    /// Byte tokens, then the given ones with their scores.
    fn encode(tokens: &[(&str, f32)], text: &str) -> Vec<String> {
        let bytes = (0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0, TokenKind::Byte));
        let normal = tokens
            .iter()
            .map(|&(text, score)| (text.to_owned(), score, TokenKind::Normal));
        let all: Vec<_> = bytes.chain(normal).collect();
        let texts = all.iter().map(|entry| entry.0.clone()).collect();
        let vocab = Vocab::new(texts, all.iter().map(|entry| entry.2).collect(), piece_of).unwrap();
        let spm = Spm::new(
            &vocab,
            all.iter().map(|entry| entry.1).collect(),
            None,
            SpacePrefix::AfterToken,
        )
        .unwrap();
        let mut ids = Vec::new();
        spm.encode(&vocab, text, true, &mut ids);
        ids.iter()
            .map(|&id| vocab.text(id).unwrap().to_owned())
            .collect()
    }

    #[test]
    fn unions_go_by_score_and_spaces_are_escaped() {
        let tokens = [
            ("▁", -9.0),
            ("a", -9.0),
            ("b", -9.0),
            ("c", -9.0),
            ("ab", -2.0),
            ("bc", -1.0),
            ("▁a", -3.0),
        ];
        assert_eq!(encode(&tokens, "abc"), ["▁a", "bc"]);
        assert_eq!(encode(&tokens, "a b"), ["▁a", "▁", "b"]);
    }

    #[test]
    fn what_has_no_token_is_written_as_bytes() {
        assert_eq!(encode(&[("▁", -1.0)], "é"), ["▁", "<0xC3>", "<0xA9>"]);
    }

    #[test]
    fn a_long_run_of_one_character_is_encoded_whole() {
        let tokens = [("▁", -9.0), ("a", -9.0), ("aa", -1.0), ("aaaa", -2.0)];
        assert_eq!(encode(&tokens, &"a".repeat(1 << 18)).len(), 1 + (1 << 16));
    }

    #[test]
    fn a_vocabulary_without_bytes_or_unknown_token_is_refused() {
        let vocab = Vocab::new(vec!["a".into()], vec![TokenKind::Normal], piece_of).unwrap();
        let error = Spm::new(&vocab, vec![0.0], None, SpacePrefix::Never).unwrap_err();
        assert_eq!(error, TokenizerError::NoByteFallback { byte: 0 });
        assert!(Spm::new(&vocab, vec![0.0], Some(0), SpacePrefix::Never).is_ok());
        assert_eq!(
            Spm::new(&vocab, vec![f32::NAN], Some(0), SpacePrefix::Never).unwrap_err(),
            TokenizerError::NanScore { id: 0 }
        );
    }
}
