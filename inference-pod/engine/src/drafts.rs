//! Speculative decoding without a second model: what followed when these words came last, most likely follows again.
//!
//! A guess is computed with the row that would be computed anyway, and drawing decides: the answer is the same, token for
//! token, whatever is guessed. (Prompt lookup decoding: Saxena 2023; the same as an n-gram "model" over prompt and answer.)

use crate::policy::Speculation;

/// A guess needs so many tokens that came before, too.
const SHORTEST_MATCH: usize = 3;

/// Longer agreement says no more.
const LONGEST_MATCH: usize = 16;

/// Tokens that are searched, from the end: bounds the work of a step.
const WINDOW: usize = 8192;

/// Tokens guessed where it is not known whether guesses pay.
const AUTO_MOST: usize = 7;

/// Guesses of a sequence are tried again after so many steps without.
const REST_STEPS: u32 = 48;

/// What one guess that was tried moves the estimate.
const LEARNING_RATE: f64 = 1.0 / 12.0;

/// Part of guesses that come true, before any was tried.
const FIRST_ESTIMATE: f64 = 0.6;

/// What begins to pay must pay so many times its price, and what pays goes on until it pays less than the inverse.
const HYSTERESIS: f64 = 1.3;

/// At most `most` tokens that may follow `tokens`; none where the end of `tokens` never occurred before.
///
/// Of all earlier places that agree with the end, the longest agreement counts, and of those the latest. Where the place is
/// so near the end that it runs into it, the guess goes on with itself: a period is repeated.
pub fn guess(tokens: &[u32], most: usize) -> Vec<u32> {
    let tokens = &tokens[tokens.len().saturating_sub(WINDOW)..];
    let Some(next) = continuation(tokens) else {
        return Vec::new();
    };
    let mut draft: Vec<u32> = Vec::with_capacity(most);
    for place in next..next + most {
        draft.push(match tokens.get(place) {
            Some(token) => *token,
            None => draft[place - tokens.len()],
        });
    }
    draft
}

/// Where the tokens begin that followed the end of `tokens` before.
fn continuation(tokens: &[u32]) -> Option<usize> {
    let mut best = None;
    let mut longest = SHORTEST_MATCH - 1;
    for end in (SHORTEST_MATCH..tokens.len()).rev() {
        let agreement = agreement(&tokens[..end], tokens);
        if agreement > longest {
            (best, longest) = (Some(end), agreement);
            if longest == LONGEST_MATCH {
                break;
            }
        }
    }
    best
}

/// How many tokens both end with, up to [`LONGEST_MATCH`].
fn agreement(a: &[u32], b: &[u32]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev()).take(LONGEST_MATCH);
    pairs.take_while(|(a, b)| a == b).count()
}

/// What is known of one sequence's guesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drafter {
    /// Part of guesses that come true.
    acceptance: f64,
    pays: bool,
    /// Steps since guesses were last tried.
    rested: u32,
}

impl Default for Drafter {
    fn default() -> Self {
        Self {
            acceptance: FIRST_ESTIMATE,
            pays: true,
            rested: 0,
        }
    }
}

impl Drafter {
    /// How many tokens to guess, at most `most`, where a further row costs `price` of a row's average.
    ///
    /// The `i`-th guess counts only when all before it came true, with the probability `acceptance^i`: it pays while that is
    /// above its price.
    pub fn wanted(&mut self, speculation: Speculation, price: f64, most: usize) -> usize {
        match speculation {
            Speculation::Off => 0,
            Speculation::Fixed(tokens) => tokens.min(most),
            Speculation::Auto => self.wanted_by_price(price).min(most),
        }
    }

    fn wanted_by_price(&mut self, price: f64) -> usize {
        let edge = if self.pays {
            1.0 / HYSTERESIS
        } else {
            HYSTERESIS
        };
        self.pays = self.acceptance > price * edge;
        if self.pays {
            let last = (price.max(1e-6).ln() / self.acceptance.clamp(0.01, 0.99).ln()).floor();
            return (last.max(1.0) as usize).min(AUTO_MOST);
        }
        self.rested += 1;
        // Text changes: from time to time one guess shows whether it has. Not where rows are so dear that none could pay.
        usize::from(self.rested.is_multiple_of(REST_STEPS) && price * HYSTERESIS < 1.0)
    }

