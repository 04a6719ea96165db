//! The HorizontalPodAutoscaler of Kubernetes, as it is usually set up for such services: an external metric of type
//! `AverageValue` that Prometheus scrapes and an adapter serves.
//!
//! Source: `k8s.io/kubernetes/pkg/controller/podautoscaler/{horizontal,replica_calculator}.go` (v1.34), with its default
//! `behavior`: up at most 4 pods or 100 % in 15 s, whichever is more; down to the largest recommendation of 300 s. The
//! metric is as old as Prometheus' scrape interval, the adapter and its cache make it.

use std::collections::VecDeque;

use super::{FleetView, Scaler, Wish};
use crate::time::{Nanos, SECOND};

/// What the HPA looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpaMetric {
    /// Requests that run, wait or are held.
    InFlight,
    /// Requests that come per second, over a minute.
    QueriesPerSecond,
}

/// How the HPA is set up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HpaSettings {
    /// What it looks at.
    pub metric: HpaMetric,
    /// How much of it each pod should carry.
    pub average_value: f64,
    /// Between two looks.
    pub period: Nanos,
    /// Between two scrapes of Prometheus.
    pub scrape: Nanos,
    /// From a scrape until the HPA sees it.
    pub delay: Nanos,
    /// Of recommendations on the way down.
    pub down_window: Nanos,
    /// Share by which the metric may miss its target.
    pub tolerance: f64,
}

impl HpaSettings {
    /// Kubernetes' defaults, and a metric that is 15 to 45 seconds old.
    pub fn new(metric: HpaMetric, average_value: f64) -> Self {
        Self {
            metric,
            average_value,
            period: 15 * SECOND,
            scrape: 15 * SECOND,
            delay: 15 * SECOND,
            down_window: 300 * SECOND,
            tolerance: 0.1,
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Hpa {
    name: String,
    settings: HpaSettings,
    /// `(when, requests that ever came)`, of the last minute.
    arrivals: VecDeque<(Nanos, u64)>,
    /// `(when, value)` as scraped, newest last.
    samples: VecDeque<(Nanos, f64)>,
    /// `(when, recommendation)`.
    recommendations: VecDeque<(Nanos, u32)>,
    /// `(when, pods added)`.
    added: VecDeque<(Nanos, u32)>,
}

/// Pods that may be added in [`ADDED_PERIOD`], and the share of those there are; the larger counts.
const ADDED_PODS: u32 = 4;
const ADDED_PERIOD: Nanos = 15 * SECOND;
const RATE_WINDOW: Nanos = 60 * SECOND;

impl Hpa {
    /// An HPA called `name`.
    pub fn new(name: &str, settings: HpaSettings) -> Self {
        Self {
            name: name.to_owned(),
            settings,
            arrivals: VecDeque::new(),
            samples: VecDeque::new(),
            recommendations: VecDeque::new(),
            added: VecDeque::new(),
        }
    }

    fn scrape(&mut self, seen: &FleetView<'_>) {
        if !seen.now.is_multiple_of(self.settings.scrape) {
            return;
        }
        self.arrivals.push_back((seen.now, seen.gateway.arrived));
        while self.arrivals.len() > 2 && self.arrivals[1].0 + RATE_WINDOW <= seen.now {
            self.arrivals.pop_front();
        }
        let value = match self.settings.metric {
            HpaMetric::InFlight => seen.requests_under_way() as f64,
            HpaMetric::QueriesPerSecond => {
                let (from, first) = self.arrivals[0];
                let seconds = crate::time::seconds(seen.now - from).max(1.0);
                (seen.gateway.arrived - first) as f64 / seconds
            }
        };
        self.samples.push_back((seen.now, value));
    }

    /// The newest sample that has come through to the HPA.
    fn metric(&mut self, now: Nanos) -> Option<f64> {
        let arrived = |sample: &(Nanos, f64)| sample.0 + self.settings.delay <= now;
        while self.samples.get(1).is_some_and(arrived) {
            self.samples.pop_front();
        }
        self.samples.front().filter(|s| arrived(s)).map(|s| s.1)
    }

    /// `AverageValue`: within tolerance keep, else what the metric divides into.
    fn recommend(&self, value: f64, current: u32) -> u32 {
        let ratio = value / (self.settings.average_value * f64::from(current));
        if (ratio - 1.0).abs() <= self.settings.tolerance {
            return current;
        }
        (value / self.settings.average_value).ceil() as u32
    }

    fn stabilize(&mut self, recommended: u32, now: Nanos) -> u32 {
        let window = self.settings.down_window;
        self.recommendations.push_back((now, recommended));
        while self.recommendations[0].0 + window <= now && self.recommendations.len() > 1 {
            self.recommendations.pop_front();
        }
        let largest = self.recommendations.iter().map(|(_, replicas)| *replicas);
        largest.max().unwrap_or(recommended)
    }

    fn limit_up(&mut self, current: u32, now: Nanos) -> u32 {
        while self
            .added
            .front()
            .is_some_and(|(at, _)| at + ADDED_PERIOD <= now)
        {
            self.added.pop_front();
        }
        let start = current.saturating_sub(self.added.iter().map(|(_, pods)| pods).sum());
        (start * 2).max(start + ADDED_PODS)
    }
}

impl Scaler for Hpa {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn look(&mut self, seen: &FleetView<'_>) -> Option<Wish> {
        self.scrape(seen);
        if !seen.now.is_multiple_of(self.settings.period) {
            return None;
        }
        let value = self.metric(seen.now)?;
        let current = seen.desired().max(1);
        let least = seen.setup.min_replicas.max(1);
        let bounded = |replicas: u32| replicas.clamp(least, seen.setup.max_replicas);
        let recommended = bounded(self.recommend(value, current));
        let stable = self.stabilize(recommended, seen.now);
        let wanted = if recommended < current {
            stable.min(current)
        } else {
            recommended
        };
        let replicas = bounded(wanted.min(self.limit_up(current, seen.now).max(current)));
        if replicas > current {
            self.added.push_back((seen.now, replicas - current));
        }
        (replicas != seen.desired()).then(|| Wish {
            replicas,
            reason: format!(
                "{:?} {value:.1}, target {} a pod",
                self.settings.metric, self.settings.average_value
            ),
        })
    }
}
