//! What the pods of a service carry, in figures that change seldom enough to be written.

use pagoda_crds::api::LoadStatus;
use std::sync::Arc;

use crate::{
    autoscale::{Millis, PodReading, by_pod::ByPod},
    validate::Service,
};

/// Rates are those of so long.
const WINDOW_MILLIS: Millis = 30_000;
/// A service that was asked nothing for so many windows carries nothing.
const IDLE_WINDOWS: u32 = 10;
/// A change of less is no news.
const NEWS_PERCENT: i64 = 20;
/// The hit rate is told in steps of so many percent.
const HIT_STEP_PERCENT: i32 = 5;

/// What was measured over a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReading {
    /// Tokens that were generated per second; `None` while the service is quiet, but not for long enough to say so.
    pub tokens_per_second: Option<f64>,
    /// Percent of prompt tokens found in the KV cache; `None` where nobody tells, or nothing was asked.
    pub kv_hit_percent: Option<f64>,
}

/// What counts of a pod's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    generated_tokens: u64,
    cache_queries: u64,
    cache_hits: u64,
}

impl From<&PodReading> for Counted {
    fn from(reading: &PodReading) -> Self {
        Self {
            generated_tokens: reading.generated_tokens,
            cache_queries: reading.cache_queries,
            cache_hits: reading.cache_hits,
        }
    }
}

/// Measures the load of one service from the counters of its pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadMeter {
    last: ByPod<Counted>,
    window_started: Option<Millis>,
    tokens: u64,
    queries: u64,
    hits: u64,
    quiet_windows: u32,
}

impl LoadMeter {
    /// Takes in what pods told, by name; returns the load whenever a window is over.
    pub fn note(&mut self, pods: &[(&Arc<str>, &PodReading)], now: Millis) -> Option<LoadReading> {
        for (name, reading) in pods {
            if let Some(last) = self.last.get_mut(name) {
                self.tokens += grown(last.generated_tokens, reading.generated_tokens);
                self.queries += grown(last.cache_queries, reading.cache_queries);
                self.hits += grown(last.cache_hits, reading.cache_hits);
                // A pod that did not answer this once is taken up where it was; one that is gone is forgotten with the window.
                *last = (*reading).into();
            } else {
                self.last.add(Arc::clone(name), (*reading).into());
            }
        }
        self.last.sort();
        let started = *self.window_started.get_or_insert(now);
        let elapsed = now.saturating_sub(started);
        if elapsed < WINDOW_MILLIS {
            return None;
        }
        self.last.forget_others(pods.iter().map(|(name, _)| *name));
        Some(self.close(elapsed, now))
    }

    fn close(&mut self, elapsed: Millis, now: Millis) -> LoadReading {
        self.quiet_windows = if self.tokens == 0 {
            self.quiet_windows.saturating_add(1)
        } else {
            0
        };
        let quiet = (1..IDLE_WINDOWS).contains(&self.quiet_windows);
        let rate = self.tokens as f64 * 1000.0 / elapsed as f64;
        let hit = self.hits.min(self.queries) as f64 * 100.0 / self.queries.max(1) as f64;
        let reading = LoadReading {
            tokens_per_second: (!quiet).then_some(rate),
            kv_hit_percent: (self.queries > 0).then_some(hit),
        };
        (self.tokens, self.queries, self.hits) = (0, 0, 0);
        self.window_started = Some(now);
        reading
    }
}

/// Growth of a counter. One that was started anew counts from zero.
fn grown(last: u64, now: u64) -> u64 {
    now.checked_sub(last).unwrap_or(now)
}

/// What the status says of a load, given what it said before.
pub(super) fn load(
    service: &Service,
    reading: Option<LoadReading>,
    previous: Option<&LoadStatus>,
) -> Option<LoadStatus> {
    if service.replicas == 0 {
        return None;
    }
    let Some(reading) = reading else {
        return previous.copied();
    };
    let before = previous.copied().unwrap_or_default();
    let tokens = reading.tokens_per_second.map(two_digits);
    let hit = reading
        .kv_hit_percent
        .map(|percent| (percent / f64::from(HIT_STEP_PERCENT)).round() as i32 * HIT_STEP_PERCENT);
    let told = LoadStatus {
        tokens_per_second: news(before.tokens_per_second, tokens),
        kv_hit_percent: match (before.kv_hit_percent, reading.kv_hit_percent) {
            // On the edge between two steps the one that was told stands.
            (Some(old), Some(new))
                if (f64::from(old) - new).abs() <= f64::from(HIT_STEP_PERCENT) =>
            {
                Some(old)
            }
            (old, _) => hit.or(old),
        },
    };
    (told != LoadStatus::default()).then_some(told)
}

/// The new figure if it says something that the old one did not. That a service which never did anything does nothing is no
/// news.
fn news(old: Option<i64>, new: Option<i64>) -> Option<i64> {
    let (Some(before), Some(now)) = (old, new) else {
        return new.filter(|now| *now > 0).or(old);
    };
    let small = (now - before).abs() * 100 < NEWS_PERCENT * before.max(now);
    Some(if small { before } else { now })
}

pub(super) fn two_digits(value: f64) -> i64 {
    let whole = value.clamp(0.0, 1e15).round() as i64;
    let mut scale = 1;
    while whole / scale >= 100 {
        scale *= 10;
    }
    (whole + scale / 2) / scale * scale
}
