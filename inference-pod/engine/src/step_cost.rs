//! What a step costs, learned from steps: a part for any step, one for each row of decoding, one for each token of a prompt.

use std::time::Duration;

/// Rows of decoding that cost as much as the fixed part of a step, before anything is known: reading the weights once is as
/// much work as some ten rows.
const ROWS_OF_FIXED_PART: f64 = 10.0;

/// How far one step of decodes moves what is known.
const LEARNING_RATE: f64 = 0.05;

/// How far one step with prompts moves what a token of theirs is known to cost: much, for it grows with what lies before it.
const PROMPT_LEARNING_RATE: f64 = 0.25;

/// Tokens of prompts that a step takes at least, whatever they cost.
const LEAST_PROMPT_TOKENS: usize = 4;

/// `seconds = fixed + row x rows + prompt x tokens of prompts`. The first two by normalised least mean squares: steps of one
/// size move what the line says at that size and nothing else, so no direction is forgotten or blown up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    line: Option<Line>,
    prompt: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    fixed: f64,
    row: f64,
}

impl StepCost {
    /// A step of `rows` tokens of decoding, drafts included, took so long.
    pub fn learn(&mut self, rows: usize, took: Duration) {
        let (rows, seconds) = (rows as f64, took.as_secs_f64());
        if rows < 1.0 || seconds <= 0.0 {
            return;
        }
        let Some(line) = &mut self.line else {
            let row = seconds / (ROWS_OF_FIXED_PART + rows);
            self.line = Some(Line {
                fixed: row * ROWS_OF_FIXED_PART,
                row,
            });
            return;
        };
        let error = seconds - line.at(rows);
        // A step that took several times what it should met something else than its rows.
        let error = error.clamp(-line.at(rows), line.at(rows));
        // Ten rows are as long as one fixed part, so that both move alike.
        let length = ROWS_OF_FIXED_PART.powi(2) + rows * rows;
        line.fixed =
            (line.fixed + LEARNING_RATE * error * ROWS_OF_FIXED_PART.powi(2) / length).max(0.0);
        line.row = (line.row + LEARNING_RATE * error * rows / length).max(0.0);
    }

    /// A step of `rows` tokens of decoding and `prompt_tokens` of prompts took so long.
    pub fn learn_mixed(&mut self, rows: usize, prompt_tokens: usize, took: Duration) {
        if prompt_tokens == 0 {
            self.learn(rows, took);
            return;
        }
        let Some(line) = self.line else {
            return;
        };
        let rest = (took.as_secs_f64() - line.at(rows as f64)).max(0.0);
        let each = rest / prompt_tokens as f64;
        // As in `affordable`: a token of a prompt costs about a row, until seen. And it never costs nothing.
        let known = self
            .prompt
            .unwrap_or(line.row)
            .max(line.row * 0.01)
            .max(1e-9);
        // A step that took several times what it should met something else than its prompts.
        let each = each.clamp(known / 4.0, known * 4.0);
        self.prompt = Some(known + PROMPT_LEARNING_RATE * (each - known));
    }

    /// Tokens of prompts that a step of `rows` may take to last at most `slowdown` longer, as a part of what the rows alone
    /// take. `None` while it is not known what a step costs.
    pub fn affordable(&self, rows: usize, slowdown: f64) -> Option<usize> {
        let line = self.line?;
        // A token of a prompt costs about a row, until seen.
        let each = self.prompt.unwrap_or(line.row).max(1e-9);
        let tokens = line.at(rows as f64) * slowdown / each;
        Some((tokens as usize).max(LEAST_PROMPT_TOKENS))
    }

    /// What a further row costs in a step of `rows`, as a part of what a row costs there on average: near 0 where weights
    /// are read for a few rows, 1 where arithmetic bounds the step.
    pub fn price(&self, rows: usize) -> f64 {
        let line = self.line.unwrap_or(Line {
            fixed: ROWS_OF_FIXED_PART,
            row: 1.0,
        });
        let rows = rows.max(1) as f64;
        let whole = line.at(rows);
        if whole > 0.0 {
            line.row * rows / whole
        } else {
            1.0
        }
    }
}

impl Line {
    fn at(self, rows: f64) -> f64 {
        self.fixed + self.row * rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(fixed: f64, row: f64) -> StepCost {
        let mut cost = StepCost::default();
        for step in 0..4000 {
            let rows = [1, 5, 2, 9, 32, 3][step % 6];
            cost.learn(rows, Duration::from_secs_f64(fixed + row * rows as f64));
        }
        cost
    }

    #[test]
    fn learns_what_rows_cost_from_steps_of_different_sizes() {
        let memory_bound = learned(0.010, 0.0002);
        assert!(memory_bound.price(1) < 0.04, "{memory_bound:?}");
        let compute_bound = learned(0.0001, 0.005);
        assert!(compute_bound.price(1) > 0.9, "{compute_bound:?}");
    }

    #[test]
    fn a_row_is_dearer_in_a_larger_step() {
        let cost = StepCost::default();
        assert!(cost.price(1) < cost.price(8) && cost.price(8) < cost.price(64));
        assert!(cost.price(1) < 0.1 && cost.price(1000) > 0.9 && cost.price(0) <= cost.price(1));
    }

    #[test]
    fn prompts_get_what_lengthens_a_step_by_the_part_allowed() {
        let mut cost = learned(0.010, 0.0005);
        for step in 0..50 {
            let tokens = 100 + step;
            let took = 0.010 + 8.0 * 0.0005 + tokens as f64 * 0.001;
            cost.learn_mixed(8, tokens, Duration::from_secs_f64(took));
        }
        // 14 ms for the rows alone, of which 40 % are 5.6 tokens of a prompt.
        let affordable = cost.affordable(8, 0.4).unwrap();
        assert!((4..=6).contains(&affordable), "{affordable}");
        assert!((50..=60).contains(&cost.affordable(8, 4.0).unwrap()));
        // A step that took no time at all is forgotten again.
        cost.learn_mixed(8, 10, Duration::ZERO);
        (0..20).for_each(|_| cost.learn_mixed(8, 100, Duration::from_millis(114)));
        assert!((4..=6).contains(&cost.affordable(8, 0.4).unwrap()));
        assert_eq!(
            cost.affordable(8, 0.0),
            Some(LEAST_PROMPT_TOKENS),
            "a prompt always advances"
        );
        assert_eq!(StepCost::default().affordable(8, 0.4), None);
    }

    #[test]
    fn one_step_that_stood_still_changes_little() {
        let mut cost = learned(0.010, 0.0005);
        let before = cost.price(4);
        cost.learn_mixed(4, 0, Duration::from_secs(30));
        cost.learn(0, Duration::from_secs(30));
        cost.learn(4, Duration::ZERO);
        assert!(
            (cost.price(4) / before - 1.0).abs() < 0.2,
            "{before} {}",
            cost.price(4)
        );
    }
}
