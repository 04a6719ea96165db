//! How fast pairs of a head turn with position: a base, and the scalings that stretch it beyond the context of training.
//!
//! YaRN is "YaRN: Efficient Context Window Extension of Large Language Models" (Peng et al., 2023), Llama 3's scaling that of its
//! reference code, LongRoPE that of Phi-3's: factors a pair, one list for short and one for long contexts.

use std::f64::consts::TAU;

use pagoda_kernels::{RopeStyle, RopeTable};

use crate::error::LoadError;

/// One rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    pub style: RopeStyle,
    /// Leading values of a head that turn; even.
    pub dims: usize,
    /// Pair `i` turns by `base^(-2i / dims)` a position.
    pub base: f64,
    pub scaling: RopeScaling,
}

/// What is done to the frequencies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    None,
    /// Positions are divided by the factor.
    Linear(f64),
    Llama3(Llama3Scaling),
    Yarn(YarnScaling),
    Long(LongScaling),
}

/// Pairs are divided by factors of their own, others for contexts beyond the original one than up to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LongScaling {
    pub original_context: f64,
    /// A factor a pair, or none where a tensor holds them.
    pub short: Vec<f64>,
    pub long: Vec<f64>,
    /// Multiplies cosines and sines.
    pub magnitude: f64,
}

impl LongScaling {
    /// Whether the factors for long contexts are the ones.
    pub fn is_long(&self, context_tokens: usize) -> bool {
        context_tokens as f64 > self.original_context
    }

    /// What cosines and sines are multiplied by where the model's longest context is `stretch` times the original one.
    pub fn usual_magnitude(stretch: f64, original_context: f64) -> f64 {
        if stretch <= 1.0 {
            1.0
        } else {
            (1.0 + stretch.ln() / original_context.ln()).sqrt()
        }
    }

    fn factor(&self, pair: usize, context_tokens: usize) -> f64 {
        let list = if self.is_long(context_tokens) {
            &self.long
        } else {
            &self.short
        };
        list.get(pair).copied().unwrap_or(1.0)
    }
}

/// Wave lengths beyond `original_context / low` are divided by `factor`, those below `original_context / high` stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Llama3Scaling {
    pub factor: f64,
    pub low: f64,
    pub high: f64,
    pub original_context: f64,
}

/// Pairs that turn fewer than `beta_slow` times within the original context are divided by `factor`, those that turn more than
/// `beta_fast` times stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct YarnScaling {
    pub factor: f64,
    pub original_context: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    /// Multiplies cosines and sines.
    pub magnitude: f64,
    /// The range between both is widened to whole pairs.
    pub truncate: bool,
}

impl YarnScaling {
    /// The paper's scaling of scores, as a factor of cosines and sines.
    pub fn usual_magnitude(factor: f64) -> f64 {
        1.0 + 0.1 * factor.max(1.0).ln()
    }

    /// How much of its own speed pair `pair` keeps: 0 to 1.
    fn kept(&self, pair: usize, dims: usize, base: f64) -> f64 {
        let pair_of = |turns: f64| {
            dims as f64 * (self.original_context / (turns * TAU)).ln() / (2.0 * base.ln())
        };
        let (mut low, mut high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
        1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
    }
}

impl Llama3Scaling {
    fn scaled(&self, frequency: f64) -> f64 {
        let wave_length = TAU / frequency;
        if wave_length < self.original_context / self.high {
            return frequency;
        }
        if wave_length > self.original_context / self.low {
            return frequency / self.factor;
        }
        let smooth = (self.original_context / wave_length - self.low) / (self.high - self.low);
        (1.0 - smooth) * frequency / self.factor + smooth * frequency
    }
}

impl Rope {
    /// Refuses what cannot be computed with heads of `head_dim` values.
    pub fn check(&self, head_dim: usize) -> Result<(), LoadError> {
        let wrong = |what: String| Err(LoadError::Invalid(what));
        let dims = self.dims;
        if !dims.is_multiple_of(2) || dims == 0 || dims > head_dim {
            return wrong(format!(
                "position turns {dims} of {head_dim} values of a head"
            ));
        }
        if let RopeScaling::Long(long) = &self.scaling
            && let Some(list) = [&long.short, &long.long]
                .into_iter()
                .find(|list| !list.is_empty() && list.len() != dims / 2)
        {
            return wrong(format!(
                "{} position factors for {} pairs of values",
                list.len(),
                dims / 2
            ));
        }
        let valid = |x: f64| x.is_finite() && x >= 0.0;
        let usable = |context| self.frequencies(context, &[]).into_iter().all(valid);
        if usable(0) && usable(usize::MAX) && valid(self.magnitude()) {
            return Ok(());
        }
        wrong(format!(
            "position scaling {} with base {} gives no usable frequencies",
            self.scaling.name(),
            self.base
        ))
    }

    /// Turns a position of each pair, in radians, where contexts up to `context_tokens` are served; divided by `factors` too unless
    /// these are empty.
    pub fn frequencies(&self, context_tokens: usize, factors: &[f32]) -> Vec<f64> {
        let scaled = |pair: usize| {
            let own = self.base.powf(-2.0 * pair as f64 / self.dims as f64);
            let scaled = match &self.scaling {
                RopeScaling::None => own,
                RopeScaling::Linear(factor) => own / factor,
                RopeScaling::Llama3(scaling) => scaling.scaled(own),
                RopeScaling::Long(long) => own / long.factor(pair, context_tokens),
                RopeScaling::Yarn(yarn) => {
                    let kept = yarn.kept(pair, self.dims, self.base);
                    own / yarn.factor * (1.0 - kept) + own * kept
                }
            };
            scaled / factors.get(pair).map_or(1.0, |&factor| f64::from(factor))
        };
        (0..self.dims / 2).map(scaled).collect()
    }

