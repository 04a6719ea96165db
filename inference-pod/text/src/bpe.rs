//! Byte-pair encoding over GPT-2's byte alphabet.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::load::TokenizerError;
use crate::pretokenize::PreTokenizer;
use crate::vocab::{self, TokenKind, Vocab};

/// Two symbols' union, and how early it happens.
#[derive(Debug, Clone, Copy)]
struct Merge {
    rank: u32,
    result: u32,
}

/// Symbols are token ids, and numbers past the vocabulary for texts that occur in merges only.
#[derive(Debug)]
pub(crate) struct Bpe {
    byte_symbols: [u32; 256],
    merges: HashMap<(u32, u32), Merge>,
    /// Tokens of the symbols past the vocabulary: those of their characters that exist.
    extra_tokens: Vec<Vec<u32>>,
    words: PreTokenizer,
}

impl Bpe {
    /// `merges` are pairs "left right", the first of which merges first.
    pub(crate) fn new(
        vocab: &Vocab,
        merges: &[String],
        words: PreTokenizer,
    ) -> Result<Self, TokenizerError> {
        let mut symbols = Symbols {
            vocab,
            extra: HashMap::new(),
            texts: Vec::new(),
        };
        let byte_symbols =
            std::array::from_fn(|byte| symbols.intern(&char_of(byte as u8).to_string()));
        let mut table = HashMap::with_capacity(merges.len());
        for (rank, merge) in merges.iter().enumerate() {
            let (left, right) = halves(merge).ok_or(TokenizerError::BadMerge { index: rank })?;
            let pair = (symbols.intern(left), symbols.intern(right));
            let merge = Merge {
                rank: rank as u32,
                result: symbols.intern(&[left, right].concat()),
            };
            table.entry(pair).or_insert(merge);
        }
        let tokens_of = |text: &String| {
            text.chars()
                .filter_map(|c| vocab.id(c.encode_utf8(&mut [0; 4])))
                .collect()
        };
        let extra_tokens = symbols.texts.iter().map(tokens_of).collect();
        Ok(Self {
            byte_symbols,
            merges: table,
            extra_tokens,
            words,
        })
    }

    /// Appends the tokens of `text`. Time is O(n log n) in its length, whatever it holds.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        self.words.split(text, &mut |word| {
            if self.words.ignore_merges
                && let Some(id) = vocab.id(&mapped(word))
            {
                return out.push(id);
            }
            merger.run(self, word.as_bytes());
            merger
                .symbols
                .iter()
                .filter(|symbol| symbol.alive)
                .for_each(|symbol| self.emit(vocab, symbol.id, out));
        });
    }

    fn emit(&self, vocab: &Vocab, symbol: u32, out: &mut Vec<u32>) {
        match (symbol as usize).checked_sub(vocab.len()) {
            None => out.push(symbol),
            Some(extra) => out.extend(&self.extra_tokens[extra]),
        }
    }
}

/// The two sides of a merge. A side may itself hold spaces only at its start.
fn halves(merge: &str) -> Option<(&str, &str)> {
    let head = merge.chars().next()?.len_utf8();
    let at = head + merge[head..].find(' ')?;
    Some((&merge[..at], &merge[at + 1..]))
}

struct Symbols<'a> {
    vocab: &'a Vocab,
    extra: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Symbols<'_> {
    fn intern(&mut self, text: &str) -> u32 {
        if let Some(id) = self
            .vocab
            .id(text)
            .or_else(|| self.extra.get(text).copied())
        {
            return id;
        }
        let id = (self.vocab.len() + self.texts.len()) as u32;
        self.extra.insert(text.to_owned(), id);
        self.texts.push(text.to_owned());
        id
    }
}

#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    alive: bool,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// A union that may happen: earliest rank first, leftmost first among equals. It is stale when
/// either side has changed since.
type Candidate = Reverse<(u32, usize, usize, u32, u32)>;

/// Working memory of the merges of one word, kept from word to word.
#[derive(Default)]
struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
    #[cfg(test)]
    pops: usize,
}

impl Merger {
    fn run(&mut self, bpe: &Bpe, word: &[u8]) {
        self.queue.clear();
        self.symbols.clear();
        self.symbols
            .extend(word.iter().enumerate().map(|(at, &byte)| Symbol {
                id: bpe.byte_symbols[usize::from(byte)],
                alive: true,
                previous: at.wrapping_sub(1),
                next: if at + 1 < word.len() { at + 1 } else { NONE },
            }));
        for left in 1..self.symbols.len() {
            self.consider(bpe, left - 1, left);
        }
        while let Some(Reverse((_, left, right, left_id, right_id))) = self.queue.pop() {
            #[cfg(test)]
            {
                self.pops += 1;
            }
            let current = |at: usize, id: u32| self.symbols[at].alive && self.symbols[at].id == id;
            if current(left, left_id) && current(right, right_id) {
                self.unite(bpe, left, right);
            }
        }
    }

    fn unite(&mut self, bpe: &Bpe, left: usize, right: usize) {
        let Some(merge) = bpe
            .merges
            .get(&(self.symbols[left].id, self.symbols[right].id))
        else {
            return;
        };
        let after = self.symbols[right].next;
        self.symbols[right].alive = false;
        self.symbols[left].id = merge.result;
        self.symbols[left].next = after;
        if after != NONE {
            self.symbols[after].previous = left;
            self.consider(bpe, left, after);
        }
        let before = self.symbols[left].previous;
        if before != NONE {
            self.consider(bpe, before, left);
        }
    }

