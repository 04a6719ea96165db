//! Cutting text into words before byte-pair merging: the patterns models were trained with.
//!
//! The models state these as regular expressions with look-ahead. Each is written out here as a
//! scanner that is linear in the text, because a backtracking engine is not. A pattern is a list of
//! steps, each of which cuts further what the one before it left whole; text between two matches of
//! a step is a piece of its own.

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// A pattern by the name `tokenizer.ggml.pre` gives it, and what else follows from that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PreTokenizer {
    steps: &'static [Step],
    /// A word that is itself a token is taken whole, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// Whether a BOS token goes first where the file does not say.
    pub(crate) add_bos: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// `\p{N}`
    EachNumber,
    /// `\p{N}+`
    NumberRuns,
    /// `[0-9][0-9][0-9]`
    DigitTriples,
    /// `[\p{P}\$\+<=>\^~\|]+`, with the back-tick in the class as well or not.
    PunctuationRuns { backtick: bool },
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2Words,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    Cl100kWords { most_digits: usize },
}

const DEFAULT: &[Step] = &[
    Step::PunctuationRuns { backtick: false },
    Step::Gpt2Words,
    Step::NumberRuns,
    Step::DigitTriples,
];
const FALCON: &[Step] = &[
    Step::PunctuationRuns { backtick: true },
    Step::Gpt2Words,
    Step::DigitTriples,
];
const GPT2: &[Step] = &[Step::Gpt2Words];
const STARCODER: &[Step] = &[Step::EachNumber, Step::Gpt2Words];
const LLAMA3: &[Step] = &[Step::Cl100kWords { most_digits: 3 }];
const QWEN2: &[Step] = &[Step::Cl100kWords { most_digits: 1 }];

impl PreTokenizer {
    /// The pattern of a name; `None` for one that is not known.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let plain = |steps| Self {
            steps,
            ignore_merges: false,
            add_bos: false,
        };
        Some(match name {
            "default" => plain(DEFAULT),
            "falcon" => plain(FALCON),
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "gigachat" | "mellum"
            | "exaone4" | "granite-docling" => plain(GPT2),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" => plain(STARCODER),
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" => Self {
                steps: LLAMA3,
                ignore_merges: true,
                add_bos: true,
            },
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => plain(LLAMA3),
            "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" | "solar-open"
            | "kormo" => plain(QWEN2),
            _ => return None,
        })
    }

    /// Calls `word` with every piece of `text`, in order; together they are `text`.
    pub(crate) fn split<'a>(&self, text: &'a str, word: &mut dyn FnMut(&'a str)) {
        split_by(self.steps, text, word);
    }
}

fn split_by<'a>(steps: &[Step], text: &'a str, word: &mut dyn FnMut(&'a str)) {
    let Some((step, finer)) = steps.split_first() else {
        return word(text);
    };
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(step.next_bytes(rest));
        split_by(finer, piece, word);
        rest = after;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class(c: char) -> Class {
    if c.is_ascii() {
        return match c {
            'a'..='z' | 'A'..='Z' => Class::Letter,
            '0'..='9' => Class::Number,
            // U+001C to U+001F are no white space to Unicode's property.
            ' ' | '\t'..='\r' => Class::Space,
            _ => Class::Other,
        };
    }
    if c.is_whitespace() {
        return Class::Space;
    }
    match get_general_category(c) {
        Category::UppercaseLetter
        | Category::LowercaseLetter
        | Category::TitlecaseLetter
        | Category::ModifierLetter
        | Category::OtherLetter => Class::Letter,
        Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber => Class::Number,
        _ => Class::Other,
    }
}

fn is_punctuation(c: char, backtick: bool) -> bool {
    if matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|') {
        return true;
    }
    if c == '`' {
        return backtick;
    }
    matches!(
        get_general_category(c),
        Category::ConnectorPunctuation
            | Category::DashPunctuation
            | Category::OpenPunctuation
            | Category::ClosePunctuation
            | Category::InitialPunctuation
            | Category::FinalPunctuation
            | Category::OtherPunctuation
    )
}

impl Step {
    /// Bytes of the piece that `text`, which is not empty, starts with.
    fn next_bytes(self, text: &str) -> usize {
        match self {
            Self::EachNumber => match first(text) {
                Some(c) if class(c) == Class::Number => c.len_utf8(),
                _ => run(text, |c| class(c) != Class::Number),
            },
            Self::NumberRuns => either_run(text, |c| class(c) == Class::Number),
            Self::PunctuationRuns { backtick } => either_run(text, |c| is_punctuation(c, backtick)),
            Self::DigitTriples => digit_triple(text),
            Self::Gpt2Words => gpt2_word(text),
            Self::Cl100kWords { most_digits } => cl100k_word(text, most_digits),
        }
    }
}

fn first(text: &str) -> Option<char> {
    text.chars().next()
}

/// Bytes of the leading characters that fulfil `wanted`.
fn run(text: &str, wanted: impl Fn(char) -> bool) -> usize {
    text.char_indices()
        .find(|&(_, c)| !wanted(c))
        .map_or(text.len(), |(at, _)| at)
}

/// The leading run of characters in the class, or of those outside it.
fn either_run(text: &str, in_class: impl Fn(char) -> bool) -> usize {
    let inside = first(text).is_some_and(&in_class);
    run(text, |c| in_class(c) == inside)
}

fn digit_triple(text: &str) -> usize {
    let is_triple = |window: &[u8]| window.iter().all(u8::is_ascii_digit);
    match text.as_bytes().windows(3).position(is_triple) {
        Some(0) => 3,
        Some(at) => at,
        None => text.len(),
    }
}

