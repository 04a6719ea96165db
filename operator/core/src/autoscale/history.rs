//! What a decision must remember of earlier moments.

use std::collections::VecDeque;

use super::{Millis, Observation};
use crate::validate::ScalingSettings;

/// Requests per second are those of this long.
const RATE_WINDOW_MILLIS: Millis = 10_000;
/// A shorter look says nothing about a rate.
const RATE_MINIMUM_MILLIS: Millis = 3_000;

/// Recommendations of the stabilisation window, arrivals of the rate window, and since when the service is idle.
///
/// A new history knows nothing before its first moment, and so removes nothing until that moment has left the window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// `(when, recommended)`, oldest first. Strictly decreasing, for an older and lower one can never be the
    /// maximum: the first is the largest of the window.
    recommendations: VecDeque<(Millis, u32)>,
    /// Since when nothing was asked of ready pods.
    idle_since: Option<Millis>,
    at_gateways: Arrivals,
    at_pods: Arrivals,
    started: bool,
}

impl History {
    /// Takes in a moment before it is decided on.
    #[must_use]
    pub(super) fn observe(mut self, seen: &Observation, now: Millis) -> Self {
        if !self.started {
            self.started = true;
            self.recommendations.push_back((now, seen.current));
        }
        let someone_came = self.at_gateways.note(seen.demand.gateway_arrivals, now)
            | self.at_pods.note(seen.demand.pod_arrivals, now);
        // A pod that still loads is not idle: it was started for someone.
        let idle = seen.demand.is_quiet() && !someone_came && seen.ready > 0 && seen.current > 0;
        self.idle_since = if idle {
            self.idle_since.or(Some(now))
        } else {
            None
        };
        self
    }

    /// For how long nothing was asked.
    pub(super) fn idle_millis(&self, now: Millis) -> Option<Millis> {
        self.idle_since.map(|since| now.saturating_sub(since))
    }

    /// Thousandths of a request that arrive per second. Pods alone do not say it: they count no held request.
    pub(super) fn rate_milli(&self) -> Option<u64> {
        let at_gateways = self.at_gateways.rate_milli()?;
        Some(at_gateways.max(self.at_pods.rate_milli().unwrap_or(0)))
    }

    /// Notes a recommendation and returns the largest of the window.
    pub(super) fn stabilize(
        &mut self,
        settings: &ScalingSettings,
        recommended: u32,
        now: Millis,
    ) -> u32 {
        let window = u64::from(settings.behavior.down.window_seconds) * 1000;
        while self
            .recommendations
            .front()
            .is_some_and(|(when, _)| when.saturating_add(window) <= now)
        {
            self.recommendations.pop_front();
        }
        while self
            .recommendations
            .back()
            .is_some_and(|(_, replicas)| *replicas <= recommended)
        {
            self.recommendations.pop_back();
        }
        self.recommendations.push_back((now, recommended));
        self.recommendations
            .front()
            .map_or(recommended, |(_, replicas)| *replicas)
    }
}

/// A count of arrivals over the rate window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Arrivals {
    /// `(when, count)`, oldest first, never decreasing.
    counts: VecDeque<(Millis, u64)>,
}

impl Arrivals {
    /// Takes in a count, and says whether someone came since the last one. A count that went back is another one
    /// (a restarted process): it starts anew.
    fn note(&mut self, count: Option<u64>, now: Millis) -> bool {
        while self.counts.len() > 1 && self.counts[0].0.saturating_add(RATE_WINDOW_MILLIS) < now {
            self.counts.pop_front();
        }
        let Some(count) = count else {
            return false;
        };
        let last = self.counts.back().map(|(_, count)| *count);
        if last.is_some_and(|last| last > count) {
            self.counts.clear();
        }
        self.counts.push_back((now, count));
        last.is_some_and(|last| last != count)
    }

    fn rate_milli(&self) -> Option<u64> {
        let (from, first) = *self.counts.front()?;
        let (to, last) = *self.counts.back()?;
        let span = to.saturating_sub(from);
        if span < RATE_MINIMUM_MILLIS {
            return None;
        }
        let rate = u128::from(last.saturating_sub(first)) * 1_000_000 / u128::from(span);
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}
