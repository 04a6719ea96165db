//! Text of about a wanted number of tokens.
//!
//! Each word is one token in the vocabularies of today's models, so words count tokens closely enough. The text of a block is a
//! function of its id alone: prompts that share ids share text, which is what a prefix cache sees.

use std::fmt::Write;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::arrivals::Prefix;

const WORDS: [&str; 64] = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "member",
    "law",
];

/// About `tokens` tokens: the prefix's blocks, as far as they go, then words of `unique`'s own.
pub fn prompt(tokens: usize, prefix: &Prefix, unique: u64) -> String {
    let mut text = String::with_capacity(tokens * 7);
    let mut left = tokens;
    for id in &prefix.block_ids {
        let words = left.min(prefix.block_tokens);
        append_words(&mut text, words, *id);
        left -= words;
    }
    // Other seeds than any block's, so that what is nobody else's stays so.
    append_words(&mut text, left, unique ^ 0x9e37_79b9_7f4a_7c15);
    text
}

fn append_words(text: &mut String, words: usize, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..words {
        let word = WORDS[rng.random_range(0..WORDS.len())];
        let space = if text.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = write!(text, "{space}{word}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(ids: &[u64]) -> Prefix {
        Prefix {
            block_ids: ids.to_vec(),
            block_tokens: 4,
        }
    }

    #[test]
    fn has_as_many_words_as_tokens_are_wanted() {
        for tokens in [0, 1, 7, 8, 9, 100] {
            assert_eq!(
                prompt(tokens, &blocks(&[1, 2]), 5)
                    .split_whitespace()
                    .count(),
                tokens
            );
        }
    }

    #[test]
    fn shared_blocks_are_shared_text_and_the_rest_is_not() {
        let (one, two) = (
            prompt(12, &blocks(&[1, 2]), 5),
            prompt(12, &blocks(&[1, 3]), 6),
        );
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (one, two) = (words(&one), words(&two));
        assert_eq!(one[..4], two[..4]);
        assert_ne!(one[4..8], two[4..8]);
        assert_ne!(one[8..], two[8..]);
    }
}
