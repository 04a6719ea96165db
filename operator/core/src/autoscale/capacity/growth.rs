//! What a pod did between two looks at it.

use super::{histogram::Histogram, regression::Factors, tuning::SURELY_BUSY_SEQUENCES};
use crate::autoscale::pod_reading::{PodReading, Work};

/// What a pod did in a while. Figures that its server does not tell are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Growth {
    /// Seconds of the while.
    pub seconds: f64,
    /// Requests that came.
    pub arrived: Option<f64>,
    /// Requests that got their first token.
    pub begun: Option<f64>,
    /// Requests that ended.
    pub finished: Option<f64>,
    /// Requests in the pod at its beginning.
    pub in_flight_before: f64,
    /// More requests that run now than then.
    pub running_more: f64,
    /// Whether requests ran at both ends.
    pub ran_throughout: bool,
    /// Prompt tokens, and the number of requests whose they are: servers count them with the first token.
    pub prompts: Option<(f64, f64)>,
    /// Prompt tokens that were not found in the KV cache.
    pub computed_prompt_tokens: Option<f64>,
    /// Tokens generated.
    pub generated_tokens: f64,
    /// Sum of the times between tokens, and their number.
    pub between_tokens: Option<(f64, f64)>,
    /// What the engine says that it did.
    pub work: Option<Worked>,
}

/// What an engine says that it did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Worked {
    /// Seconds in steps.
    pub busy: f64,
    /// Steps that decoded.
    pub steps: f64,
    /// Tokens that they decoded.
    pub tokens: f64,
}

impl Growth {
    /// What happened from one reading to the next; none when the server was started anew between them.
    pub fn between(earlier: &PodReading, now: &PodReading, seconds: f64) -> Option<Self> {
        let finished = match (earlier.finished, now.finished) {
            (Some(earlier), Some(now)) => Some(grown(earlier, now)?),
            _ => None,
        };
        let generated_tokens = grown(earlier.generated_tokens, now.generated_tokens)?;
        let (before, after) = (earlier.in_flight() as f64, now.in_flight() as f64);
        let arrived = finished.map(|finished| (finished + after - before).max(0.0));
        let begun = first_tokens(earlier, now).or(finished);
        let work = match (earlier.work, now.work) {
            (Some(earlier), Some(now)) => Some(worked(&earlier, &now)?),
            _ => None,
        };
        let prompt_tokens = match (earlier.prompt_tokens, now.prompt_tokens) {
            (Some(earlier), Some(now)) => Some(grown(earlier, now)?),
            _ => None,
        };
        Some(Self {
            seconds,
            arrived,
            begun,
            finished,
            in_flight_before: before,
            running_more: now.running as f64 - earlier.running as f64,
            ran_throughout: earlier.running > 0 && now.running > 0,
            prompts: prompt_tokens.zip(begun),
            computed_prompt_tokens: computed_prompt(earlier, now, prompt_tokens),
            generated_tokens,
            between_tokens: between_tokens(earlier, now),
            work,
        })
    }

    /// Both together.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        let both = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        let pairs = |a: Option<(f64, f64)>, b: Option<(f64, f64)>| {
            let ((a0, a1), (b0, b1)) = (a?, b?);
            Some((a0 + b0, a1 + b1))
        };
        Self {
            seconds: self.seconds + next.seconds,
            arrived: both(self.arrived, next.arrived),
            begun: both(self.begun, next.begun),
            finished: both(self.finished, next.finished),
            in_flight_before: self.in_flight_before,
            running_more: self.running_more + next.running_more,
            ran_throughout: self.ran_throughout && next.ran_throughout,
            prompts: pairs(self.prompts, next.prompts),
            computed_prompt_tokens: both(self.computed_prompt_tokens, next.computed_prompt_tokens),
            generated_tokens: self.generated_tokens + next.generated_tokens,
            between_tokens: pairs(self.between_tokens, next.between_tokens),
            work: None,
        }
    }

    /// Sequences that decoded on average while the pod was at work; none when it did not decode, or does not tell.
    pub fn sequences(&self) -> Option<f64> {
        let mean = match (self.work, self.between_tokens) {
            (Some(work), _) if work.steps > 0.0 => work.tokens / work.steps,
            (None, Some((seconds, _))) if self.seconds > 0.0 => seconds / self.seconds,
            _ => return None,
        };
        (mean > 0.0).then_some(mean)
    }

    /// What the time of a pod went into, and how much time that was; none when it cannot be told.
    ///
    /// An engine that tells its work leaves no question. Of another the time counts only if it was never idle: some request
    /// was there throughout, or so many decoded on average that there was no moment without any. The times between the tokens
    /// of all sequences, summed, are the number of sequences times the time (Little's law), and so tell the steps.
    pub fn factors(&self) -> Option<(Factors, f64)> {
        if let Some(work) = self.work {
            let prompt = self.computed_prompt_tokens? / 1000.0;
            return Some(([prompt, work.steps, work.tokens], work.busy));
        }
        let (seconds, tokens) = self.between_tokens?;
        let sequences = seconds / self.seconds.max(1e-3);
        let stayed = self
            .finished
            .is_some_and(|finished| self.in_flight_before > finished);
        let many = self.ran_throughout && sequences >= SURELY_BUSY_SEQUENCES;
        if !(stayed || many) || sequences < 0.5 {
            return None;
        }
        let prompt = self.computed_prompt_tokens? / 1000.0;
        Some(([prompt, tokens / sequences, tokens], self.seconds))
    }
}

/// Growth of a counter; none when it fell.
fn grown(earlier: u64, now: u64) -> Option<f64> {
    now.checked_sub(earlier).map(|grown| grown as f64)
}

fn worked(earlier: &Work, now: &Work) -> Option<Worked> {
    Some(Worked {
        busy: grown(earlier.busy_micros, now.busy_micros)? / 1e6,
        steps: grown(earlier.decode_steps, now.decode_steps)?,
        tokens: grown(earlier.decode_tokens, now.decode_tokens)?,
    })
}

fn computed_prompt(earlier: &PodReading, now: &PodReading, prompt: Option<f64>) -> Option<f64> {
    match (earlier.work, now.work) {
        (Some(earlier), Some(now)) => grown(earlier.prefill_tokens, now.prefill_tokens),
        _ => Some((prompt? - grown(earlier.cache_hits, now.cache_hits)?).max(0.0)),
    }
}

fn first_tokens(earlier: &PodReading, now: &PodReading) -> Option<f64> {
    let count = |reading: &PodReading| {
        let latencies = reading.latencies.as_deref()?;
        latencies.first_token.as_ref().map(Histogram::count)
    };
    grown(count(earlier)?, count(now)?)
}

fn between_tokens(earlier: &PodReading, now: &PodReading) -> Option<(f64, f64)> {
    let of = |reading: &PodReading| {
        let latencies = reading.latencies.as_deref()?;
        let histogram = latencies.inter_token.as_ref()?;
        Some((histogram.sum_micros(), histogram.count()))
    };
    let (earlier, now) = (of(earlier)?, of(now)?);
    Some((grown(earlier.0, now.0)? / 1e6, grown(earlier.1, now.1)?))
}
