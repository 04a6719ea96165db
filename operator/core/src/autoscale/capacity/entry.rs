//! What is known of the pods of one revision on one kind of hardware.

use std::sync::Arc;

use pagoda_crds::api::CapacityStatus;

use super::{
    growth::Growth,
    queueing::PodModel,
    regression::Regression,
    tuning::{
        BELIEVE_BUSY_SECONDS, BELIEVE_INTERVALS, EXTRAPOLATE, FEWEST_SEQUENCES, KV_SHARE, STARTS,
    },
};
use crate::autoscale::{Millis, PodReading};

/// See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Revision of the pods.
    pub revision: Arc<str>,
    /// What they run on.
    pub hardware: Arc<str>,
    /// When such a pod was last seen; none since it was restored.
    pub seen: Option<Millis>,
    regression: Regression,
    /// The most sequences that were seen to decode at once.
    sequences: f64,
    /// What the engine runs at most; 0 until told.
    most_sequences: f64,
    most_step_tokens: f64,
    /// Share of the KV cache that a sequence takes; 0 until known.
    kv_share: f64,
    /// Milliseconds from creation to readiness, of the last few pods.
    starts: Vec<u32>,
    /// Requests per second within the targets, when that was last reckoned, and the tokens of each.
    carries: Option<Carries>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Carries {
    at: Millis,
    rate: f64,
    generated_tokens: f64,
}

impl Entry {
    /// Nothing is known yet.
    pub fn new(revision: Arc<str>, hardware: Arc<str>) -> Self {
        Self {
            revision,
            hardware,
            seen: None,
            regression: Regression::default(),
            sequences: 0.0,
            most_sequences: 0.0,
            most_step_tokens: 0.0,
            kv_share: 0.0,
            starts: Vec::new(),
            carries: None,
        }
    }

    /// Takes in what a pod did, and how it stands.
    pub fn note(&mut self, growth: &Growth) {
        let Some((factors, seconds)) = growth.factors() else {
            return;
        };
        if seconds <= 1e-4 {
            return;
        }
        self.regression.note(factors, seconds);
        if let Some(sequences) = growth.sequences() {
            self.sequences = self.sequences.max(sequences.min(1e5));
        }
    }

    /// Takes in what a pod says of itself.
    pub fn note_state(&mut self, reading: &PodReading) {
        const LEARN: f64 = 0.05;
        if let Some(work) = reading.work {
            self.most_sequences = work.most_sequences as f64;
            self.most_step_tokens = work.most_step_tokens as f64;
        }
        let usage = reading.kv_usage_milli.filter(|milli| *milli > 0);
        if let (Some(milli), true) = (usage, reading.running > 0) {
            let share = f64::from(milli) / 1000.0 / reading.running as f64;
            self.kv_share = if self.kv_share > 0.0 {
                self.kv_share + LEARN * (share - self.kv_share)
            } else {
                share
            };
        }
    }

    /// A pod took so long from its creation until it answered.
    pub fn note_start(&mut self, millis: Millis) {
        if self.starts.len() >= STARTS {
            self.starts.remove(0);
        }
        self.starts.push(u32::try_from(millis).unwrap_or(u32::MAX));
    }

    /// Whether any start is known.
    pub fn has_started(&self) -> bool {
        !self.starts.is_empty()
    }

    /// Median time from creation to readiness.
    pub fn start_millis(&self) -> Option<Millis> {
        let mut sorted = self.starts.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map(|m| Millis::from(*m))
    }

    /// What a step takes, if enough was seen to believe it.
    pub fn model(&self) -> Option<PodModel> {
        let [prompt, step, sequence] = self.regression.costs();
        let believed = self.regression.intervals() >= BELIEVE_INTERVALS
            && self.regression.seconds() >= BELIEVE_BUSY_SECONDS
            && step + sequence > 0.0;
        believed.then(|| PodModel {
            prompt_token_seconds: prompt / 1000.0,
            step_seconds: step,
            sequence_seconds: sequence,
            most_sequences: self.trusted_sequences(),
            most_step_tokens: self.most_step_tokens,
        })
    }

    /// Sequences that a pod may be given at once: what its engine runs and its KV cache holds, and not far more than was seen.
    fn trusted_sequences(&self) -> f64 {
        let mut most = (self.sequences * EXTRAPOLATE).max(FEWEST_SEQUENCES);
        if self.most_sequences >= 1.0 {
            most = most.min(self.most_sequences);
        }
        if self.kv_share > 0.0 {
            most = most.min(KV_SHARE / self.kv_share);
        }
        most.max(1.0)
    }

    /// Remembers what a pod carries within a target; of several targets of one moment the hardest counts.
    pub fn set_carries(&mut self, at: Millis, rate: f64, generated_tokens: f64) {
        let rate = match self.carries {
            Some(before) if before.at == at => before.rate.min(rate),
            _ => rate,
        };
        self.carries = Some(Carries {
            at,
            rate,
            generated_tokens,
        });
    }

    /// As the status has it; none when nothing is known.
    pub fn status(&self) -> Option<CapacityStatus> {
        let model = self.model();
        let carries = self.carries.filter(|c| c.rate > 0.0);
        let status = CapacityStatus {
            revision: self.revision.to_string(),
            hardware: self.hardware.to_string(),
            tokens_per_second: carries.map(|c| whole(c.rate * c.generated_tokens)),
            prefill_tokens_per_second: model
                .filter(|_| self.regression.has_seen(0))
                .and_then(|m| (m.prompt_token_seconds > 0.0).then(|| 1.0 / m.prompt_token_seconds))
                .map(whole),
            decode_step_microseconds: model.map(|m| whole(m.step_seconds * 1e6)),
            decode_sequence_microseconds: model.map(|m| whole(m.sequence_seconds * 1e6)),
            start_milliseconds: self.start_millis().map(|m| whole(m as f64)),
        };
        let known = model.is_some() || self.has_started();
        known.then_some(status)
    }

    /// What a status says, as if it had been seen for a while: a few steps of each kind.
    pub fn restore(status: &CapacityStatus) -> Self {
        const SECONDS: f64 = 10.0;
        let figure = |told: Option<i64>| told.filter(|f| *f >= 0).map(|f| f as f64);
        let mut entry = Self::new(
            status.revision.as_str().into(),
            status.hardware.as_str().into(),
        );
        let step = figure(status.decode_step_microseconds).map(|us| us / 1e6);
        let sequence = figure(status.decode_sequence_microseconds).map(|us| us / 1e6);
        if let (Some(step), Some(sequence)) = (step, sequence)
            && step + sequence > 0.0
        {
            for batch in [1.0, 4.0, 16.0] {
                let steps = SECONDS / (step + sequence * batch);
                for _ in 0..2 {
                    let factors = [0.0, steps, steps * batch];
                    entry.regression.note(factors, SECONDS);
                }
            }
            let prefill = figure(status.prefill_tokens_per_second).filter(|rate| *rate > 0.0);
            if let Some(rate) = prefill {
                for _ in 0..2 {
                    entry
                        .regression
                        .note([rate * SECONDS / 1000.0, 0.0, 0.0], SECONDS);
                }
            }
            // So many sequences make so many tokens, if prompts take nothing: no more than there were.
            let tokens = figure(status.tokens_per_second).unwrap_or(0.0);
            let left = (1.0 - tokens * sequence).max(0.05);
            entry.sequences = (tokens * step / left).min(1e5);
        }
        if let Some(start) = figure(status.start_milliseconds) {
            entry.note_start(start as Millis);
        }
        entry
    }
}

fn whole(figure: f64) -> i64 {
    figure.clamp(0.0, 1e15).round() as i64
}
