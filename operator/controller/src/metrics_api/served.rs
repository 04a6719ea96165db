//! The names that HPAs and KEDA know figures by, and the figures under them.
//!
//! They are the very figures that the autoscaler's own rule sees. One that is absent or old has no value here, and never the
//! value zero: an HPA without a value holds, and one that reads zero takes every pod away.

use std::{sync::Arc, time::Duration};

use pagoda_crds::api::Metric;
use tokio::time::Instant;

use super::selector::Selector;
use crate::{
    autoscaler::signals::{Figure, PodSignals, ServiceSignals, Signals},
    key::Key,
};

/// Services are looked at each second, quiet ones seldom; a look that is older than this says nothing of now.
const FRESH: Duration = Duration::from_secs(30);

/// A figure that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// One that gateways and pods tell.
    Own(Metric),
    /// The answer to a query of `spec.scaling.prometheus`.
    Query,
    /// What Pagoda's own rule would have.
    DesiredReplicas,
}

impl Served {
    /// Everything that is served of a service.
    pub const ALL: [Self; 9] = [
        Self::Own(Metric::InFlightRequests),
        Self::Own(Metric::RequestsPerSecond),
        Self::Own(Metric::QueuedRequests),
        Self::Own(Metric::TokensPerSecond),
        Self::Own(Metric::KvCacheUtilization),
        Self::Own(Metric::TimeToFirstToken),
        Self::Own(Metric::InterTokenLatency),
        Self::Query,
        Self::DesiredReplicas,
    ];

    /// What is served of a single pod as well.
    pub const OF_PODS: [Self; 3] = [
        Self::Own(Metric::InFlightRequests),
        Self::Own(Metric::QueuedRequests),
        Self::Own(Metric::KvCacheUtilization),
    ];

    /// The name, with its unit where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own(Metric::InFlightRequests) => "pagoda_in_flight_requests",
            Self::Own(Metric::RequestsPerSecond) => "pagoda_requests_per_second",
            Self::Own(Metric::QueuedRequests) => "pagoda_queued_requests",
            Self::Own(Metric::TokensPerSecond) => "pagoda_tokens_per_second",
            Self::Own(Metric::KvCacheUtilization) => "pagoda_kv_cache_utilization",
            Self::Own(Metric::TimeToFirstToken) => "pagoda_time_to_first_token_seconds",
            Self::Own(Metric::InterTokenLatency) => "pagoda_inter_token_latency_seconds",
            Self::Query => "pagoda_prometheus_query",
            Self::DesiredReplicas => "pagoda_desired_replicas",
        }
    }

    /// The figure of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|served| served.name() == name)
    }

    /// The figure of this name, or of a metric's word in `spec.scaling.targets`.
    pub fn called(word: &str) -> Option<Self> {
        let metric = Metric::ALL
            .into_iter()
            .find(|metric| metric.as_str() == word);
        metric.map(Self::Own).or_else(|| Self::named(word))
    }
}

/// One series of a figure, with its value where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Whose.
    pub service: Key,
    /// Which query's.
    pub query: Option<Arc<str>>,
    /// Thousandths; none when nobody knows.
    pub figure: Option<Figure>,
}

impl Series {
    /// Value of the label of this name.
    pub fn label(&self, name: &str) -> Option<&str> {
        match name {
            "service" => Some(self.service.name()),
            "query" => self.query.as_deref(),
            _ => None,
        }
    }
}

/// The series of a namespace that a selector takes, by service.
pub fn series(
    signals: &Signals,
    namespace: &str,
    served: Served,
    selector: &Selector,
    now: Instant,
) -> Vec<Series> {
    let services = match selector.exactly("service") {
        Some(name) => {
            let key = Key::new(namespace, name);
            signals
                .of(&key)
                .map(|seen| (key, seen))
                .into_iter()
                .collect()
        }
        None => in_namespace(signals, namespace),
    };
    let all = services
        .iter()
        .flat_map(|(key, seen)| of_service(key, seen, served, now));
    all.filter(|series| selector.matches(|label| series.label(label)))
        .collect()
}

