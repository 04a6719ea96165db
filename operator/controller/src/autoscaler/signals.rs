//! The figures of the last round, for everybody who serves them on: the metrics APIs, KEDA's scaler, `/metrics`.
//!
//! What stands here is what the autoscaler's own rule sees, so that an HPA that is fed from it judges the same service. A
//! figure carries its age; one that is absent or too old is not there, and never zero.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use pagoda_crds::api::{CapacityStatus, Metric};
use pagoda_operator_core::autoscale::Decision;
use tokio::time::Instant;

use crate::key::Key;

/// Figures of all services that are looked after. Publishing one replaces a pointer.
#[derive(Debug, Default)]
pub struct Signals(RwLock<HashMap<Key, Arc<ServiceSignals>>>);

/// Figures of one service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSignals {
    /// When they were gathered.
    pub taken: Instant,
    /// Pods that the spec asks for.
    pub replicas: u32,
    /// Pods that answer and stay.
    pub ready: u32,
    /// Pods that exist and do not answer yet.
    pub pending: u32,
    /// Requests that gateways hold for want of a ready pod; none when not every gateway told.
    pub held: Option<u64>,
    /// Whether somebody did not tell his part within the window of the rule: `metrics` are lower bounds then, which serve to add pods
    /// and never to remove any.
    pub partial: bool,
    /// By [`Metric`], in the order of [`Metric::ALL`].
    pub metrics: [Option<Figure>; Metric::ALL.len()],
    /// Answers of a Prometheus, in the order of the spec.
    pub queries: Vec<(Arc<str>, Option<Figure>)>,
    /// What each ready pod told.
    pub pods: Vec<PodSignals>,
    /// What the autoscaler made of it; none when somebody else owns the number of pods.
    pub decision: Option<DecisionSignal>,
    /// What pods were seen to carry.
    pub capacity: Arc<[CapacityStatus]>,
    /// The decision with everything that it was made from.
    pub details: Option<Arc<Decision>>,
}

/// A figure, and how old it was when it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Thousandths, of all pods together; a utilisation in thousandths of one, a latency in thousandths of a second.
    pub milli: u64,
    /// Age when it was gathered.
    pub age_millis: u64,
}

/// What one pod told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSignals {
    /// Its name.
    pub name: Arc<str>,
    /// Requests that it works on.
    pub running: u64,
    /// Requests that wait in it.
    pub waiting: u64,
    /// Thousandths of its KV cache in use, where its server tells.
    pub kv_usage_milli: Option<u64>,
    /// Prompt tokens that it was ever asked to look up, and those of them that it had.
    pub cache_queries: u64,
    /// See `cache_queries`.
    pub cache_hits: u64,
}

/// What the autoscaler made of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionSignal {
    /// Pods that it wants.
    pub replicas: u32,
    /// CamelCase word.
    pub reason: &'static str,
}

impl ServiceSignals {
    /// Figures of a service of which nothing is known.
    pub fn unknown(taken: Instant, replicas: u32) -> Self {
        Self {
            taken,
            replicas,
            ready: 0,
            pending: 0,
            held: None,
            partial: false,
            metrics: [None; Metric::ALL.len()],
            queries: Vec::new(),
            pods: Vec::new(),
            decision: None,
            capacity: Arc::default(),
            details: None,
        }
    }

    /// The latest figure of a metric, with its age by now.
    pub fn metric(&self, metric: Metric, now: Instant) -> Option<Figure> {
        self.metrics[place(metric)].map(|figure| figure.aged(now - self.taken))
    }

    /// Notes a figure.
    pub fn set(&mut self, metric: Metric, figure: Option<Figure>) {
        self.metrics[place(metric)] = figure;
    }

    /// The latest answer to a query of the spec, with its age by now.
    pub fn query(&self, name: &str, now: Instant) -> Option<Figure> {
        let found = self.queries.iter().find(|(query, _)| **query == *name)?;
        found.1.map(|figure| figure.aged(now - self.taken))
    }

    /// Whether anybody asks for anything: held, waiting or running.
    pub fn is_active(&self) -> bool {
        let in_flight = self.metrics[place(Metric::InFlightRequests)];
        self.held.unwrap_or(0) > 0 || in_flight.is_some_and(|figure| figure.milli > 0)
    }
}

impl Figure {
    fn aged(self, by: Duration) -> Self {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        Self {
            age_millis: self.age_millis.saturating_add(by),
            ..self
        }
    }
}

/// Place of a metric in [`Metric::ALL`].
fn place(metric: Metric) -> usize {
    match metric {
        Metric::InFlightRequests => 0,
        Metric::RequestsPerSecond => 1,
        Metric::QueuedRequests => 2,
        Metric::TokensPerSecond => 3,
        Metric::KvCacheUtilization => 4,
        Metric::TimeToFirstToken => 5,
        Metric::InterTokenLatency => 6,
    }
}

impl Signals {
    /// Figures of one service; none before it was looked at.
    pub fn of(&self, service: &Key) -> Option<Arc<ServiceSignals>> {
        self.read().get(service).cloned()
    }

    /// Figures of all services, in no order.
    pub fn all(&self) -> Vec<(Key, Arc<ServiceSignals>)> {
        let rows = self.read();
        rows.iter().map(|(k, s)| (k.clone(), s.clone())).collect()
    }

    /// Publishes the figures of a round. Services that it did not look at keep theirs, which grow old.
    pub fn publish(&self, round: impl IntoIterator<Item = (Key, ServiceSignals)>) {
        let fresh: Vec<_> = round.into_iter().map(|(k, s)| (k, Arc::new(s))).collect();
        let mut rows = self.0.write().unwrap_or_else(PoisonError::into_inner);
        rows.extend(fresh);
    }

    /// Forgets services that are no more.
    pub fn retain(&self, exists: impl Fn(&Key) -> bool) {
        let mut rows = self.0.write().unwrap_or_else(PoisonError::into_inner);
        rows.retain(|key, _| exists(key));
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<Key, Arc<ServiceSignals>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_not_renewed_grows_old_and_one_that_is_absent_is_none() {
        let (signals, key, start) = (Signals::default(), Key::new("n", "a"), Instant::now());
        let mut told = ServiceSignals::unknown(start, 3);
        let figure = Figure {
            milli: 12_000,
            age_millis: 40,
        };
        told.set(Metric::QueuedRequests, Some(figure));
        signals.publish([(key.clone(), told)]);
        let later = start + Duration::from_secs(7);
        let found = signals.of(&key).expect("it was published");
        let aged = found.metric(Metric::QueuedRequests, later);
        assert_eq!(aged.map(|f| (f.milli, f.age_millis)), Some((12_000, 7040)));
        assert_eq!(found.metric(Metric::TokensPerSecond, later), None);
        signals.retain(|_| false);
        assert!(signals.of(&key).is_none());
    }

    #[test]
    fn every_metric_has_the_place_that_the_list_gives_it() {
        for (index, metric) in Metric::ALL.into_iter().enumerate() {
            assert_eq!(place(metric), index);
        }
    }
}