    /// Of so many guesses the first `accepted` came true.
    pub fn learn(&mut self, drafted: usize, accepted: usize) {
        for _ in 0..accepted {
            self.acceptance += LEARNING_RATE * (1.0 - self.acceptance);
        }
        if accepted < drafted {
            self.acceptance -= LEARNING_RATE * self.acceptance;
        }
        self.rested = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn guesses_what_followed_the_longest_agreement() {
        let text = [1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 1, 2, 3, 4];
        assert_eq!(
            guess(&text, 3),
            [5, 9, 2],
            "four tokens agree there, three at the later place"
        );
        assert_eq!(
            guess(&[7, 1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3], 1),
            [9],
            "the latest of equals"
        );
    }

    #[test]
    fn has_no_guess_for_what_never_came_before() {
        assert!(guess(&[1, 2, 3, 4, 5], 4).is_empty());
        assert!(
            guess(&[1, 2, 7, 1, 2], 4).is_empty(),
            "two tokens are too few"
        );
        assert!(guess(&[], 4).is_empty() && guess(&[1], 4).is_empty());
    }

    #[test]
    fn a_period_is_repeated_beyond_the_end() {
        assert_eq!(guess(&[1, 2, 1, 2, 1, 2, 1], 5), [2, 1, 2, 1, 2]);
        assert_eq!(guess(&[5, 5, 5, 5], 3), [5, 5, 5]);
    }

    #[test]
    fn guesses_stop_when_they_fail_and_are_tried_again_later() {
        let mut drafter = Drafter::default();
        let mut tried = 0;
        for _ in 0..400 {
            let wanted = drafter.wanted(Speculation::Auto, 0.2, 15);
            tried += wanted;
            if wanted > 0 {
                drafter.learn(wanted, 0);
            }
        }
        assert!((12..80).contains(&tried), "{tried}");
        // The text begins to repeat: so do the guesses.
        let mut accepted = 0;
        for _ in 0..2000 {
            let wanted = drafter.wanted(Speculation::Auto, 0.2, 15);
            accepted += wanted;
            if wanted > 0 {
                drafter.learn(wanted, wanted);
            }
        }
        assert!(accepted > 1500, "{accepted}");
    }

    #[test]
    fn where_rows_cost_as_much_as_tokens_nothing_is_guessed() {
        let mut drafter = Drafter::default();
        assert!((0..1000).all(|_| drafter.wanted(Speculation::Auto, 1.0, 15) == 0));
        assert_eq!(drafter.wanted(Speculation::Fixed(4), 1.0, 15), 4);
        assert_eq!(drafter.wanted(Speculation::Fixed(4), 1.0, 2), 2);
        assert_eq!(drafter.wanted(Speculation::Off, 0.0, 15), 0);
    }

    #[test]
    fn a_price_at_the_edge_does_not_make_guesses_flicker() {
        let mut drafter = Drafter::default();
        let mut changes = 0;
        let mut last = true;
        for step in 0..1000 {
            let price = if step % 2 == 0 { 0.58 } else { 0.62 };
            drafter.wanted(Speculation::Auto, price, 15);
            changes += u32::from(drafter.pays != last);
            last = drafter.pays;
        }
        assert_eq!(changes, 0);
    }

    proptest! {
        #[test]
        fn a_guess_is_always_tokens_that_were_there(tokens in prop::collection::vec(0u32..4, 0..200), most in 0usize..16) {
            let draft = guess(&tokens, most);
            prop_assert!(draft.is_empty() || draft.len() == most);
            prop_assert!(draft.iter().all(|token| tokens.contains(token)));
        }

        #[test]
        fn what_is_wanted_never_exceeds_what_is_allowed(
            price in 0.0f64..2.0, most in 0usize..16, outcomes in prop::collection::vec((0usize..16, 0usize..16), 0..100),
        ) {
            let mut drafter = Drafter::default();
            for (drafted, accepted) in outcomes {
                prop_assert!(drafter.wanted(Speculation::Auto, price, most) <= most);
                drafter.learn(drafted, accepted.min(drafted));
                prop_assert!((0.0..=1.0).contains(&drafter.acceptance));
            }
        }
    }
}
