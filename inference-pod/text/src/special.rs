//! Finding the texts of special tokens in text.

use aho_corasick::{AhoCorasick, MatchKind};
use memchr::memmem;

use crate::load::TokenizerError;
use crate::vocab::{TokenKind, Vocab};

/// Real vocabularies hold some hundred KiB; the search automaton grows with this.
const SPECIAL_TEXT_LIMIT_BYTES: usize = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment<'a> {
    Text(&'a str),
    Token(u32),
}

#[derive(Debug)]
struct Special {
    id: u32,
    text: String,
    is_control: bool,
    /// White space before it, and after it, goes with it.
    strips: [bool; 2],
}

/// The special tokens of a vocabulary, longest first.
#[derive(Debug)]
pub(crate) struct SpecialFinder {
    tokens: Vec<Special>,
    automaton: AhoCorasick,
}

impl SpecialFinder {
    pub(crate) fn new(vocab: &Vocab) -> Result<Self, TokenizerError> {
        let is_special = |kind: TokenKind| kind.is_control() || kind == TokenKind::UserDefined;
        let special = vocab.iter().filter(|&(_, _, kind)| is_special(kind));
        let mut tokens: Vec<Special> = special
            .map(|(id, text, kind)| Special {
                id,
                text: text.to_owned(),
                is_control: kind.is_control(),
                strips: [false; 2],
            })
            .collect();
        let bytes: usize = tokens.iter().map(|token| token.text.len()).sum();
        if bytes > SPECIAL_TEXT_LIMIT_BYTES {
            return Err(TokenizerError::SpecialTextTooLong {
                bytes,
                limit_bytes: SPECIAL_TEXT_LIMIT_BYTES,
            });
        }
        tokens.sort_by_key(|token| (std::cmp::Reverse(token.text.len()), token.id));
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(tokens.iter().map(|token| &token.text))
            .map_err(|error| TokenizerError::SpecialTokens {
                message: error.to_string(),
            })?;
        Ok(Self { tokens, automaton })
    }

    /// Lets a token take the white space before or after it.
    pub(crate) fn strip_around(&mut self, id: u32, before: bool, after: bool) {
        for token in self.tokens.iter_mut().filter(|token| token.id == id) {
            token.strips = [before, after];
        }
    }

    /// Cuts `text` at its special tokens, the longest of all first and from the left among equals,
    /// which is llama.cpp's order. Control tokens are left in the text unless `parse_control`.
    pub(crate) fn split<'a>(&self, text: &'a str, parse_control: bool) -> Vec<Fragment<'a>> {
        let mut fragments = if text.is_empty() {
            Vec::new()
        } else {
            vec![Fragment::Text(text)]
        };
        // One pass tells which of the many tokens occur at all; few do.
        for index in self.present(text) {
            let token = &self.tokens[index];
            if parse_control || !token.is_control {
                fragments = cut(&fragments, token);
            }
        }
        fragments
    }

    /// Indices of the tokens whose text occurs, in order.
    fn present(&self, text: &str) -> Vec<usize> {
        let mut seen = vec![false; self.tokens.len()];
        for found in self.automaton.find_overlapping_iter(text) {
            seen[found.pattern().as_usize()] = true;
        }
        (0..seen.len()).filter(|&index| seen[index]).collect()
    }

    /// Byte offsets of the control tokens' texts in `text`, ascending, overlapping ones included.
    pub(crate) fn control_starts(&self, text: &str) -> Vec<usize> {
        let matches = self.automaton.find_overlapping_iter(text);
        let control = matches.filter(|found| self.tokens[found.pattern().as_usize()].is_control);
        let mut starts: Vec<usize> = control.map(|found| found.start()).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// Whether any special token's text contains `c`.
    pub(crate) fn uses(&self, c: char) -> bool {
        self.tokens.iter().any(|token| token.text.contains(c))
    }
}

fn cut<'a>(fragments: &[Fragment<'a>], token: &Special) -> Vec<Fragment<'a>> {
    let finder = memmem::Finder::new(&token.text);
    let mut out = Vec::with_capacity(fragments.len() + 2);
    for &fragment in fragments {
        let Fragment::Text(text) = fragment else {
            out.push(fragment);
            continue;
        };
        let mut rest = text;
        let mut from = 0;
        for at in finder.find_iter(text.as_bytes()) {
            // White space that a token took may hold no further one: it would begin with a space.
            let Some(before) = text.get(from..at) else {
                continue;
            };
            let [strip_before, strip_after] = token.strips;
            let before = if strip_before {
                before.trim_end()
            } else {
                before
            };
            push_text(&mut out, before);
            out.push(Fragment::Token(token.id));
            rest = &text[at + token.text.len()..];
            if strip_after {
                rest = rest.trim_start();
            }
            from = text.len() - rest.len();
        }
        push_text(&mut out, rest);
    }
    out
}

fn push_text<'a>(out: &mut Vec<Fragment<'a>>, text: &'a str) {
    if !text.is_empty() {
        out.push(Fragment::Text(text));
    }
}

#[cfg(test)]
mod tests {
    use super::{Fragment, SpecialFinder};
    use crate::vocab::{TokenKind, Vocab};

    fn finder(tokens: &[(&str, TokenKind)]) -> SpecialFinder {
        let texts = tokens.iter().map(|token| token.0.to_owned()).collect();
        let kinds = tokens.iter().map(|token| token.1).collect();
        SpecialFinder::new(&Vocab::new(texts, kinds, |_, _| Vec::new()).unwrap()).unwrap()
    }

    #[test]
    fn longer_tokens_go_first_even_when_a_shorter_one_starts_earlier() {
        let finder = finder(&[
            ("<a", TokenKind::Control),
            ("a><b>", TokenKind::Control),
            ("x", TokenKind::Normal),
        ]);
        let expected = [Fragment::Text("x<"), Fragment::Token(1), Fragment::Token(0)];
        assert_eq!(finder.split("x<a><b><a", true), expected);
    }

    #[test]
    fn control_tokens_stay_text_unless_asked_for_and_user_defined_ones_never_do() {
        let finder = finder(&[("<c>", TokenKind::Control), ("<u>", TokenKind::UserDefined)]);
        assert_eq!(
            finder.split("<c><u>", false),
            [Fragment::Text("<c>"), Fragment::Token(1)]
        );
        assert_eq!(
            finder.split("<c><u>", true),
            [Fragment::Token(0), Fragment::Token(1)]
        );
        assert_eq!(finder.split("", true), []);
        assert_eq!(finder.control_starts("<c><u><c>"), [0, 6]);
    }

    #[test]
    fn a_vocabulary_without_special_tokens_leaves_text_whole() {
        let finder = finder(&[("a", TokenKind::Normal)]);
        assert_eq!(finder.split("a<b>", true), [Fragment::Text("a<b>")]);
    }
}
