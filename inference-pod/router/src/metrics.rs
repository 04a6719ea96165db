//! The gateway's Prometheus metrics.
//!
//! Labels come from the cluster's objects, never from a client's text, so that a client cannot make
//! series. Each service takes its handles once; the hot path touches atomics only.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::core::routes::ServiceKey;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabels {
    namespace: String,
    service: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    namespace: String,
    service: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodLabels {
    namespace: String,
    service: String,
    pod: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    namespace: String,
    service: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RevisionLabels {
    namespace: String,
    service: String,
    revision: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RevisionOutcomeLabels {
    namespace: String,
    service: String,
    revision: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeOnly {
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

type Histograms = Family<ServiceLabels, Histogram, fn() -> Histogram>;
type RevisionHistograms = Family<RevisionLabels, Histogram, fn() -> Histogram>;

/// Every metric of this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// The few of them that tell a service's load.
    load: Registry,
    in_flight: Family<ServiceLabels, Gauge>,
    held: Family<ServiceLabels, Gauge>,
    ready_pods: Family<ServiceLabels, Gauge>,
    requests: Family<CodeLabels, Counter>,
    chosen: Family<PodLabels, Counter>,
    retries: Family<ReasonLabels, Counter>,
    cut_streams: Family<ServiceLabels, Counter>,
    first_byte: Histograms,
    duration: Histograms,
    hold: Histograms,
    revision_requests: Family<RevisionOutcomeLabels, Counter>,
    revision_ttft: RevisionHistograms,
    rejected: Family<CodeOnly, Counter>,
    watch_errors: Family<KindLabel, Counter>,
    /// Open client connections.
    pub open_connections: Gauge,
    /// Bytes of request bodies held in memory.
    pub body_bytes: Gauge,
}

/// 5 ms to 11 minutes, each bound half as large again as the one before: a model's first token and its
/// whole answer both fall among them.
fn seconds_buckets() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(
        0.005, 1.8, 21,
    ))
}

/// 5 ms to 66 s, each bound a fifth larger than the one before, so that medians that differ by a fifth
/// fall into different buckets.
fn ttft_buckets() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(
        0.005, 1.2, 53,
    ))
}

fn histograms() -> Histograms {
    Family::new_with_constructor(seconds_buckets)
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            load: Registry::default(),
            in_flight: Family::default(),
            held: Family::default(),
            ready_pods: Family::default(),
            requests: Family::default(),
            chosen: Family::default(),
            retries: Family::default(),
            cut_streams: Family::default(),
            first_byte: histograms(),
            duration: histograms(),
            hold: histograms(),
            revision_requests: Family::default(),
            revision_ttft: Family::new_with_constructor(ttft_buckets),
            rejected: Family::default(),
            watch_errors: Family::default(),
            open_connections: Gauge::default(),
            body_bytes: Gauge::default(),
        };
        let [mut registry, mut load] = [(); 2].map(|()| Registry::with_prefix(PREFIX));
        metrics.register_load(&mut registry);
        metrics.register_others(&mut registry);
        metrics.register_load(&mut load);
        (metrics.registry, metrics.load) = (registry, load);
        metrics
    }
}

impl Metrics {
    /// What tells a service's load.
    fn register_load(&self, registry: &mut Registry) {
        registry.register(
            "in_flight_requests",
            "Requests given to pods and not finished",
            self.in_flight.clone(),
        );
        registry.register(
            "held_requests",
            "Requests waiting for a pod that can take them",
            self.held.clone(),
        );
        registry.register(
            "route_pods",
            "Ready pods of each service that this gateway knows",
            self.ready_pods.clone(),
        );
        registry.register(
            "requests",
            "Finished requests by status code; 499 is a client that left",
            self.requests.clone(),
        );
        registry.register(
            "revision_requests",
            "Attempts at pods of each revision while a canary runs; 4xx and clients that left count neither way",
            self.revision_requests.clone(),
        );
        registry.register(
            "revision_ttft_seconds",
            "From passing a request on to a pod until the first byte of its answer, of each revision while a canary runs",
            self.revision_ttft.clone(),
        );
    }

    fn register_others(&self, registry: &mut Registry) {
        registry.register(
            "ready_pods",
            "Pods that may be given requests",
            self.ready_pods.clone(),
        );
        registry.register("chosen", "Requests given to each pod", self.chosen.clone());
        registry.register(
            "retries",
            "Attempts that failed before a response and were taken elsewhere",
            self.retries.clone(),
        );
        registry.register(
            "cut_streams",
            "Responses that a pod broke off in the middle",
            self.cut_streams.clone(),
        );
        registry.register(
            "time_to_first_byte_seconds",
            "From a request's head to its response's first byte, holding included",
            self.first_byte.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "From a request's head to its response's last byte",
            self.duration.clone(),
        );
        registry.register(
            "hold_seconds",
            "How long held requests waited",
            self.hold.clone(),
        );
        registry.register(
            "rejected",
            "Requests refused before a service was found, by error code",
            self.rejected.clone(),
        );
        registry.register(
            "watch_errors",
            "Failures of the watches on the API server",
            self.watch_errors.clone(),
        );
        registry.register(
            "open_connections",
            "Client connections open",
            self.open_connections.clone(),
        );
        registry.register(
            "body_bytes",
            "Bytes of request bodies held in memory",
            self.body_bytes.clone(),
        );
    }