fn in_namespace(signals: &Signals, namespace: &str) -> Vec<(Key, Arc<ServiceSignals>)> {
    let mut found = signals.all();
    found.retain(|(key, _)| key.namespace() == namespace);
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

/// The series of one service.
pub fn of_service(
    service: &Key,
    seen: &ServiceSignals,
    served: Served,
    now: Instant,
) -> Vec<Series> {
    let fresh = is_fresh(seen, now);
    let series = |query: Option<Arc<str>>, figure: Option<Figure>| Series {
        service: service.clone(),
        query,
        figure: figure.filter(|_| fresh),
    };
    match served {
        // An HPA would take a lower bound for the whole, and pods away.
        Served::Own(metric) => {
            let figure = seen.metric(metric, now).filter(|_| !seen.partial);
            vec![series(None, figure)]
        }
        Served::Query => {
            let names = seen.queries.iter().map(|(name, _)| name);
            names
                .map(|name| series(Some(name.clone()), seen.query(name, now)))
                .collect()
        }
        Served::DesiredReplicas => {
            let figure = seen.decision.map(|decision| Figure {
                milli: u64::from(decision.replicas) * 1000,
                age_millis: age(seen, now),
            });
            vec![series(None, figure)]
        }
    }
}

/// What a pod tells of itself.
pub fn of_pod(pod: &PodSignals, served: Served) -> Option<u64> {
    let whole = |count: u64| Some(count.saturating_mul(1000));
    match served {
        Served::Own(Metric::InFlightRequests) => whole(pod.running.saturating_add(pod.waiting)),
        Served::Own(Metric::QueuedRequests) => whole(pod.waiting),
        Served::Own(Metric::KvCacheUtilization) => pod.kv_usage_milli,
        _ => None,
    }
}

/// Whether a look at a service still says something.
pub fn is_fresh(seen: &ServiceSignals, now: Instant) -> bool {
    now.saturating_duration_since(seen.taken) <= FRESH
}

/// Milliseconds since a service was looked at.
pub fn age(seen: &ServiceSignals, now: Instant) -> u64 {
    let age = now.saturating_duration_since(seen.taken).as_millis();
    u64::try_from(age).unwrap_or(u64::MAX)
}

/// Thousandths as a Kubernetes quantity.
pub fn quantity(milli: u64) -> String {
    // Kubernetes reckons with signed numbers.
    let milli = milli.min(i64::MAX as u64);
    if milli.is_multiple_of(1000) {
        (milli / 1000).to_string()
    } else {
        format!("{milli}m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_a_spec_is_served_under_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = Served::ALL.map(Served::name).into();
        assert_eq!(names.len(), Served::ALL.len());
        for metric in Metric::ALL {
            let served = Served::Own(metric);
            assert_eq!(Served::called(metric.as_str()), Some(served));
            assert_eq!(Served::named(served.name()), Some(served));
        }
        assert_eq!(Served::named("InFlightRequests"), None);
    }

    #[test]
    fn whoever_may_view_a_namespace_may_view_every_figure_by_its_name() {
        let chart = include_str!("../../../../charts/pagoda/templates/metrics-api.yaml");
        for served in Served::ALL {
            assert!(
                chart.contains(&format!("\"{}\"", served.name())),
                "{}",
                served.name()
            );
        }
        for served in Served::OF_PODS {
            assert!(
                chart.contains(&format!("- pods/{}\n", served.name())),
                "{}",
                served.name()
            );
        }
    }

    #[test]
    fn a_figure_of_a_look_that_is_too_old_is_absent() {
        let start = Instant::now();
        let mut seen = ServiceSignals::unknown(start, 1);
        seen.set(
            Metric::InFlightRequests,
            Some(Figure {
                milli: 0,
                age_millis: 0,
            }),
        );
        let at = |seconds| {
            let now = start + Duration::from_secs(seconds);
            let served = Served::Own(Metric::InFlightRequests);
            of_service(&Key::new("n", "a"), &seen, served, now)[0].figure
        };
        assert_eq!(at(2).map(|f| (f.milli, f.age_millis)), Some((0, 2000)));
        assert_eq!(at(31), None);
    }

    #[test]
    fn a_figure_of_which_somebody_did_not_tell_his_part_is_absent() {
        let now = Instant::now();
        let mut seen = ServiceSignals::unknown(now, 1);
        let figure = Some(Figure {
            milli: 9_000,
            age_millis: 0,
        });
        seen.set(Metric::InFlightRequests, figure);
        let served = Served::Own(Metric::InFlightRequests);
        let found =
            |seen: &ServiceSignals| of_service(&Key::new("n", "a"), seen, served, now)[0].figure;
        assert_eq!(found(&seen), figure);
        seen.partial = true;
        assert_eq!(found(&seen), None);
    }

    #[test]
    fn quantities_are_whole_or_in_thousandths() {
        assert_eq!(quantity(0), "0");
        assert_eq!(quantity(12_000), "12");
        assert_eq!(quantity(12_500), "12500m");
        assert_eq!(quantity(u64::MAX), "9223372036854775807m");
    }
}
