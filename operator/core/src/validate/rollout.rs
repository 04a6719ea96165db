//! `spec.rollout`.

use pagoda_crds::api::{Rollout, RolloutStrategy};

use super::ValidateError;

/// How a new revision takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutSettings {
    /// In which manner.
    pub strategy: RolloutStrategy,
    /// How a canary grows, and what ends it.
    pub canary: CanarySettings,
    /// Seconds that the next pod of a new revision may take to become ready.
    pub progress_deadline_seconds: u32,
}

/// How a canary grows, and what ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanarySettings {
    /// Percent of the requests, step by step: at least one, each from 1 to 99 and above the one before.
    pub steps: Vec<u32>,
    /// Seconds that a step lasts at least.
    pub step_seconds: u32,
    /// Requests before the new revision is judged; at least 1.
    pub min_requests: u32,
    /// Percent of failed requests beyond the old revision's.
    pub max_error_percent: u32,
    /// Percent of time to first token beyond the old revision's.
    pub max_ttft_increase_percent: u32,
}

pub(super) fn validate(rollout: &Rollout) -> Result<RolloutSettings, ValidateError> {
    let is_canary = rollout.strategy == RolloutStrategy::Canary;
    if rollout.canary.is_some() && !is_canary {
        return Err(ValidateError::Field(
            "rollout.canary holds settings of the strategy Canary: set rollout.strategy to Canary, or remove rollout.canary",
        ));
    }
    let canary = rollout.canary.clone().unwrap_or_default();
    let grows = canary.steps.windows(2).all(|pair| pair[0] < pair[1]);
    let in_range = canary.steps.iter().all(|step| (1..=99).contains(step));
    if canary.steps.is_empty() || canary.steps.len() > 10 || !grows || !in_range {
        return Err(ValidateError::Field(
            "rollout.canary.steps must grow from one to the next, such as [5, 25, 50]",
        ));
    }
    Ok(RolloutSettings {
        strategy: rollout.strategy,
        canary: CanarySettings {
            steps: canary.steps,
            step_seconds: canary.step_seconds,
            min_requests: canary.min_requests.max(1),
            max_error_percent: canary.max_error_percent,
            max_ttft_increase_percent: canary.max_ttft_increase_percent,
        },
        progress_deadline_seconds: rollout.progress_deadline_seconds.max(1),
    })
}
