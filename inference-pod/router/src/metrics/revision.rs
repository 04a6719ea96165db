//! Handles of one revision, while a canary runs.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use super::{Metrics, RevisionLabels, RevisionOutcomeLabels};

pub(super) const OUTCOME_OK: &str = "ok";
pub(super) const OUTCOME_ERROR: &str = "error";

impl RevisionLabels {
    pub(super) fn with_outcome(&self, outcome: &'static str) -> RevisionOutcomeLabels {
        RevisionOutcomeLabels {
            namespace: self.namespace.clone(),
            service: self.service.clone(),
            revision: self.revision.clone(),
            outcome,
        }
    }
}

/// One revision's handles, while a canary runs.
#[derive(Debug)]
pub struct RevisionMetrics {
    /// Attempts that its pods answered.
    pub ok: Counter,
    /// Attempts that its pods failed.
    pub error: Counter,
    /// Seconds from passing a request on to the first byte.
    pub ttft: Histogram,
    pub(super) all: Arc<Metrics>,
    pub(super) labels: RevisionLabels,
}

impl RevisionMetrics {
    /// Ends the revision's series; handles still held count for nobody from now on.
    pub fn forget(&self) {
        for outcome in [OUTCOME_OK, OUTCOME_ERROR] {
            self.all
                .revision_requests
                .remove(&self.labels.with_outcome(outcome));
        }
        self.all.revision_ttft.remove(&self.labels);
    }
}
