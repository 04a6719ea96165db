//! How a scheduler decides, apart from what it may use.

use std::time::Duration;

use crate::keys::KeySeed;

/// Choices of whoever runs the engine. None of them changes an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Keep blocks for prompts that begin alike, under keys of this seed; `None` computes every prompt anew.
    pub prefix_cache: Option<KeySeed>,
    /// How much earlier a sequence must arrive to go before one of the next more urgent class.
    pub ageing: Duration,
    /// How much longer than without prompts a step may take for the sake of prompts that are few beside those who decode, as a
    /// part: 0.25 is a quarter longer. Nothing is guessed meanwhile. `None` gives prompts all that the step's tokens leave.
    pub prompt_slowdown: Option<f64>,
    /// Guess tokens ahead.
    pub speculation: Speculation,
    /// Learn how long answers become, let short ones go first and keep room for what running ones will need.
    pub predict_lengths: bool,
}

/// How many tokens to guess ahead of a decoding sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// As many as pay, by what guesses of the sequence came true and what rows cost.
    #[default]
    Auto,
    /// None.
    Off,
    /// Always up to so many.
    Fixed(usize),
}

/// Why a word does not say how to speculate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("speculation is auto, off or a number of tokens from 1 to {MAX_DRAFT}, not {0:?}")]
pub struct SpeculationError(String);

/// Tokens guessed ahead of one sequence at most.
pub const MAX_DRAFT: usize = 15;

impl std::str::FromStr for Speculation {
    type Err = SpeculationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            ("off", _) | (_, Ok(0)) => Ok(Self::Off),
            (_, Ok(tokens)) if tokens <= MAX_DRAFT => Ok(Self::Fixed(tokens)),
            _ => Err(SpeculationError(text.to_owned())),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            prefix_cache: Some(KeySeed::default()),
            ageing: Duration::from_secs(30),
            prompt_slowdown: Some(0.25),
            speculation: Speculation::Auto,
            predict_lengths: false,
        }
    }
}

impl Policy {
    /// First come, first served, and nothing kept or guessed.
    pub fn plain() -> Self {
        Self {
            prefix_cache: None,
            prompt_slowdown: None,
            speculation: Speculation::Off,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speculation_is_a_word_or_a_number() {
        let parse = |text: &str| text.parse::<Speculation>();
        assert_eq!(parse("auto"), Ok(Speculation::Auto));
        assert_eq!(
            (parse("off"), parse("0")),
            (Ok(Speculation::Off), Ok(Speculation::Off))
        );
        assert_eq!(parse("4"), Ok(Speculation::Fixed(4)));
        let error = parse("99").unwrap_err().to_string();
        assert!(error.contains("1 to 15") && error.contains("99"), "{error}");
    }
}
