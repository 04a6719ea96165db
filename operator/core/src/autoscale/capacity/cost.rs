//! What a request costs at present: prompt tokens that must be computed, and tokens generated.
//!
//! Two means forget at two speeds, and the dearer one counts: when the cache stops helping, the short one rises within
//! seconds, before queues do; when it helps again, the long one comes down slowly.

use super::{
    growth::Growth,
    queueing::Mix,
    tuning::{
        COST_LONG_SECONDS, COST_PRIOR_REQUESTS, COST_REQUESTS, COST_SHORT_SECONDS,
        MOST_VARIABILITY, SPREAD_PRIOR, SPREAD_SECONDS,
    },
};

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestCost {
    /// Prompt tokens that are not found in the KV cache.
    pub uncached_prompt_tokens: f64,
    /// Tokens generated.
    pub generated_tokens: f64,
}

/// Measures the cost of requests from what pods did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostMeter {
    short: Sums,
    long: Sums,
    /// What requests cost when there last were enough of them to say so.
    last: Option<RequestCost>,
    prompts: PromptSpread,
    arrivals: ArrivalSpread,
}

/// Sums that decay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    prompt_tokens: f64,
    begun: f64,
    generated_tokens: f64,
    /// Requests that ended, and the halves of those that run.
    ended: f64,
}

impl Sums {
    fn decay(&mut self, keep: f64) {
        for sum in [
            &mut self.prompt_tokens,
            &mut self.begun,
            &mut self.generated_tokens,
            &mut self.ended,
        ] {
            *sum *= keep;
        }
    }

    fn add(&mut self, growth: &Growth) {
        if let (Some(prompt), Some(begun)) = (growth.computed_prompt_tokens, growth.begun) {
            self.prompt_tokens += prompt;
            self.begun += begun;
        }
        if let Some(finished) = growth.finished {
            self.generated_tokens += growth.generated_tokens;
            // A request that runs has half of its tokens, on average.
            self.ended += (finished + growth.running_more / 2.0).max(0.0);
        }
    }
}

impl CostMeter {
    /// Time passes.
    pub fn pass(&mut self, seconds: f64) {
        self.last = self.cost();
        let seconds = seconds.max(0.0);
        self.short.decay(0.5_f64.powf(seconds / COST_SHORT_SECONDS));
        self.long.decay(0.5_f64.powf(seconds / COST_LONG_SECONDS));
        let keep = 0.5_f64.powf(seconds / SPREAD_SECONDS);
        self.prompts.decay(keep);
        self.arrivals.decay(keep);
    }

    /// A pod did this.
    pub fn note(&mut self, growth: &Growth) {
        self.short.add(growth);
        self.long.add(growth);
        if let Some((tokens, requests)) = growth.prompts {
            self.prompts.note(tokens, requests);
        }
    }

    /// So many requests came to all pods in so many seconds.
    pub fn note_arrivals(&mut self, arrived: f64, seconds: f64) {
        self.arrivals.note(arrived, seconds);
    }

    /// What a request costs, or cost when there last were some; none before a few were seen.
    pub fn cost(&self) -> Option<RequestCost> {
        if self.long.begun < COST_REQUESTS || self.long.ended < COST_REQUESTS {
            return self.last;
        }
        let (short, long) = (&self.short, &self.long);
        Some(RequestCost {
            uncached_prompt_tokens: dearer(
                (short.prompt_tokens, short.begun),
                (long.prompt_tokens, long.begun),
            ),
            generated_tokens: dearer(
                (short.generated_tokens, short.ended),
                (long.generated_tokens, long.ended),
            ),
        })
    }

    /// The same with how much requests and their arrivals vary.
    pub fn mix(&self) -> Option<Mix> {
        let cost = self.cost()?;
        Some(Mix {
            prompt_tokens: cost.uncached_prompt_tokens,
            generated_tokens: cost.generated_tokens,
            prompt_variability: self.prompts.variability(),
            burstiness: self.arrivals.burstiness(),
        })
    }
}

/// The long mean, or the short one where that is above it and has seen enough to say so.
fn dearer(short: (f64, f64), long: (f64, f64)) -> f64 {
    let usual = long.0 / long.1;
    let recent = (short.0 + usual * COST_PRIOR_REQUESTS) / (short.1 + COST_PRIOR_REQUESTS);
    usual.max(recent)
}

/// How much prompts vary: from sums over several of them, whose variance is as many times that of one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PromptSpread {
    tokens: f64,
    requests: f64,
    squares: f64,
    sums: f64,
}

impl PromptSpread {
    fn decay(&mut self, keep: f64) {
        for sum in [
            &mut self.tokens,
            &mut self.requests,
            &mut self.squares,
            &mut self.sums,
        ] {
            *sum *= keep;
        }
    }

    fn note(&mut self, tokens: f64, requests: f64) {
        if requests < 1.0 {
            return;
        }
        if self.requests >= COST_REQUESTS {
            let error = tokens - requests * self.mean();
            self.squares += error * error / requests;
            self.sums += 1.0;
        }
        self.tokens += tokens;
        self.requests += requests;
    }

    fn mean(&self) -> f64 {
        self.tokens / self.requests.max(1.0)
    }

    /// Squared coefficient of variation, which is taken to be 1 until a few sums say otherwise.
    fn variability(&self) -> f64 {
        let square = self.mean().powi(2);
        if square <= 0.0 {
            return 1.0;
        }
        let seen = self.squares / square + SPREAD_PRIOR;
        (seen / (self.sums + SPREAD_PRIOR)).clamp(0.0, MOST_VARIABILITY)
    }
}

/// How much the number of arrivals varies from one look to the next. Neighbours are compared, so that a trend does not
/// pass for bursts (von Neumann, "Distribution of the ratio of the mean square successive difference", 1941).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ArrivalSpread {
    last: Option<(f64, f64)>,
    squares: f64,
    arrived: f64,
}

impl ArrivalSpread {
    fn decay(&mut self, keep: f64) {
        self.squares *= keep;
        self.arrived *= keep;
    }

    fn note(&mut self, arrived: f64, seconds: f64) {
        let comparable = |(_, before): &(f64, f64)| (before / seconds - 1.0).abs() < 0.3;
        if let Some((before, _)) = self.last.filter(comparable) {
            let difference = arrived - before;
            self.squares += difference * difference / 2.0;
            self.arrived += f64::midpoint(arrived, before);
        }
        self.last = Some((arrived, seconds));
    }

    /// Variance over mean, which is taken to be 1 until a few arrivals say otherwise; never less.
    fn burstiness(&self) -> f64 {
        ((self.squares + SPREAD_PRIOR) / (self.arrived + SPREAD_PRIOR)).clamp(1.0, MOST_VARIABILITY)
    }
}