    /// The metrics in the OpenMetrics text format.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        encode(&self.registry)
    }

    /// Those of them that tell a service's load: what the operator reads every second, for thousands of services.
    pub fn encode_load(&self) -> Result<String, std::fmt::Error> {
        encode(&self.load)
    }

    /// Counts a request refused before a service was found.
    pub fn count_rejected(&self, code: &'static str) {
        self.rejected.get_or_create(&CodeOnly { code }).inc();
    }

    /// Counts a failure of the watch on `kind`.
    pub fn count_watch_error(&self, kind: &'static str) {
        self.watch_errors.get_or_create(&KindLabel { kind }).inc();
    }

    /// The handles of one revision of a service. Its series exist from now on.
    pub fn revision(self: &Arc<Self>, key: &ServiceKey, revision: &str) -> RevisionMetrics {
        let labels = RevisionLabels {
            namespace: key.namespace().into(),
            service: key.name().into(),
            revision: revision.into(),
        };
        let outcome = |outcome| {
            self.revision_requests
                .get_or_create_owned(&labels.with_outcome(outcome))
        };
        RevisionMetrics {
            ok: outcome(OUTCOME_OK),
            error: outcome(OUTCOME_ERROR),
            ttft: self.revision_ttft.get_or_create_owned(&labels),
            all: Arc::clone(self),
            labels,
        }
    }

    /// The handles of one service. Its series exist from now on.
    pub fn service(self: &Arc<Self>, key: &ServiceKey) -> ServiceMetrics {
        let labels = ServiceLabels {
            namespace: key.namespace().into(),
            service: key.name().into(),
        };
        ServiceMetrics {
            in_flight: self.in_flight.get_or_create_owned(&labels),
            held: self.held.get_or_create_owned(&labels),
            ready_pods: self.ready_pods.get_or_create_owned(&labels),
            cut_streams: self.cut_streams.get_or_create_owned(&labels),
            first_byte: LazyHistogram::new(&self.first_byte, &labels),
            duration: LazyHistogram::new(&self.duration, &labels),
            hold: LazyHistogram::new(&self.hold, &labels),
            succeeded: self.requests.get_or_create_owned(&CodeLabels {
                namespace: labels.namespace.clone(),
                service: labels.service.clone(),
                code: 200,
            }),
            other_codes: Mutex::default(),
            all: Arc::clone(self),
            labels,
        }
    }
}

const PREFIX: &str = "pagoda_gateway";

fn encode(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(text)
}

/// A histogram whose series begin with its first observation: a service that nobody asks costs no buckets.
#[derive(Debug)]
pub struct LazyHistogram {
    family: Histograms,
    labels: ServiceLabels,
    made: OnceLock<Histogram>,
}

impl LazyHistogram {
    fn new(family: &Histograms, labels: &ServiceLabels) -> Self {
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

const OUTCOME_OK: &str = "ok";
const OUTCOME_ERROR: &str = "error";

impl RevisionLabels {
    fn with_outcome(&self, outcome: &'static str) -> RevisionOutcomeLabels {
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
    all: Arc<Metrics>,
    labels: RevisionLabels,
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
    /// Seconds to the first byte.
    pub first_byte: LazyHistogram,
    /// Seconds to the last byte.
    pub duration: LazyHistogram,
    /// Seconds held.
    pub hold: LazyHistogram,
    succeeded: Counter,
    other_codes: Mutex<BTreeSet<u16>>,
    all: Arc<Metrics>,
    labels: ServiceLabels,
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
        for family in [&all.first_byte, &all.duration, &all.hold] {
            family.remove(&self.labels);
        }
        all.cut_streams.remove(&self.labels);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_its_series_at_once_and_none_when_forgotten() {
        let metrics = Arc::new(Metrics::default());
        let service = metrics.service(&ServiceKey::new("team", "chat"));
        service.count_code(503);
        service.count_retry("connect");
        service.chosen("chat-0").inc();
        assert!(!metrics.encode().expect("encodes").contains("le="));
        service.first_byte.observe(0.1);
        let text = metrics.encode().expect("encodes");
        for line in [
            r#"pagoda_gateway_time_to_first_byte_seconds_count{namespace="team",service="chat"} 1"#,
            r#"pagoda_gateway_held_requests{namespace="team",service="chat"} 0"#,
            r#"pagoda_gateway_route_pods{namespace="team",service="chat"} 0"#,
            r#"pagoda_gateway_in_flight_requests{namespace="team",service="chat"} 0"#,
            r#"pagoda_gateway_requests_total{namespace="team",service="chat",code="200"} 0"#,
            r#"pagoda_gateway_requests_total{namespace="team",service="chat",code="503"} 1"#,
            r#"pagoda_gateway_chosen_total{namespace="team",service="chat",pod="chat-0"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        let load = metrics.encode_load().expect("encodes");
        assert!(load.contains("pagoda_gateway_held_requests{") && !load.contains("le="));
        service.forget_pod("chat-0");
        service.forget();
        assert!(!metrics.encode().expect("encodes").contains("team"));
    }
}
