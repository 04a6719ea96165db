//! The gateway's Prometheus metrics.
//!
//! Labels come from the cluster's objects, never from a client's text, so that a client cannot make
//! series. Each service takes its handles once; the hot path touches atomics only.

mod revision;
mod service;

use std::sync::{Arc, Mutex};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub use self::revision::RevisionMetrics;
use self::revision::{OUTCOME_ERROR, OUTCOME_OK};
pub use self::service::{LazyHistogram, ServiceMetrics};
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
    early_streams: Family<ServiceLabels, Counter>,
    ttft: Histograms,
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
            early_streams: Family::default(),
            ttft: Family::new_with_constructor(ttft_buckets),
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
            "Finished requests by status code; an error that a stream answered early ends with counts as its own status, and 499 is a client that left",
            self.requests.clone(),
        );
        registry.register(
            "ttft_seconds",
            "From a request's head to the first data of its stream, holding included, of services that are scaled by it",
            self.ttft.clone(),
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
            "early_streams",
            "Held requests for a stream that were answered before a pod was ready",
            self.early_streams.clone(),
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

    /// Those of them that tell a service's load: what the operator reads every second, for thousands of services. What every
    /// service has is declared before there is a service: a gateway that knows none is told from what is no gateway.
    pub fn encode_load(&self) -> Result<String, std::fmt::Error> {
        let mut text = encode(&self.load)?;
        let declarations: String = EVERY_SERVICE_HAS
            .iter()
            .map(|(name, kind)| format!("# TYPE {PREFIX}_{name} {kind}\n"))
            .filter(|declaration| !text.contains(declaration))
            .collect();
        // The encoder leaves out families without series.
        text.insert_str(0, &declarations);
        Ok(text)
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
            ttft: LazyHistogram::new(&self.ttft, &labels),
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
const EVERY_SERVICE_HAS: [(&str, &str); 4] = [
    ("in_flight_requests", "gauge"),
    ("held_requests", "gauge"),
    ("route_pods", "gauge"),
    ("requests", "counter"),
];

fn encode(registry: &Registry) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_knows_no_service_declares_its_load_and_one_that_does_declares_it_once() {
        let metrics = Arc::new(Metrics::default());
        let declared = |metrics: &Metrics| {
            let load = metrics.encode_load().expect("encodes");
            assert!(load.ends_with("# EOF\n"));
            let types = load.lines().filter(|line| line.starts_with("# TYPE"));
            let mut types: Vec<_> = types.map(str::to_owned).collect();
            types.sort();
            types
        };
        let without = declared(&metrics);
        assert_eq!(
            without,
            [
                "# TYPE pagoda_gateway_held_requests gauge",
                "# TYPE pagoda_gateway_in_flight_requests gauge",
                "# TYPE pagoda_gateway_requests counter",
                "# TYPE pagoda_gateway_route_pods gauge",
            ]
        );
        let service = metrics.service(&ServiceKey::new("team", "chat"));
        assert_eq!(declared(&metrics), without);
        service.forget();
        assert_eq!(declared(&metrics), without);
    }

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
