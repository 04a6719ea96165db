//! What came of a simulation: figures, and the same as a table, CSV, JSON and a plot.

mod csv;
mod json;
mod svg;
mod table;
#[cfg(test)]
mod tests;

pub use csv::{moments_csv, summary_csv};
pub use json::to_json;
pub use svg::plot;
pub use table::{comparison, events_table, replicas_line};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::recorder::{Counts, Moment, Recorder};
use crate::setup::Setup;
use crate::time::{Nanos, seconds};

/// A change of the number of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleEvent {
    /// When.
    pub at: Nanos,
    /// Pods before.
    pub from: u32,
    /// Pods after.
    pub to: u32,
    /// Why, in a line.
    pub reason: String,
}

/// Percentiles of a latency, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub struct Percentiles {
    /// Half are below.
    pub p50: f64,
    /// 95 in 100 are below.
    pub p95: f64,
    /// 99 in 100 are below.
    pub p99: f64,
    /// None is above.
    pub max: f64,
}

/// Sums that the simulation kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) pod_nanos: u128,
    pub(crate) replica_nanos: u128,
    pub(crate) most_replicas: u32,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) preemptions: u64,
    pub(crate) unfinished: u64,
    pub(crate) reversals: u32,
}

/// What came of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Who decided.
    pub scaler: String,
    /// What else there is to say of it.
    pub note: String,
    /// Simulated seconds, from the first request to the last one's end.
    pub seconds: f64,
    /// What came of the requests.
    pub counts: Counts,
    /// Requests that had not ended when the simulation was given up.
    pub unfinished: u64,
    /// Targets: milliseconds to the first token,
    pub slo_first_token_ms: f64,
    /// and between two further ones, on average over a request.
    pub slo_inter_token_ms: f64,
    /// From a request's coming to its first token; of those served.
    pub first_token: Percentiles,
    /// Between two tokens of an answer, each counted by itself.
    pub inter_token: Percentiles,
    /// GPUs of a pod.
    pub gpus_per_pod: u32,
    /// GPU-hours, from each pod's creation to its end.
    pub gpu_hours: f64,
    /// What they cost.
    pub cost: f64,
    /// Pods wanted, on average over time.
    pub mean_replicas: f64,
    /// Pods wanted, at most.
    pub most_replicas: u32,
    /// Changes of their number that went the other way than the one before.
    pub reversals: u32,
    /// Share of prompt tokens that were found in a pod's cache.
    pub cached_share: f64,
    /// Sequences that lost their blocks and were computed again.
    pub preemptions: u64,
    /// Every change of the number of pods.
    pub events: Vec<ScaleEvent>,
    /// What was seen over time.
    pub moments: Vec<Moment>,
}

impl Report {
    pub(crate) fn new(
        setup: &Setup,
        scaler: String,
        end: Nanos,
        recorder: Recorder,
        totals: Totals,
        events: Vec<ScaleEvent>,
    ) -> Self {
        let pod_hours = totals.pod_nanos as f64 / 3.6e12;
        let gpu_hours = pod_hours * f64::from(setup.gpus_per_pod);
        Self {
            scaler,
            note: String::new(),
            seconds: seconds(end),
            counts: recorder.counts,
            unfinished: totals.unfinished,
            slo_first_token_ms: setup.slo_first_token as f64 / 1e6,
            slo_inter_token_ms: setup.slo_inter_token as f64 / 1e6,
            first_token: percentiles(&recorder.first_token_micros),
            inter_token: percentiles(&recorder.inter_token_micros),
            gpus_per_pod: setup.gpus_per_pod,
            gpu_hours,
            cost: gpu_hours * setup.cost_per_gpu_hour,
            mean_replicas: totals.replica_nanos as f64 / (end as f64).max(1.0),
            most_replicas: totals.most_replicas,
            reversals: totals.reversals,
            cached_share: totals.cached_tokens as f64 / (totals.prompt_tokens as f64).max(1.0),
            preemptions: totals.preemptions,
            events,
            moments: recorder.moments,
        }
    }

    /// Share of the requests that were served within the SLO. Those that no pod could ever run do not count; those that were
    /// refused, cut off or never ended do.
    pub fn attainment(&self) -> f64 {
        let requests = self.counts.requests - self.counts.too_long;
        if requests == 0 {
            return 1.0;
        }
        self.counts.met as f64 / requests as f64
    }

    /// Requests that were refused or cut off.
    pub fn lost(&self) -> u64 {
        self.counts.hold_full + self.counts.hold_timeout + self.counts.cut
    }
}

fn percentiles(micros: &Histogram<u64>) -> Percentiles {
    let at = |quantile| micros.value_at_quantile(quantile) as f64 / 1000.0;
    if micros.is_empty() {
        return Percentiles::default();
    }
    Percentiles {
        p50: at(0.50),
        p95: at(0.95),
        p99: at(0.99),
        max: micros.max() as f64 / 1000.0,
    }
}

/// At most `most` moments that say the same, more coarsely.
pub(crate) fn coarser(moments: &[Moment], most: usize) -> Vec<Moment> {
    let each = moments.len().div_ceil(most.max(1)).max(1);
    moments
        .chunks(each)
        .filter_map(|chunk| chunk.iter().copied().reduce(crate::recorder::merge))
        .collect()
}
