//! A saturation-based scaler, after llm-d's workload-variant-autoscaler.
//!
//! Source: `llm-d-incubation/workload-variant-autoscaler`, its saturation analyser, as Pagoda's design notes describe it: every
//! 60 s; a pod is saturated when its KV cache is 80 % full or 5 requests wait; what a pod carries, in tokens, is the smaller
//! of 80 % of its KV cache and of what it held when its queue was that long; `required = demand / 0.85 - supply`, pods on
//! their way included; `spare = supply - demand / 0.70`.

use super::{FleetView, Scaler, Wish};
use crate::fleet::{Member, Stage};
use crate::time::{Nanos, SECOND};

/// How it is set up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SaturationSettings {
    /// Between two looks.
    pub tick: Nanos,
    /// Share of the KV cache that saturates a pod.
    pub kv: f64,
    /// Waiting requests that do.
    pub queue: usize,
    /// Share of the supply that demand may take before there are more pods.
    pub up: f64,
    /// Share below which there are fewer.
    pub down: f64,
}

impl Default for SaturationSettings {
    fn default() -> Self {
        Self {
            tick: 60 * SECOND,
            kv: 0.80,
            queue: 5,
            up: 0.85,
            down: 0.70,
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Saturation {
    settings: SaturationSettings,
    /// Tokens that pods of each hardware held when their queues were long, averaged.
    at_queue: Vec<Option<f64>>,
}

impl Saturation {
    /// A saturation-based scaler.
    pub fn new(settings: SaturationSettings) -> Self {
        Self {
            settings,
            at_queue: Vec::new(),
        }
    }

    /// Tokens that a pod carries.
    fn capacity(&self, seen: &FleetView<'_>, hardware: usize) -> f64 {
        let profile = &seen.setup.hardware[hardware].profile;
        let memory = profile.kv_tokens() as f64 * self.settings.kv;
        match self.at_queue.get(hardware) {
            Some(Some(compute)) => memory.min(*compute),
            _ => memory,
        }
    }

    /// Tokens that a pod holds and those that wait for it; learns what a long queue meant.
    fn demand(&mut self, seen: &FleetView<'_>, member: &Member) -> f64 {
        let Some(pod) = &member.pod else {
            return 0.0;
        };
        let profile = pod.profile();
        let held = f64::from(pod.kv().used()) * f64::from(profile.block_tokens);
        self.at_queue.resize(seen.setup.hardware.len(), None);
        if pod.waiting() >= self.settings.queue && held > 0.0 {
            let known = &mut self.at_queue[member.hardware];
            *known = Some(known.map_or(held, |known| 0.5 * known + 0.5 * held));
        }
        held + seen.waiting_tokens(member) as f64
    }
}

impl Scaler for Saturation {
    fn name(&self) -> String {
        "saturation".to_owned()
    }

    fn look(&mut self, seen: &FleetView<'_>) -> Option<Wish> {
        if seen.now == 0 || !seen.now.is_multiple_of(self.settings.tick) {
            return None;
        }
        let ready = || seen.members().filter(|member| member.stage == Stage::Ready);
        let demand: f64 = ready().map(|member| self.demand(seen, member)).sum();
        let supply: f64 = seen
            .members()
            .map(|member| self.capacity(seen, member.hardware))
            .sum();
        let each = supply / f64::from(seen.desired().max(1));
        let required = demand / self.settings.up - supply;
        let spare = supply - demand / self.settings.down;
        let current = seen.desired();
        let wanted = if required > 0.0 && each > 0.0 {
            current + (required / each).ceil() as u32
        } else if spare >= each {
            current.saturating_sub(1)
        } else if current == 0 && seen.gateway.held > 0 {
            1
        } else {
            current
        };
        let least = seen.setup.min_replicas.max(1);
        let replicas = wanted.clamp(least, seen.setup.max_replicas);
        (replicas != current).then(|| Wish {
            replicas,
            reason: format!("{demand:.0} tokens of {supply:.0} that the pods carry"),
        })
    }
}
