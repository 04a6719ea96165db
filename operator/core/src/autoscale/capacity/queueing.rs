//! How fast a pod answers under a load, and how much it may be given so that it stays fast enough.
//!
//! A pod computes step after step: each decodes one token of every running sequence, and takes in a piece of the prompts that
//! wait. A step takes `step + sequence x running + prompt tokens / prefill rate`. From that:
//!
//! * *Sequences at once.* Under `rate` requests per second of `g` tokens, Little's law gives the mean number that decode:
//!   `b = rate g x (time between tokens)`, and prompts slow decoding down by the share of time that they take. Their number
//!   varies as a Poisson number does (M/G/infinity).
//! * *Prompts* are a single server's queue, first come first served: M/G/1 with a lognormal service time, whose waiting
//!   time has the moments of Takács ("A single-server queue with Poisson input", 1962; the mean is Pollaczek and
//!   Khinchine's). Burstier arrivals lengthen it as in Allen and Cunneen's approximation.
//! * *More pods* share a queue in part, because the gateway sends a request to the less loaded one of two: half of what two
//!   servers gain by one queue (Sakasegawa, "An approximation formula", 1977).
//! * *Percentiles* are those of a lognormal distribution of the same mean and variance.

use super::tuning::{MOST_BUSY, MOST_VARIABILITY, SEATS_DEVIATIONS, SHARED_WAIT, STEP_TOKENS};

/// Halvings of the range in which a rate is looked for: to a millionth of it.
const HALVINGS: u32 = 20;

/// What a pod's steps take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PodModel {
    /// Seconds for a prompt token.
    pub prompt_token_seconds: f64,
    /// Seconds for a step that decodes.
    pub step_seconds: f64,
    /// Seconds more for each sequence in it.
    pub sequence_seconds: f64,
    /// Sequences that it can or may be trusted to run at once.
    pub most_sequences: f64,
    /// Tokens of a step at most.
    pub most_step_tokens: f64,
}

/// What requests are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Prompt tokens that must be computed.
    pub prompt_tokens: f64,
    /// Tokens generated.
    pub generated_tokens: f64,
    /// Squared coefficient of variation of the prompt tokens.
    pub prompt_variability: f64,
    /// Variance of the number of arrivals over its mean; 1 when they come independently.
    pub burstiness: f64,
}

impl Mix {
    fn variability(&self) -> f64 {
        self.prompt_variability.clamp(0.0, MOST_VARIABILITY)
    }

    fn burst(&self) -> f64 {
        self.burstiness.clamp(1.0, MOST_VARIABILITY)
    }
}

/// A latency target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Time to first token.
    FirstToken {
        /// 1 to 99.
        percentile: u32,
        /// Seconds.
        seconds: f64,
    },
    /// Time between tokens.
    InterToken {
        /// 1 to 99.
        percentile: u32,
        /// Seconds.
        seconds: f64,
    },
}

impl Limit {
    /// What is aimed at.
    pub fn seconds(self) -> f64 {
        match self {
            Self::FirstToken { seconds, .. } | Self::InterToken { seconds, .. } => seconds,
        }
    }

    /// The same of another length.
    #[must_use]
    pub fn of(self, seconds: f64) -> Self {
        match self {
            Self::FirstToken { percentile, .. } => Self::FirstToken {
                percentile,
                seconds,
            },
            Self::InterToken { percentile, .. } => Self::InterToken {
                percentile,
                seconds,
            },
        }
    }
}

/// A pod under a load that it can bear.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bearing {
    rate: f64,
    /// Sequences that decode, on average.
    sequences: f64,
    /// Seconds of a step without prompts.
    step: f64,
}

