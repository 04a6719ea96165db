//! Measures what services carry, for their status.

use std::{collections::HashMap, sync::Arc, time::Duration};

use pagoda_operator_core::{
    autoscale::{PodReading, PodSeen},
    status::{LoadMeter, LoadReading},
};

use crate::{context::Context, key::Key};

/// What a status tells is rounded; a change of less than this share of the figure cannot show in it.
const NEWS_SHARE: f64 = 0.1;
/// The same for the hit rate, in percent.
const NEWS_HIT_PERCENT: f64 = 2.0;

/// Meters of all services whose pods tell their load.
#[derive(Debug, Default)]
pub struct Meters(HashMap<Key, Meter>);

#[derive(Debug, Default)]
struct Meter {
    meter: LoadMeter,
    /// The last that a reconcile was asked for.
    told: Option<LoadReading>,
}

impl Meters {
    /// Takes in what the pods of a service told, and asks for a reconcile when that is news.
    pub fn note(&mut self, context: &Context, service: &Key, pods: &[PodSeen], now: u64) {
        let told: Vec<(&Arc<str>, &PodReading)> = pods
            .iter()
            .filter_map(|pod| Some((&pod.name, pod.reading.as_ref()?)))
            .collect();
        if told.is_empty() && !self.0.contains_key(service) {
            return;
        }
        let meter = self.0.entry(service.clone()).or_default();
        let Some(reading) = meter.meter.note(&told, now) else {
            return;
        };
        if meter.told.is_none_or(|told| is_news(&told, &reading)) {
            meter.told = Some(reading);
            context.remember(service, |memory| memory.load = Some(reading));
            context.queue.add(service.clone(), Duration::ZERO);
        }
    }

    /// Forgets services that are no more.
    pub fn retain(&mut self, exists: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| exists(key));
    }
}

fn is_news(told: &LoadReading, now: &LoadReading) -> bool {
    let moved = |a: Option<f64>, b: Option<f64>, least: &dyn Fn(f64, f64) -> f64| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() > least(a, b),
        // A service that is quiet for a moment keeps its figures.
        (_, None) => false,
        (None, Some(_)) => true,
    };
    moved(told.tokens_per_second, now.tokens_per_second, &|a, b| {
        a.max(b) * NEWS_SHARE
    }) || moved(told.kv_hit_percent, now.kv_hit_percent, &|_, _| {
        NEWS_HIT_PERCENT
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(tokens: Option<f64>, hit: Option<f64>) -> LoadReading {
        LoadReading {
            tokens_per_second: tokens,
            kv_hit_percent: hit,
        }
    }

    #[test]
    fn a_steady_load_and_a_quiet_moment_ask_for_nothing() {
        let steady = reading(Some(100.0), Some(50.0));
        for now in [
            reading(Some(105.0), Some(51.0)),
            reading(None, None),
            reading(Some(95.0), None),
        ] {
            assert!(!is_news(&steady, &now), "{now:?}");
        }
    }

    #[test]
    fn a_load_that_rises_falls_or_begins_does() {
        let steady = reading(Some(100.0), Some(50.0));
        for now in [
            reading(Some(150.0), Some(50.0)),
            reading(Some(0.0), None),
            reading(Some(100.0), Some(60.0)),
        ] {
            assert!(is_news(&steady, &now), "{now:?}");
        }
        assert!(is_news(&reading(None, None), &reading(Some(1.0), None)));
    }
}
