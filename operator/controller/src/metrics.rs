//! What the operator counts of itself.

use std::sync::Arc;

use crate::autoscaler::{decisions::Decisions, exported::Exported, signals::Signals};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// One label, `result`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// What came of it.
    pub result: &'static str,
}

/// Kind of a child, and what came of applying it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Application {
    /// Kind of the child.
    pub kind: &'static str,
    /// `applied`, `skipped` or `failed`.
    pub result: &'static str,
}

/// Who was asked for metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Target {
    /// `gateway` or `pod`.
    pub target: &'static str,
}

/// Which Prometheus was asked, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PrometheusAnswer {
    /// Name of the server.
    pub server: String,
    /// `ok`, or why there was no figure.
    pub result: &'static str,
}

/// All metrics of this process.
pub struct Metrics {
    registry: Registry,
    /// Reconciles by `result`: `ok`, `refused`, `error`.
    pub reconciles: Family<Outcome, Counter>,
    /// Seconds of a reconcile.
    pub reconcile_seconds: Histogram,
    /// Children by what came of applying them.
    pub applies: Family<Application, Counter>,
    /// Statuses written.
    pub status_writes: Counter,
    /// Numbers of pods written.
    pub scale_writes: Counter,
    /// Scrapes that failed.
    pub scrape_failures: Family<Target, Counter>,
    /// Queries to Prometheus servers by what came of them.
    pub prometheus_answers: Family<PrometheusAnswer, Counter>,
    /// Seconds of a round of the autoscaler.
    pub autoscale_seconds: Histogram,
    /// Services that start from zero.
    pub cold_starts: Gauge,
    /// Services that wait for others to have started.
    pub cold_starts_waiting: Gauge,
    /// InferenceServices known.
    pub services: Gauge,
    /// 1 while this process leads.
    pub leader: Gauge,
    /// Figures of the autoscaler's last round, told by service.
    pub signals: Arc<Signals>,
    /// What it decided in the last hour.
    pub decisions: Arc<Decisions>,
}

impl Default for Metrics {
    fn default() -> Self {
        let buckets = || Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]);
        let mut registry = Registry::with_prefix("pagoda_operator");
        let metrics = Self {
            reconciles: Family::default(),
            reconcile_seconds: buckets(),
            applies: Family::default(),
            status_writes: Counter::default(),
            scale_writes: Counter::default(),
            scrape_failures: Family::default(),
            prometheus_answers: Family::default(),
            autoscale_seconds: buckets(),
            cold_starts: Gauge::default(),
            cold_starts_waiting: Gauge::default(),
            services: Gauge::default(),
            leader: Gauge::default(),
            signals: Arc::default(),
            decisions: Arc::default(),
            registry: Registry::default(),
        };
        registry.register(
            "reconciles",
            "Reconciles by result",
            metrics.reconciles.clone(),
        );
        registry.register(
            "reconcile_seconds",
            "Duration of a reconcile",
            metrics.reconcile_seconds.clone(),
        );
        registry.register(
            "applies",
            "Children by what came of applying them",
            metrics.applies.clone(),
        );
        registry.register(
            "status_writes",
            "Statuses written",
            metrics.status_writes.clone(),
        );
        registry.register(
            "scale_writes",
            "Numbers of pods written",
            metrics.scale_writes.clone(),
        );
        registry.register(
            "scrape_failures",
            "Gateways and pods that did not tell their load",
            metrics.scrape_failures.clone(),
        );
        registry.register(
            "prometheus_answers",
            "Queries to Prometheus servers by what came of them",
            metrics.prometheus_answers.clone(),
        );
        registry.register(
            "autoscale_seconds",
            "Duration of a round of the autoscaler",
            metrics.autoscale_seconds.clone(),
        );
        registry.register(
            "cold_starts",
            "Services that start from zero, where that is capped",
            metrics.cold_starts.clone(),
        );
        registry.register(
            "cold_starts_waiting",
            "Services that wait to start from zero until others have",
            metrics.cold_starts_waiting.clone(),
        );
        registry.register(
            "services",
            "InferenceServices known",
            metrics.services.clone(),
        );
        registry.register_collector(Box::new(Exported(metrics.signals.clone())));
        // One that is missing until it fails for the first time cannot be told from one that never fails.
        for target in ["gateway", "pod"] {
            drop(metrics.scrape_failures.get_or_create(&Target { target }));
        }
        registry.register(
            "leader",
            "1 while this process leads",
            metrics.leader.clone(),
        );
        Self {
            registry,
            ..metrics
        }
    }
}

impl Metrics {
    /// All metrics as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
