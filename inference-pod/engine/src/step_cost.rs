//! What a step costs, learned from steps: a part for any step, one for each token, one for what tokens look back at.

use std::ops::Add;
use std::time::Duration;

use crate::plan::{PlannedRow, StepPlan};

/// Tokens that cost as much as the fixed part of a step, before anything is known: reading the weights once is as much work
/// as some ten tokens.
const TOKENS_OF_FIXED_PART: f64 = 10.0;

/// Looking back at so many tokens costs as much as a token, before anything is known.
const SEEN_OF_A_TOKEN: f64 = 1000.0;

/// How far one step moves what is known.
const LEARNING_RATE: f64 = 0.1;

/// How far one step without prompts moves the number of guesses that are usual.
const DRAFTS_RATE: f64 = 0.1;

/// Tokens of prompts that a step takes at least, whatever they cost.
const LEAST_PROMPT_TOKENS: usize = 4;

/// What rows of a step ask of whoever computes them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Tokens, guesses included.
    pub tokens: f64,
    /// How many tokens each of them looks back at, itself included, added up.
    pub seen: f64,
}

impl StepWork {
    /// Of all rows together.
    pub fn of(rows: &[PlannedRow]) -> Self {
        let work = |row: &PlannedRow| {
            let (start, len) = (row.start as f64, row.len as f64);
            Self {
                tokens: len,
                seen: len * start + len * (len + 1.0) / 2.0,
            }
        };
        rows.iter().map(work).fold(Self::default(), Add::add)
    }

    fn times(self, factor: f64) -> Self {
        Self {
            tokens: self.tokens * factor,
            seen: self.seen * factor,
        }
    }
}

impl Add for StepWork {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            seen: self.seen + other.seen,
        }
    }
}

/// `seconds = fixed + token x tokens + seen x seen`, by normalised least mean squares: steps of one kind move what the formula
/// says of that kind and nothing else, so no direction is forgotten or blown up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    prices: Option<Prices>,
    /// Guesses that follow a row of decoding in a step without prompts.
    drafts_per_row: f64,
}

/// Seconds for the fixed part, a token, and a token that is looked back at.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Prices {
    fixed: f64,
    token: f64,
    seen: f64,
}

impl StepCost {
    /// A step of this plan took so long.
    pub fn learn(&mut self, plan: &StepPlan, took: Duration) {
        let decodes = plan.rows.iter().filter(|row| row.is_decode()).count();
        if decodes == plan.rows.len() && decodes > 0 {
            let drafts = plan.tokens() as f64 / decodes as f64 - 1.0;
            self.drafts_per_row += DRAFTS_RATE * (drafts - self.drafts_per_row);
        }
        self.learn_price(StepWork::of(&plan.rows), took.as_secs_f64());
    }

    fn learn_price(&mut self, work: StepWork, seconds: f64) {
        if work.tokens < 1.0 || seconds <= 0.0 {
            return;
        }
        // In units that are about as long as each other, so that all prices move alike.
        let units = [
            TOKENS_OF_FIXED_PART,
            work.tokens,
            work.seen / SEEN_OF_A_TOKEN,
        ];
        let Some(prices) = &mut self.prices else {
            let unit = seconds / units.iter().sum::<f64>();
            self.prices = Some(Prices {
                fixed: unit * TOKENS_OF_FIXED_PART,
                token: unit,
                seen: unit / SEEN_OF_A_TOKEN,
            });
            return;
        };
        let expected = prices.of(work);
        // A step that took several times what it should met something else than its rows.
        let error = (seconds - expected).clamp(-expected, expected);
        let step = LEARNING_RATE * error / units.iter().map(|unit| unit * unit).sum::<f64>();
        prices.fixed += step * units[0] * TOKENS_OF_FIXED_PART;
        prices.token += step * units[1];
        prices.seen += step * units[2] / SEEN_OF_A_TOKEN;
        for price in [&mut prices.fixed, &mut prices.token, &mut prices.seen] {
            *price = price.max(0.0);
        }
    }

    /// Tokens of a prompt, from position `position` of it on, that a step of these rows of decoding may take to last at most
    /// `slowdown` longer, as a part, than such a step lasts without prompts, its usual guesses included. `None` while it is not
    /// known what a step costs.
    pub fn affordable(&self, decodes: StepWork, slowdown: f64, position: usize) -> Option<usize> {
        let prices = self.prices?;
        let usual = prices.of(decodes.times(1.0 + self.drafts_per_row));
        let each = prices.token + prices.seen * position as f64;
        let tokens = (usual * (1.0 + slowdown) - prices.of(decodes)) / each.max(1e-9);
        Some((tokens.max(0.0) as usize).max(LEAST_PROMPT_TOKENS))
    }

    /// What a further row costs in a step of `rows`, as a part of what a row costs there on average: near 0 where weights
    /// are read for a few rows, 1 where arithmetic bounds the step.
    pub fn price(&self, rows: usize) -> f64 {
        let prices = self.prices.unwrap_or(Prices {
            fixed: TOKENS_OF_FIXED_PART,
            token: 1.0,
            seen: 0.0,
        });
        let tokens = prices.token * rows.max(1) as f64;
        let whole = prices.fixed + tokens;
        if whole > 0.0 { tokens / whole } else { 1.0 }
    }
}

