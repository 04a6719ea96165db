//! How long an answer will become, learned from answers: by how its prompt begins, and by how long it is.
//!
//! Requests of one application begin alike (a system prompt) and are answered at alike lengths. Lengths are kept as
//! histograms of doubling lengths that forget; where too little is known of one kind, a wider kind answers, and in the end
//! nobody: then the scheduler does what it does without.

use std::collections::HashMap;

/// Answers of a kind before it says anything.
const LEAST_KNOWN: f32 = 16.0;

/// Weight of what is known after each further answer: about the last 200 count.
const FORGETTING: f32 = 0.995;

/// Beginnings that are remembered at most; beyond that the one longest unused is forgotten.
const MOST_BEGINNINGS: usize = 256;

/// Half powers of two: 1 to about 1 M tokens.
const BINS: usize = 40;

/// What is known of a request before its answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Names how the prompt begins; `None` for prompts too short to say.
    pub beginning: Option<u128>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
}

/// How long an answer will become, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// As many answers are shorter as are longer.
    pub median: usize,
    /// Three of four are shorter.
    pub upper: usize,
}

#[derive(Clone, Debug)]
struct Lengths {
    bins: [f32; BINS],
    last_used: u64,
}

/// The learner.
#[derive(Clone, Debug, Default)]
pub struct LengthPredictor {
    beginnings: HashMap<u128, Lengths>,
    by_prompt: HashMap<u32, Lengths>,
    all: Lengths,
    answers: u64,
}

impl LengthPredictor {
    /// What to expect; `None` while too little is known.
    pub fn predict(&self, features: Features) -> Option<Prediction> {
        let beginning = features.beginning.and_then(|key| self.beginnings.get(&key));
        let by_prompt = self.by_prompt.get(&size(features.prompt_tokens));
        let mut kinds = [beginning, by_prompt, Some(&self.all)]
            .into_iter()
            .flatten();
        kinds.find_map(Lengths::predict)
    }

    /// An answer had so many tokens.
    pub fn learn(&mut self, features: Features, tokens: usize) {
        self.answers += 1;
        let now = self.answers;
        if let Some(key) = features.beginning {
            self.beginnings.entry(key).or_default().add(tokens, now);
            self.forget_beginnings();
        }
        self.by_prompt
            .entry(size(features.prompt_tokens))
            .or_default()
            .add(tokens, now);
        self.all.add(tokens, now);
    }

    fn forget_beginnings(&mut self) {
        if self.beginnings.len() > MOST_BEGINNINGS {
            let oldest = self
                .beginnings
                .iter()
                .min_by_key(|(_, lengths)| lengths.last_used);
            let oldest = oldest.map(|(key, _)| *key);
            oldest.and_then(|key| self.beginnings.remove(&key));
        }
    }
}

/// Prompts of one size: powers of two.
fn size(prompt_tokens: usize) -> u32 {
    prompt_tokens.max(1).ilog2()
}

impl Default for Lengths {
    fn default() -> Self {
        Self {
            bins: [0.0; BINS],
            last_used: 0,
        }
    }
}

impl Lengths {
    fn add(&mut self, tokens: usize, now: u64) {
        for weight in &mut self.bins {
            *weight *= FORGETTING;
        }
        let bin = (2.0 * (tokens.max(1) as f64).log2()) as usize;
        self.bins[bin.min(BINS - 1)] += 1.0;
        self.last_used = now;
    }

    fn predict(&self) -> Option<Prediction> {
        let known: f32 = self.bins.iter().sum();
        (known >= LEAST_KNOWN).then(|| Prediction {
            median: self.quantile(0.5 * known),
            upper: self.quantile(0.75 * known),
        })
    }

    /// The upper end of the bin in which this much weight is reached.
    fn quantile(&self, wanted: f32) -> usize {
        let mut weight = 0.0;
        let reached = self.bins.iter().position(|bin| {
            weight += bin;
            weight >= wanted
        });
        2f64.powf((reached.unwrap_or(BINS - 1) + 1) as f64 / 2.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::uniform;

    fn features(beginning: u128, prompt_tokens: usize) -> Features {
        Features {
            beginning: Some(beginning),
            prompt_tokens,
        }
    }

    #[test]
    fn says_nothing_until_enough_answers_are_known() {
        let mut predictor = LengthPredictor::default();
        for _ in 0..16 {
            assert_eq!(predictor.predict(features(1, 100)), None);
            predictor.learn(features(1, 100), 50);
        }
        predictor.learn(features(1, 100), 50);
        let prediction = predictor.predict(features(1, 100)).unwrap();
        assert!((50..=64).contains(&prediction.median), "{prediction:?}");
    }

    #[test]
    fn tells_applications_apart_and_falls_back_for_new_ones() {
        let mut predictor = LengthPredictor::default();
        for index in 0..300 {
            let short = (uniform(1, index) * 20.0) as usize + 5;
            predictor.learn(features(1, 1000), short);
            predictor.learn(features(2, 1000), short * 40);
        }
        let median = |beginning| predictor.predict(features(beginning, 1000)).unwrap().median;
        assert!(
            median(1) <= 32 && median(2) >= 400,
            "{} {}",
            median(1),
            median(2)
        );
        let unknown = predictor
            .predict(Features {
                beginning: None,
                prompt_tokens: 3,
            })
            .unwrap();
        assert!(unknown.median <= unknown.upper);
    }

    #[test]
    fn three_of_four_answers_are_within_the_upper_prediction() {
        let mut predictor = LengthPredictor::default();
        let length = |index| (2f64.powf(uniform(3, index) * 9.0)) as usize;
        for index in 0..1000 {
            predictor.learn(features(1, 10), length(index));
        }
        let upper = predictor.predict(features(1, 10)).unwrap().upper;
        let within = (1000..3000).filter(|index| length(*index) <= upper).count();
        assert!((1400..1900).contains(&within), "{within} of 2000");
    }

    #[test]
    fn what_it_remembers_is_bounded() {
        let mut predictor = LengthPredictor::default();
        for beginning in 0..2000 {
            predictor.learn(features(beginning, 10), usize::MAX);
        }
        assert_eq!(predictor.beginnings.len(), MOST_BEGINNINGS);
        assert!(predictor.beginnings.contains_key(&1999));
    }
}
