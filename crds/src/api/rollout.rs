//! `spec.rollout`: how a change reaches running pods, and how pods leave.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::wire::defaults;

/// How a change reaches running pods, and how pods leave. Whatever the strategy, pods of the new revision get requests
/// only once they are ready, and a new revision that never becomes ready leaves the old one serving.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = (
    "!has(self.canary) || self.strategy == 'Canary'",
    "rollout.canary holds settings of the strategy Canary: set rollout.strategy to Canary, or remove rollout.canary"
))]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Surge starts new pods before old ones leave. TerminateFirst ends an old pod first, for clusters without a spare
    /// GPU. Auto starts as Surge, and goes on as TerminateFirst when the scheduler finds no node for a new pod. Canary
    /// gives the new revision a growing share of the requests, and goes back when it does worse than the old one.
    #[serde(default)]
    pub strategy: RolloutStrategy,
    /// Settings of the strategy Canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Seconds that a new revision may take for its next pod to become ready, before the rollout counts as stalled. Under
    /// TerminateFirst and Canary the old revision then takes over again.
    #[serde(default = "progress_deadline_seconds")]
    #[schemars(range(min = 10, max = 86_400))]
    pub progress_deadline_seconds: u32,
    /// Seconds that a leaving pod gives its open requests to finish.
    #[serde(default = "drain_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub drain_seconds: u32,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            strategy: RolloutStrategy::default(),
            canary: None,
            progress_deadline_seconds: progress_deadline_seconds(),
            drain_seconds: drain_seconds(),
        }
    }
}

/// How a new revision takes over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutStrategy {
    /// Surge, until a new pod finds no node; then TerminateFirst.
    #[default]
    Auto,
    /// New pods first.
    Surge,
    /// The end of old pods first.
    TerminateFirst,
    /// A share of the requests first.
    Canary,
}

/// How a canary grows, and what ends it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// Percent of requests that the new revision gets, step by step. After the last one it takes over whole.
    #[serde(default = "steps")]
    #[schemars(length(min = 1, max = 10), inner(range(min = 1, max = 99)))]
    #[x_kube(validation = (
        "self.isSorted() && self.all(s, self.exists_one(t, t == s))",
        "rollout.canary.steps must grow from one to the next, such as [5, 25, 50]"
    ))]
    pub steps: Vec<u32>,
    /// Seconds that each step lasts at least.
    #[serde(default = "step_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub step_seconds: u32,
    /// Requests that the new revision must have answered in a step before it is judged. A service without that many
    /// stays in the step.
    #[serde(default = "min_requests")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_requests: u32,
    /// Percent of failed requests by which the new revision may exceed the old one.
    #[serde(default = "max_error_percent")]
    #[schemars(range(min = 0, max = 100))]
    pub max_error_percent: u32,
    /// Percent by which the new revision's median and 95th percentile of time to first token may exceed the old one's.
    #[serde(default = "max_ttft_increase_percent")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_ttft_increase_percent: u32,
}

impl Default for Canary {
    fn default() -> Self {
        Self {
            steps: steps(),
            step_seconds: step_seconds(),
            min_requests: min_requests(),
            max_error_percent: max_error_percent(),
            max_ttft_increase_percent: max_ttft_increase_percent(),
        }
    }
}

fn progress_deadline_seconds() -> u32 {
    1800
}

fn drain_seconds() -> u32 {
    defaults::DRAIN_SECONDS
}

fn steps() -> Vec<u32> {
    vec![5, 25, 50]
}

fn step_seconds() -> u32 {
    120
}

fn min_requests() -> u32 {
    20
}

fn max_error_percent() -> u32 {
    1
}

fn max_ttft_increase_percent() -> u32 {
    20
}