/// Bytes of a leading English contraction.
fn contraction(text: &str, any_case: bool) -> Option<usize> {
    const SUFFIXES: [&[u8]; 7] = [b"s", b"t", b"re", b"ve", b"m", b"ll", b"d"];
    let rest = text.as_bytes().strip_prefix(b"'")?;
    let starts = |suffix: &&&[u8]| {
        rest.get(..suffix.len()).is_some_and(|head| {
            if any_case {
                head.eq_ignore_ascii_case(suffix)
            } else {
                head == **suffix
            }
        })
    };
    SUFFIXES.iter().find(starts).map(|suffix| 1 + suffix.len())
}

/// `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word that follows.
fn white_space(text: &str) -> usize {
    let end = run(text, |c| class(c) == Class::Space);
    let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
    if end < text.len() && last < end {
        end - last
    } else {
        end
    }
}

fn gpt2_word(text: &str) -> usize {
    if let Some(bytes) = contraction(text, false) {
        return bytes;
    }
    let lead = usize::from(text.starts_with(' '));
    match first(&text[lead..]).map(class) {
        None | Some(Class::Space) => white_space(text),
        Some(wanted) => lead + run(&text[lead..], |c| class(c) == wanted),
    }
}

fn cl100k_word(text: &str, most_digits: usize) -> usize {
    if let Some(bytes) = contraction(text, true) {
        return bytes;
    }
    let mut chars = text.chars();
    let Some(head) = chars.next() else { return 0 };
    let letters = |from: usize| from + run(&text[from..], |c| class(c) == Class::Letter);
    match class(head) {
        Class::Letter => return letters(0),
        Class::Number => {
            return text
                .char_indices()
                .nth(number_chars(text, most_digits))
                .map_or(text.len(), |(at, _)| at);
        }
        Class::Space | Class::Other => {}
    }
    let joins_letters = chars.next().is_some_and(|c| class(c) == Class::Letter);
    if joins_letters && !matches!(head, '\r' | '\n') {
        return letters(head.len_utf8());
    }
    let lead = usize::from(head == ' ');
    let others = run(&text[lead..], |c| class(c) == Class::Other);
    if others > 0 {
        return lead + others + run(&text[lead + others..], |c| matches!(c, '\r' | '\n'));
    }
    let spaces = &text[..run(text, |c| class(c) == Class::Space)];
    spaces
        .rfind(['\r', '\n'])
        .map_or_else(|| white_space(text), |at| at + 1)
}

fn number_chars(text: &str, most: usize) -> usize {
    text.chars()
        .take(most)
        .take_while(|&c| class(c) == Class::Number)
        .count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::PreTokenizer;

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let mut words = Vec::new();
        PreTokenizer::named(name)
            .unwrap()
            .split(text, &mut |word| words.push(word));
        words
    }

    #[test]
    fn gpt2_keeps_a_space_with_its_word_and_contractions_apart() {
        assert_eq!(
            words("gpt-2", "Hello world, it's 12x"),
            ["Hello", " world", ",", " it", "'s", " 12", "x"]
        );
        assert_eq!(words("gpt-2", "IT'S"), ["IT", "'", "S"]);
        assert_eq!(words("gpt-2", "a  b   "), ["a", " ", " b", "   "]);
        assert_eq!(words("gpt-2", "a\n\n b\nc"), ["a", "\n\n", " b", "\n", "c"]);
    }

    #[test]
    fn smollm_isolates_every_number_before_words_are_cut() {
        assert_eq!(
            words("smollm", "in 2024 ½a"),
            ["in", " ", "2", "0", "2", "4", " ", "½", "a"]
        );
        assert_eq!(words("smollm", "a  5"), ["a", "  ", "5"]);
    }

    #[test]
    fn llama3_groups_three_digits_and_newlines_with_punctuation() {
        assert_eq!(words("llama-bpe", "1234567 a"), ["123", "456", "7", " a"]);
        assert_eq!(
            words("llama-bpe", "x();\n\n  y"),
            ["x", "();\n\n", " ", " y"]
        );
        assert_eq!(
            words("llama-bpe", "I'M (a)  \n  b"),
            ["I", "'M", " (", "a", ")", "  \n", " ", " b"]
        );
        assert_eq!(
            words("llama-bpe", "\tword\u{3000}x"),
            ["\tword", "\u{3000}x"]
        );
    }

    #[test]
    fn qwen2_takes_digits_one_at_a_time() {
        assert_eq!(words("qwen2", "a 123"), ["a", " ", "1", "2", "3"]);
    }

    #[test]
    fn default_cuts_punctuation_numbers_and_triples() {
        assert_eq!(
            words("default", "a+=1234567"),
            ["a", "+=", "123", "456", "7"]
        );
        assert_eq!(
            words("falcon", "`x` 1234"),
            ["`", "x", "`", " ", "123", "4"]
        );
    }

    #[test]
    fn an_unknown_name_has_no_pattern() {
        assert!(PreTokenizer::named("nonesuch").is_none());
    }

    proptest! {
        #[test]
        fn pieces_are_never_empty_and_make_up_the_text(
            text in "[ \\t\\r\\n'a-zA-Z0-9+<`é½一\u{3000}😀\\PC]{0,60}",
            name in prop::sample::select(vec!["default", "falcon", "gpt-2", "smollm", "llama-bpe", "qwen2"]),
        ) {
            let words = words(name, &text);
            prop_assert!(words.iter().all(|word| !word.is_empty()));
            prop_assert_eq!(words.concat(), text);
        }
    }
}
