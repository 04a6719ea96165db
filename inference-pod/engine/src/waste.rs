//! KV memory that is held and empty.

use std::ops::AddAssign;

/// How well blocks are filled over time: places for tokens, added up over the steps in which they are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filling {
    /// Places that hold no token.
    pub unfilled: u64,
    /// All places.
    pub held: u64,
}

impl Filling {
    /// Of one request over its life: it holds its prompt first, then one token more each step.
    pub fn of_request(prompt_tokens: u64, output_tokens: u64, block_tokens: u64) -> Self {
        let mut filling = Self::default();
        for tokens in prompt_tokens..=prompt_tokens + output_tokens.saturating_sub(1) {
            let held = tokens.next_multiple_of(block_tokens);
            filling += Self {
                unfilled: held - tokens,
                held,
            };
        }
        filling
    }

    /// The part that is lost, 0 to 1.
    pub fn waste(self) -> f64 {
        self.unfilled as f64 / self.held.max(1) as f64
    }
}

impl AddAssign for Filling {
    fn add_assign(&mut self, other: Self) {
        self.unfilled += other.unfilled;
        self.held += other.held;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_loses_the_empty_part_of_its_last_block_at_each_step() {
        let filling = Filling::of_request(30, 4, 16);
        // 30 and 31 and 32 tokens in two blocks, 33 in three.
        assert_eq!((filling.unfilled, filling.held), (2 + 1 + 15, 3 * 32 + 48));
        assert_eq!(Filling::default().waste().to_bits(), 0.0f64.to_bits());
    }

    #[test]
    fn long_requests_lose_less_than_short_ones() {
        let waste = |prompt| Filling::of_request(prompt, 64, 16).waste();
        assert!(waste(2000) < 0.01 && waste(20) > 0.1);
    }
}
