//! Handles of one service.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{
    CodeLabels, Histograms, Metrics, PodLabels, ReasonLabels, RevisionMetrics, ServiceLabels,
};
use crate::core::routes::ServiceKey;

/// A histogram whose series begin with its first observation: a service that nobody asks costs no buckets.
#[derive(Debug)]
pub struct LazyHistogram {
    family: Histograms,
    labels: ServiceLabels,
    made: OnceLock<Histogram>,
}

impl LazyHistogram {
    pub(super) fn new(family: &Histograms, labels: &ServiceLabels) -> Self {
        Self {
            family: family.clone(),
            labels: labels.clone(),
            made: OnceLock::new(),
        }
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        let made = || self.family.get_or_create_owned(&self.labels);
        self.made.get_or_init(made).observe(value);
    }
}

/// One service's handles.
#[derive(Debug)]
pub struct ServiceMetrics {
    /// Requests at pods.
    pub in_flight: Gauge,
    /// Requests waiting for a pod.
    pub held: Gauge,
    /// Pods that may be given requests.
    pub ready_pods: Gauge,
    /// Responses broken off by pods.
    pub cut_streams: Counter,
    /// Seconds to the first data of a stream.
    pub ttft: LazyHistogram,
    /// Seconds to the first byte.
    pub first_byte: LazyHistogram,
    /// Seconds to the last byte.
    pub duration: LazyHistogram,
    /// Seconds held.
    pub hold: LazyHistogram,
    pub(super) succeeded: Counter,
    pub(super) other_codes: Mutex<BTreeSet<u16>>,
    pub(super) all: Arc<Metrics>,
    pub(super) labels: ServiceLabels,
}

const RETRY_REASONS: [&str; 3] = ["connect", "refused", "broken"];

impl ServiceMetrics {
    /// The handles of a revision of this service.
    pub fn revision(&self, revision: &str) -> RevisionMetrics {
        let key = ServiceKey::new(&self.labels.namespace, &self.labels.service);
        self.all.revision(&key, revision)
    }

    /// Counts a finished request.
    pub fn count_code(&self, code: u16) {
        if code == 200 {
            self.succeeded.inc();
            return;
        }
        self.other_codes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(code);
        self.all
            .requests
            .get_or_create(&self.code_labels(code))
            .inc();
    }

    /// Counts an attempt that is tried elsewhere; `reason` is one of `connect`, `refused`, `broken`.
    pub fn count_retry(&self, reason: &'static str) {
        self.all
            .retries
            .get_or_create(&self.reason_labels(reason))
            .inc();
    }

    /// Counts a stream that is answered before there is a pod for it.
    pub fn count_early_stream(&self) {
        self.all.early_streams.get_or_create(&self.labels).inc();
    }

    /// The counter of requests given to `pod`.
    pub fn chosen(&self, pod: &str) -> Counter {
        self.all.chosen.get_or_create_owned(&self.pod_labels(pod))
    }

    /// Ends the series of a pod that is gone.
    pub fn forget_pod(&self, pod: &str) {
        self.all.chosen.remove(&self.pod_labels(pod));
    }

    /// Ends all series of a service that is gone, but its pods'.
    pub fn forget(&self) {
        let all = &self.all;
        for family in [&all.in_flight, &all.held, &all.ready_pods] {
            family.remove(&self.labels);
        }
        for family in [&all.ttft, &all.first_byte, &all.duration, &all.hold] {
            family.remove(&self.labels);
        }
        for family in [&all.cut_streams, &all.early_streams] {
            family.remove(&self.labels);
        }
        for reason in RETRY_REASONS {
            all.retries.remove(&self.reason_labels(reason));
        }
        all.requests.remove(&self.code_labels(200));
        for code in self
            .other_codes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            all.requests.remove(&self.code_labels(*code));
        }
    }

    fn code_labels(&self, code: u16) -> CodeLabels {
        CodeLabels {
            namespace: self.labels.namespace.clone(),
            service: self.labels.service.clone(),
            code,
        }
    }

    fn pod_labels(&self, pod: &str) -> PodLabels {
        PodLabels {
            namespace: self.labels.namespace.clone(),
            service: self.labels.service.clone(),
            pod: pod.into(),
        }
    }

    fn reason_labels(&self, reason: &'static str) -> ReasonLabels {
        ReasonLabels {
            namespace: self.labels.namespace.clone(),
            service: self.labels.service.clone(),
            reason,
        }
    }
}
