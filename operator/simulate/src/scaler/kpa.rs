//! Knative's pod autoscaler.
//!
//! Source: `knative.dev/serving/pkg/autoscaler/scaling/autoscaler.go` with the defaults of `config-autoscaler`: tick 2 s, stable
//! window 60 s, panic window 10 % of it, panic threshold 200 %, at most 1000 times up and half down at once, concurrency as
//! the metric, averaged over each window. What waits counts as in Knative's activator and queue-proxy.

use std::collections::VecDeque;

use super::{FleetView, Scaler, Wish};
use crate::time::{Nanos, SECOND};

/// How it is set up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KpaSettings {
    /// Requests at once that each pod should have.
    pub target: f64,
    /// Between two looks.
    pub tick: Nanos,
    /// The long window.
    pub stable: Nanos,
    /// The short one.
    pub panic: Nanos,
    /// Multiple of the pods ready that starts a panic.
    pub threshold: f64,
    /// Multiple of the pods ready that a look may ask for.
    pub most_up: f64,
    /// Part of the pods ready below which a look may not go, as its inverse.
    pub most_down: f64,
}

impl KpaSettings {
    /// Knative's defaults.
    pub fn new(target: f64) -> Self {
        Self {
            target,
            tick: 2 * SECOND,
            stable: 60 * SECOND,
            panic: 6 * SECOND,
            threshold: 2.0,
            most_up: 1000.0,
            most_down: 2.0,
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Kpa {
    settings: KpaSettings,
    /// `(when, requests under way)`, a second apart.
    samples: VecDeque<(Nanos, f64)>,
    /// When a panic last had cause.
    panicked: Option<Nanos>,
    most_in_panic: u32,
}

impl Kpa {
    /// A KPA.
    pub fn new(settings: KpaSettings) -> Self {
        Self {
            settings,
            samples: VecDeque::new(),
            panicked: None,
            most_in_panic: 0,
        }
    }

    fn average(&self, window: Nanos, now: Nanos) -> f64 {
        let recent = self.samples.iter().rev();
        let values = recent
            .take_while(|(at, _)| at + window > now)
            .map(|(_, value)| *value);
        let (sum, count) = values.fold((0.0, 0_u32), |(s, n), value| (s + value, n + 1));
        sum / f64::from(count.max(1))
    }

    /// What both windows ask for, given `ready` pods.
    pub(super) fn decide(&mut self, stable: f64, panic: f64, ready: u32, now: Nanos) -> u32 {
        let settings = &self.settings;
        let ready = f64::from(ready.max(1));
        let (least, most) = (
            (ready / settings.most_down).floor(),
            (ready * settings.most_up).ceil(),
        );
        let asked = |value: f64| (value / settings.target).ceil();
        let bounded = |value: f64| asked(value).clamp(least, most) as u32;
        if asked(panic) / ready >= settings.threshold {
            self.panicked = Some(now);
        } else if self.panicked.is_some_and(|at| at + settings.stable <= now) {
            (self.panicked, self.most_in_panic) = (None, 0);
        }
        if self.panicked.is_none() {
            return bounded(stable);
        }
        self.most_in_panic = self.most_in_panic.max(bounded(panic)).max(bounded(stable));
        self.most_in_panic
    }
}

impl Scaler for Kpa {
    fn name(&self) -> String {
        "kpa".to_owned()
    }

    fn look(&mut self, seen: &FleetView<'_>) -> Option<Wish> {
        self.samples
            .push_back((seen.now, seen.requests_under_way() as f64));
        while self.samples[0].0 + self.settings.stable <= seen.now {
            self.samples.pop_front();
        }
        if !seen.now.is_multiple_of(self.settings.tick) {
            return None;
        }
        let stable = self.average(self.settings.stable, seen.now);
        let panic = self.average(self.settings.panic, seen.now);
        let wanted = self.decide(stable, panic, seen.ready(), seen.now);
        let least = seen.setup.min_replicas.max(1);
        let replicas = wanted.clamp(least, seen.setup.max_replicas);
        (replicas != seen.desired()).then(|| Wish {
            replicas,
            reason: format!(
                "concurrency {stable:.1} (stable), {panic:.1} (panic), target {} a pod",
                self.settings.target
            ),
        })
    }
}
