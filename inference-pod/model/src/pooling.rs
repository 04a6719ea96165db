//! From the states of a text's tokens to one vector.

use crate::config::Pooling;

/// What the tokens' states of a text come to, collected in the order of the tokens, however the text is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct PooledStates {
    pooling: Pooling,
    /// The sum of the states that count.
    sums: Vec<f64>,
    tokens: usize,
}

impl PooledStates {
    /// Of no token yet.
    pub fn new(pooling: Pooling) -> Self {
        Self {
            pooling,
            sums: Vec::new(),
            tokens: 0,
        }
    }

    /// The next token's state; of all tokens as many values. With [`Pooling::Last`] those before the last may be left out.
    pub fn push(&mut self, state: &[f32]) {
        let starts_anew = match self.pooling {
            Pooling::Mean => self.tokens == 0,
            Pooling::First if self.tokens > 0 => return,
            Pooling::First | Pooling::Last => true,
        };
        self.tokens += 1;
        if starts_anew {
            self.sums.clear();
            self.sums.resize(state.len(), 0.0);
        }
        for (sum, &value) in self.sums.iter_mut().zip(state) {
            *sum += f64::from(value);
        }
    }

    /// The text's vector: of length 1, or of zeros where the states are.
    pub fn vector(&self) -> Vec<f32> {
        // A mean and a sum have the same direction, and no more is left of them.
        let length = self.sums.iter().map(|x| x * x).sum::<f64>().sqrt();
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        self.sums.iter().map(|x| (x * scale) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, states: &[f32]) -> Vec<f32> {
        let mut pooled = PooledStates::new(pooling);
        for state in states.chunks_exact(2) {
            pooled.push(state);
        }
        pooled.vector()
    }

    #[test]
    fn vectors_point_where_the_chosen_states_do_and_have_length_1() {
        let states = [3.0, 4.0, 5.0, 12.0, 0.0, -2.0];
        assert_eq!(pooled(Pooling::First, &states), [0.6, 0.8]);
        assert_eq!(pooled(Pooling::Last, &states), [0.0, -1.0]);
        assert_eq!(pooled(Pooling::Last, &states[4..]), [0.0, -1.0]);
        let mean = pooled(Pooling::Mean, &states);
        let length = 8f32.hypot(14.0);
        assert!((mean[0] - 8.0 / length).abs() < 1e-6 && (mean[1] - 14.0 / length).abs() < 1e-6);
        assert_eq!(pooled(Pooling::Mean, &[0.0; 4]), [0.0, 0.0]);
    }
}