    /// What cosines and sines are multiplied by.
    pub fn magnitude(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.magnitude,
            RopeScaling::Long(long) => long.magnitude,
            RopeScaling::None | RopeScaling::Linear(_) | RopeScaling::Llama3(_) => 1.0,
        }
    }

    /// A table to fill with positions; arguments as in [`Rope::frequencies`].
    pub fn table(&self, context_tokens: usize, factors: &[f32]) -> RopeTable {
        let frequencies = self.frequencies(context_tokens, factors);
        RopeTable::from_frequencies(self.style, frequencies, self.magnitude())
    }
}

impl RopeScaling {
    fn name(&self) -> String {
        match self {
            Self::None => "none".into(),
            Self::Linear(factor) => format!("linear by {factor}"),
            Self::Llama3(scaling) => format!("{scaling:?}"),
            Self::Yarn(scaling) => format!("{scaling:?}"),
            Self::Long(scaling) => format!("longrope beyond {}", scaling.original_context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(dims: usize, base: f64, scaling: RopeScaling) -> Rope {
        Rope {
            style: RopeStyle::Halves,
            dims,
            base,
            scaling,
        }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs()
    }

    #[test]
    fn linear_scaling_and_factors_slow_every_pair() {
        let plain = rope(8, 1e4, RopeScaling::None).frequencies(1, &[]);
        assert!(close(plain[3], 1e4f64.powf(-0.75)));
        let linear = rope(8, 1e4, RopeScaling::Linear(4.0)).frequencies(1, &[1.0, 1.0, 2.0, 1.0]);
        assert!(close(linear[1], plain[1] / 4.0) && close(linear[2], plain[2] / 8.0));
    }

    #[test]
    fn llama_3_scaling_keeps_fast_pairs_slows_slow_ones_and_blends_between() {
        let scaling = Llama3Scaling {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original_context: 8192.0,
        };
        let plain = rope(128, 5e5, RopeScaling::None).frequencies(1, &[]);
        let scaled = rope(128, 5e5, RopeScaling::Llama3(scaling)).frequencies(1, &[]);
        assert_eq!(plain[0].to_bits(), scaled[0].to_bits());
        assert!(close(scaled[63], plain[63] / 8.0));
        let ratios: Vec<f64> = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
        assert!(ratios.windows(2).all(|w| w[0] <= w[1] + 1e-12));
        // Pair 32 has a wave length of 4442.9: smooth = (8192 / 4442.9 - 1) / 3.
        let smooth = (8192.0 * plain[32] / TAU - 1.0) / 3.0;
        assert!((0.0..1.0).contains(&smooth));
        assert!(close(ratios[32], 1.0 / ((1.0 - smooth) / 8.0 + smooth)));
    }

    #[test]
    fn yarn_keeps_pairs_that_turn_often_and_slows_those_that_hardly_turn() {
        let yarn = YarnScaling {
            factor: 4.0,
            original_context: 32768.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            magnitude: YarnScaling::usual_magnitude(4.0),
            truncate: true,
        };
        let plain = rope(128, 1e6, RopeScaling::None).frequencies(1, &[]);
        let scaled = rope(128, 1e6, RopeScaling::Yarn(yarn));
        assert!(close(scaled.magnitude(), 1.138_629_436_111_989));
        let scaled = scaled.frequencies(1, &[]);
        // The paper's correction range for these numbers is pairs 23 to 40.
        assert!((0..=23).all(|i| close(scaled[i], plain[i])));
        assert!((40..64).all(|i| close(scaled[i], plain[i] / 4.0)));
        let kept = 1.0 - (30.0 - 23.0) / 17.0;
        assert!(close(scaled[30], plain[30] * (kept + (1.0 - kept) / 4.0)));
    }

    #[test]
    fn long_rope_takes_the_factors_of_the_context_served() {
        let long = LongScaling {
            original_context: 4096.0,
            short: vec![1.0, 2.0],
            long: vec![4.0, 8.0],
            magnitude: LongScaling::usual_magnitude(32.0, 4096.0),
        };
        assert!(close(long.magnitude, (1.0 + 5.0f64 / 12.0).sqrt()));
        let rope = rope(4, 1e4, RopeScaling::Long(long));
        let (short, long) = (rope.frequencies(4096, &[]), rope.frequencies(4097, &[]));
        assert!(close(short[1], 0.01 / 2.0) && close(long[1], 0.01 / 8.0));
        assert!(close(short[0], 1.0) && close(long[0], 0.25));
    }

    #[test]
    fn numbers_that_give_no_frequencies_are_refused() {
        let refused = |rope: Rope| rope.check(64).unwrap_err().to_string();
        assert!(refused(rope(66, 1e4, RopeScaling::None)).contains("66 of 64"));
        assert!(refused(rope(7, 1e4, RopeScaling::None)).contains('7'));
        assert!(refused(rope(64, 1e4, RopeScaling::Linear(0.0))).contains("linear"));
        let mut long = LongScaling {
            original_context: 4096.0,
            short: vec![1.0; 32],
            long: vec![1.0; 31],
            magnitude: 1.0,
        };
        assert!(refused(rope(64, 1e4, RopeScaling::Long(long.clone()))).contains("31"));
        long.long = vec![0.0; 32];
        assert!(refused(rope(64, 1e4, RopeScaling::Long(long))).contains("longrope"));
        assert!(rope(64, 1e4, RopeScaling::None).check(64).is_ok());
    }
}