impl Prices {
    fn of(self, work: StepWork) -> f64 {
        self.fixed + self.token * work.tokens + self.seen * work.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::SequenceId;

    /// Rows of decoding behind `context` tokens, each with `drafts` guesses, and a piece of a prompt.
    fn plan(
        rows: usize,
        context: usize,
        drafts: usize,
        prompt: Option<(usize, usize)>,
    ) -> StepPlan {
        let row = |start, len, drafts| PlannedRow {
            sequence: SequenceId(0),
            start,
            len,
            logits: 1,
            draws: true,
            drafts,
        };
        let decodes = (0..rows).map(|_| row(context, 1 + drafts, drafts));
        let prompt = prompt.map(|(start, len)| row(start, len, 0));
        StepPlan {
            rows: decodes.chain(prompt).collect(),
            ..StepPlan::default()
        }
    }

    fn seconds(plan: &StepPlan, [fixed, token, seen]: [f64; 3]) -> Duration {
        let work = StepWork::of(&plan.rows);
        Duration::from_secs_f64(fixed + token * work.tokens + seen * work.seen)
    }

    fn learned(prices: [f64; 3]) -> StepCost {
        let mut cost = StepCost::default();
        for step in 0..4000 {
            let (rows, context) = (
                [1, 5, 2, 9, 32, 3][step % 6],
                [10, 900, 200, 3000][step % 4],
            );
            let plan = plan(rows, context, 0, None);
            cost.learn(&plan, seconds(&plan, prices));
        }
        cost
    }

    #[test]
    fn learns_what_rows_cost_from_steps_of_different_sizes() {
        let memory_bound = learned([0.010, 0.0002, 0.0]);
        assert!(memory_bound.price(1) < 0.04, "{memory_bound:?}");
        let compute_bound = learned([0.0001, 0.005, 0.0]);
        assert!(compute_bound.price(1) > 0.9, "{compute_bound:?}");
    }

    #[test]
    fn a_row_is_dearer_in_a_larger_step() {
        let cost = StepCost::default();
        assert!(cost.price(1) < cost.price(8) && cost.price(8) < cost.price(64));
        assert!(cost.price(1) < 0.1 && cost.price(1000) > 0.9 && cost.price(0) <= cost.price(1));
    }

    fn affordable(cost: StepCost, rows: usize, context: usize, slowdown: f64, at: usize) -> usize {
        let plan = plan(rows, context, 0, None);
        let work = StepWork::of(&plan.rows);
        cost.affordable(work, slowdown, at).unwrap()
    }

    #[test]
    fn prompts_get_what_lengthens_a_step_by_the_part_allowed() {
        let cost = learned([0.010, 0.0005, 0.0]);
        // 14 ms for the rows alone, of which 40 % are 11 tokens.
        let tokens = affordable(cost, 8, 100, 0.4, 0);
        assert!((10..=12).contains(&tokens), "{tokens}");
        assert_eq!(
            affordable(cost, 8, 100, 0.0, 0),
            LEAST_PROMPT_TOKENS,
            "a prompt always advances"
        );
        assert_eq!(
            StepCost::default().affordable(StepWork::default(), 0.4, 0),
            None
        );
    }

    #[test]
    fn a_token_far_inside_a_prompt_costs_more_and_those_that_decode_far_inside_theirs_last_longer()
    {
        let cost = learned([0.010, 0.0005, 5e-7]);
        let (first, later) = (
            affordable(cost, 8, 100, 0.4, 0),
            affordable(cost, 8, 100, 0.4, 4000),
        );
        // 0.5 ms, and 2.5 ms at position 4,000.
        assert!(
            (4..=6).contains(&(first / later.max(1))) || later == LEAST_PROMPT_TOKENS,
            "{first} {later}"
        );
        assert!(affordable(cost, 8, 4000, 0.4, 0) > 3 * first / 2);
    }

    #[test]
    fn steps_with_prompts_teach_what_steps_cost_while_one_is_worked_through() {
        let prices = [0.010, 0.0005, 5e-7];
        let mut cost = learned([0.005, 0.0002, 0.0]);
        for piece in 0..400 {
            let plan = plan(8, 300 + piece, 0, Some((piece * 10, 10)));
            cost.learn(&plan, seconds(&plan, prices));
        }
        let plan = plan(8, 700, 0, Some((4000, 10)));
        let expected = seconds(&plan, prices).as_secs_f64();
        let known = cost.prices.unwrap().of(StepWork::of(&plan.rows));
        assert!((known / expected - 1.0).abs() < 0.05, "{known} {expected}");
    }

    #[test]
    fn the_guesses_of_steps_without_prompts_are_time_that_a_prompt_may_have() {
        let prices = [0.002, 0.0005, 0.0];
        let mut cost = learned(prices);
        let without = affordable(cost, 8, 100, 0.4, 0);
        for _ in 0..100 {
            let plan = plan(8, 100, 2, None);
            cost.learn(&plan, seconds(&plan, prices));
        }
        // 6 ms become 14 ms with 16 guesses: 40 % of it, and the guesses' own 8 ms.
        let with = affordable(cost, 8, 100, 0.4, 0);
        assert!(
            (4..=5).contains(&without) && (26..=28).contains(&with),
            "{without} {with}"
        );
    }

    #[test]
    fn one_step_that_stood_still_changes_little() {
        let mut cost = learned([0.010, 0.0005, 0.0]);
        let before = cost.price(4);
        cost.learn(&plan(4, 100, 0, None), Duration::from_secs(30));
        cost.learn(&StepPlan::default(), Duration::from_secs(30));
        cost.learn(&plan(4, 100, 0, None), Duration::ZERO);
        assert!(
            (cost.price(4) / before - 1.0).abs() < 0.2,
            "{before} {}",
            cost.price(4)
        );
    }
}