    fn consider(&mut self, bpe: &Bpe, left: usize, right: usize) {
        let (left_id, right_id) = (self.symbols[left].id, self.symbols[right].id);
        if let Some(merge) = bpe.merges.get(&(left_id, right_id)) {
            self.queue
                .push(Reverse((merge.rank, left, right, left_id, right_id)));
        }
    }
}

/// GPT-2's printable stand-in for a byte: itself where it prints, otherwise one from U+0100 on.
fn char_of(byte: u8) -> char {
    let shift = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => return char::from(byte),
        0..=0x20 => u32::from(byte),
        0x7f..=0xa0 => u32::from(byte) - 0x7f + 0x21,
        0xad => 0x43,
    };
    char::from_u32(0x100 + shift).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn byte_of_char(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

fn mapped(word: &str) -> String {
    word.bytes().map(char_of).collect()
}

/// The bytes a token's text stands for. Characters outside the alphabet stand for themselves.
pub(crate) fn piece_of(text: &str, kind: TokenKind) -> Vec<u8> {
    vocab::piece_of(text, kind, |text| {
        let mut bytes = Vec::with_capacity(text.len());
        for c in text.chars() {
            match byte_of_char(c) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::{Bpe, Merger, byte_of_char, char_of, halves, mapped, piece_of};
    use crate::load::TokenizerError;
    use crate::pretokenize::PreTokenizer;
    use crate::vocab::{TokenKind, Vocab};

    fn vocab(extra: &[&str]) -> Vocab {
        let texts = (0..=255)
            .map(|byte| char_of(byte).to_string())
            .chain(extra.iter().map(|&text| text.to_owned()));
        let texts: Vec<String> = texts.collect();
        let kinds = vec![TokenKind::Normal; texts.len()];
        Vocab::new(texts, kinds, piece_of).unwrap()
    }

    fn encode(extra: &[&str], merges: &[&str], pre: &str, text: &str) -> Vec<String> {
        let vocab = vocab(extra);
        let merges: Vec<String> = merges.iter().map(|&merge| merge.to_owned()).collect();
        let bpe = Bpe::new(&vocab, &merges, PreTokenizer::named(pre).unwrap()).unwrap();
        let mut ids = Vec::new();
        bpe.encode(&vocab, text, &mut ids);
        ids.iter()
            .map(|&id| vocab.text(id).unwrap().to_owned())
            .collect()
    }

    #[test]
    fn the_byte_alphabet_maps_every_byte_to_a_character_of_its_own_and_back() {
        let chars: std::collections::HashSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(chars.len(), 256);
        assert!((0..=255).all(|byte| byte_of_char(char_of(byte)) == Some(byte)));
        assert_eq!(
            (char_of(b' '), char_of(b'\n'), char_of(0x7f), char_of(0xad)),
            ('Ġ', 'Ċ', 'ġ', 'Ń')
        );
        assert_eq!(mapped("a é"), "aĠÃ©");
    }

    #[test]
    fn merges_go_by_rank_and_then_from_the_left() {
        assert_eq!(
            encode(&["ab", "bc"], &["b c", "a b"], "gpt-2", "abc"),
            ["a", "bc"]
        );
        assert_eq!(
            encode(&["aa"], &["a a"], "gpt-2", "aaaaa"),
            ["aa", "aa", "a"]
        );
        assert_eq!(
            encode(&["aa", "aaaa"], &["a a", "aa aa"], "gpt-2", "aaaaaaa"),
            ["aaaa", "aa", "a"]
        );
    }

    #[test]
    fn merges_do_not_cross_words() {
        assert_eq!(encode(&["bĠ"], &["b Ġ"], "gpt-2", "b a"), ["b", "Ġ", "a"]);
    }

    #[test]
    fn a_whole_word_wins_over_merges_only_where_the_model_says_so() {
        assert_eq!(
            encode(&["abc", "bc"], &["b c"], "gpt-2", "abc"),
            ["a", "bc"]
        );
        assert_eq!(
            encode(&["abc", "bc"], &["b c"], "llama-bpe", "abc"),
            ["abc"]
        );
    }

    #[test]
    fn a_union_that_is_no_token_falls_back_to_its_characters() {
        assert_eq!(encode(&[], &["a b"], "gpt-2", "abc"), ["a", "b", "c"]);
    }

    #[test]
    fn a_merge_without_two_sides_is_refused() {
        let (vocab, words) = (vocab(&[]), PreTokenizer::named("gpt-2").unwrap());
        let error = Bpe::new(&vocab, &["a b".into(), "ab".into()], words).unwrap_err();
        assert_eq!(error, TokenizerError::BadMerge { index: 1 });
        assert_eq!(halves("Ġ t"), Some(("Ġ", "t")));
        assert_eq!(halves(""), None);
    }

    #[test]
    fn a_mebibyte_of_one_character_takes_a_linear_number_of_steps() {
        let vocab = vocab(&["aa", "aaaa", "aaaaaaaa"]);
        let merges: Vec<String> = ["a a", "aa aa", "aaaa aaaa"].map(String::from).into();
        let bpe = Bpe::new(&vocab, &merges, PreTokenizer::named("gpt-2").unwrap()).unwrap();
        let text = vec![b'a'; 1 << 20];
        let mut merger = Merger::default();
        merger.run(&bpe, &text);
        assert_eq!(
            merger.symbols.iter().filter(|symbol| symbol.alive).count(),
            text.len() / 8
        );
        assert!(merger.pops <= 3 * text.len(), "{} steps", merger.pops);
    }
}
