//! Log probabilities of the model's own distribution.

/// What stands for the logarithm of zero: JSON has no infinity, and OpenAI's API has this.
const IMPOSSIBLE: f32 = -9999.0;

/// The natural logarithm of a token's probability, beside the most probable tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: u32,
    /// Its log probability; -9999 for what cannot be.
    pub logprob: f32,
    /// The most probable tokens and theirs, most probable first, the smaller id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// Log probability of `token` under `softmax(logits)`, with the `top` most probable tokens. Logits that are no numbers
/// count as impossible; a token outside of `logits` is impossible.
pub fn logprobs_of(logits: &[f32], token: u32, top: usize) -> TokenLogprobs {
    let log_total = log_sum_exp(logits);
    TokenLogprobs {
        token,
        logprob: logprob(logits.get(token as usize).copied(), log_total),
        top: most_probable(logits, log_total, top),
    }
}

fn logprob(logit: Option<f32>, log_total: f64) -> f32 {
    let value = logit.map_or(f64::NAN, |logit| f64::from(logit) - log_total) as f32;
    // A NaN fails the comparison too.
    if value > IMPOSSIBLE {
        value
    } else {
        IMPOSSIBLE
    }
}

/// `ln(sum(exp(logits)))` over what is a number, shifted by the greatest so that nothing overflows.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let numbers = || logits.iter().copied().filter(|logit| !logit.is_nan());
    let best = numbers().fold(f32::NEG_INFINITY, f32::max);
    if best.is_infinite() {
        return f64::from(best);
    }
    let sum: f64 = numbers().map(|logit| f64::from((logit - best).exp())).sum();
    f64::from(best) + sum.ln()
}

fn most_probable(logits: &[f32], log_total: f64, top: usize) -> Vec<(u32, f32)> {
    let mut tokens: Vec<(u32, f32)> = (0u32..)
        .zip(logits.iter().copied())
        .filter(|(_, logit)| !logit.is_nan())
        .collect();
    let top = top.min(tokens.len());
    if top == 0 {
        return Vec::new();
    }
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    tokens.select_nth_unstable_by(top - 1, order);
    tokens.truncate(top);
    tokens.sort_unstable_by(order);
    for (_, value) in &mut tokens {
        *value = logprob(Some(*value), log_total);
    }
    tokens
}

/// The raw logits of one step, kept while they are changed: which token will be chosen is not known yet.
pub(super) struct RawLogprobs {
    logits: Vec<f32>,
    top: usize,
}

impl RawLogprobs {
    pub(super) fn new(logits: &[f32], top: usize) -> Self {
        Self {
            logits: logits.to_vec(),
            top,
        }
    }

    pub(super) fn of(&self, token: u32) -> TokenLogprobs {
        logprobs_of(&self.logits, token, self.top)
    }
}