impl PodModel {
    /// Requests per second that a pod can be given within the limit; 0 when not even an idle one keeps it.
    pub fn rate_within(&self, mix: &Mix, limit: Limit, shares: bool) -> f64 {
        let work = self.least_work(mix);
        if work <= 0.0 || !work.is_finite() {
            return 0.0;
        }
        let (mut low, mut high) = (0.0, MOST_BUSY / work);
        let keeps = |rate: f64| {
            self.latency(mix, limit, rate, shares)
                .is_some_and(|seconds| seconds <= limit.seconds())
        };
        if keeps(high) {
            return high;
        }
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            if keeps(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        // A rate of which nothing is left after so many halvings is none.
        if low * work < 1e-6 { 0.0 } else { low }
    }

    /// What an idle pod takes, in seconds.
    pub fn floor(&self, mix: &Mix, limit: Limit) -> f64 {
        let idle = Bearing {
            rate: 0.0,
            sequences: 0.0,
            step: self.step_seconds,
        };
        match limit {
            Limit::FirstToken { percentile, .. } => self.first_token(mix, idle, percentile, false),
            Limit::InterToken { .. } => self.step_seconds + self.sequence_seconds,
        }
    }

    /// Seconds of a pod that a request takes at the least: when many share each step.
    fn least_work(&self, mix: &Mix) -> f64 {
        let shared = self.step_seconds / self.most_sequences.max(1.0);
        mix.prompt_tokens * self.prompt_token_seconds
            + mix.generated_tokens * (shared + self.sequence_seconds)
    }

    /// Seconds of a pod that a request takes when so many share each step.
    pub fn work(&self, mix: &Mix, sequences: f64) -> f64 {
        let shared = self.step_seconds / sequences.max(1.0);
        mix.prompt_tokens * self.prompt_token_seconds
            + mix.generated_tokens * (shared + self.sequence_seconds)
    }

    /// The percentile that a limit speaks of, in seconds; none when the pod cannot bear the rate.
    pub fn latency(&self, mix: &Mix, limit: Limit, rate: f64, shares: bool) -> Option<f64> {
        let bearing = self.bear(mix, rate)?;
        let seconds = match limit {
            Limit::FirstToken { percentile, .. } => {
                self.first_token(mix, bearing, percentile, shares)
            }
            Limit::InterToken { percentile, .. } => self.inter_token(mix, bearing, percentile),
        };
        seconds.is_finite().then_some(seconds)
    }

    fn bear(&self, mix: &Mix, rate: f64) -> Option<Bearing> {
        let prompts = rate * mix.prompt_tokens * self.prompt_token_seconds;
        let tokens = rate * mix.generated_tokens;
        let left = 1.0 - prompts - tokens * self.sequence_seconds;
        if left <= 0.0 {
            return None;
        }
        // A sequence sees itself and, on average, all others.
        let sequences = tokens * (self.step_seconds + self.sequence_seconds) / left;
        // Bursts that are short beside an answer's time make their number vary by half of what they make arrivals vary.
        let variance = sequences * f64::midpoint(1.0, mix.burst());
        let usual_most = sequences + SEATS_DEVIATIONS * variance.sqrt();
        (usual_most <= self.most_sequences.max(1.0)).then_some(Bearing {
            rate,
            sequences,
            step: self.step_seconds + self.sequence_seconds * sequences,
        })
    }

    fn inter_token(&self, mix: &Mix, bearing: Bearing, percentile: u32) -> f64 {
        let p = share(percentile);
        let others = bearing.sequences + normal_quantile(p) * bearing.sequences.sqrt();
        let step = self.step_seconds + self.sequence_seconds * (1.0 + others.max(0.0));
        // Steps without prompts fill the time that prompts leave, and each piece of a prompt makes one of them longer. Prompts come
        // in bunches, the longer the busier they keep the pod, and meanwhile those that are done wait to go on decoding: so
        // more of their tokens meet prompts than steps do.
        let left = (1.0 - bearing.rate * mix.prompt_tokens * self.prompt_token_seconds).max(1e-6);
        let steps = left / bearing.step.max(1e-9);
        let with_prompt = bearing.rate * self.pieces(mix) / steps / left;
        let beyond = (1.0 - p) / with_prompt;
        if beyond >= 1.0 {
            return step;
        }
        // Of the steps with a prompt, the percentile that is left.
        let (mean, variability) = (self.together(mix, bearing), mix.variability());
        let tokens = lognormal_quantile(mean, variability * mean * mean, 1.0 - beyond);
        step + tokens.min(self.step_tokens()) * self.prompt_token_seconds
    }

    /// Steps over which a prompt is spread, on average.
    fn pieces(&self, mix: &Mix) -> f64 {
        (mix.prompt_tokens / self.step_tokens() + 0.5).max(1.0)
    }

    fn step_tokens(&self) -> f64 {
        if self.most_step_tokens >= 1.0 {
            self.most_step_tokens
        } else {
            STEP_TOKENS
        }
    }

    /// Seconds that a prompt occupies the queue of prompts: its own, and the steps of those that decode beside it.
    fn served(&self, mix: &Mix, bearing: Bearing) -> f64 {
        let compute = mix.prompt_tokens * self.prompt_token_seconds;
        compute + mix.prompt_tokens / self.step_tokens() * bearing.decoding()
    }

    /// Tokens of the prompts that wait, seen by one that comes to the queue: its own among them.
    fn together(&self, mix: &Mix, bearing: Bearing) -> f64 {
        let served = self.served(mix, bearing);
        let wait = Wait::of(bearing.rate, served, mix.variability(), 1.0, false);
        let prompts = 1.0 + bearing.rate * wait.mean.max(0.0);
        mix.prompt_tokens * prompts
    }

    fn first_token(&self, mix: &Mix, bearing: Bearing, percentile: u32, shares: bool) -> f64 {
        let (step, served) = (bearing.decoding(), self.served(mix, bearing));
        if bearing.rate * served >= 1.0 {
            return f64::INFINITY;
        }
        let (variability, burst) = (mix.variability(), mix.burst());
        let wait = Wait::of(bearing.rate, served, variability, burst, shares);
        let compute = mix.prompt_tokens * self.prompt_token_seconds;
        let own = compute + self.pieces(mix) * step;
        // Prompts that share a step are ready when all of them are.
        let others = self.together(mix, bearing).min(self.step_tokens()) - mix.prompt_tokens;
        let others = others.max(0.0) * self.prompt_token_seconds;
        // It comes in the midst of a step.
        let mean = wait.mean + own + others + step / 2.0;
        let variance = wait.variance + variability * compute * compute + step * step / 12.0;
        lognormal_quantile(mean, variance, share(percentile))
    }
}

impl Bearing {
    /// Seconds that a step's decoding takes: nothing while none decodes.
    fn decoding(self) -> f64 {
        self.step * (1.0 - (-self.sequences).exp())
    }
}

/// Moments of the wait before service.
struct Wait {
    mean: f64,
    variance: f64,
}

impl Wait {
    /// M/G/1's, with service times of this mean and squared coefficient of variation, in seconds.
    fn of(rate: f64, served: f64, variability: f64, burst: f64, shares: bool) -> Self {
        let busy = rate * served;
        let grows = 1.0 + variability;
        let (second, third) = (served.powi(2) * grows, served.powi(3) * grows.powi(3));
        let mean = rate * second / (2.0 * (1.0 - busy));
        let square = 2.0 * mean * mean + rate * third / (3.0 * (1.0 - busy));
        let burst = (burst + variability) / grows;
        // Two servers with one queue: a wait is seldomer by busy^(sqrt(6) - 2).
        let (seldomer, shorter) = if shares {
            (busy.powf(6.0_f64.sqrt() - 2.0), SHARED_WAIT)
        } else {
            (1.0, 1.0)
        };
        let mean_all = mean * burst * seldomer * shorter;
        let square_all = square * burst * burst * seldomer * shorter * shorter;
        Self {
            mean: mean_all,
            variance: (square_all - mean_all * mean_all).max(0.0),
        }
    }
}

/// A percentile as a share of one.
fn share(percentile: u32) -> f64 {
    f64::from(percentile.clamp(1, 99)) / 100.0
}

/// Standard deviations at which a percentile of a normal distribution lies.
pub fn deviations(percentile: u32) -> f64 {
    normal_quantile(share(percentile))
}

fn lognormal_quantile(mean: f64, variance: f64, share: f64) -> f64 {
    if mean <= 0.0 {
        return 0.0;
    }
    let spread = 1.0 + variance / (mean * mean);
    mean / spread.sqrt() * (normal_quantile(share) * spread.ln().sqrt()).exp()
}

/// Quantile of the normal distribution, within 0.0005 (Abramowitz and Stegun, 26.2.23).
fn normal_quantile(share: f64) -> f64 {
    let tail = share.min(1.0 - share).max(1e-6);
    let t = (-2.0 * tail.ln()).sqrt();
    let numerator = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let denominator = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let quantile = t - numerator / denominator;
    if share < 0.5 { -quantile } else { quantile }
}

#[cfg(test)]
mod tests;
