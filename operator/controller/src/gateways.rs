//! What the gateways last told of all services.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagoda_operator_core::{
    autoscale::GatewayReading,
    status::{Contested, RouteView},
};
use tokio::time::Instant;

use crate::key::Key;

/// Gateways that restart are silent for a moment; that is no news for thousands of services.
const SILENCE: Duration = Duration::from_secs(30);

/// Counts of one gateway, by service.
pub type Readings = HashMap<Key, GatewayReading>;
/// One for each gateway that there is; `None` for one that did not answer.
pub type AllReadings = Vec<Option<Readings>>;

/// What the gateways last told.
#[derive(Debug, Default)]
pub struct Gateways(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    told: Option<Arc<AllReadings>>,
    silent_since: Option<Instant>,
}

impl Gateways {
    /// Takes in a round of answers, and returns the services whose routes changed; `None` for all.
    pub fn take(&self, readings: &Arc<AllReadings>, now: Instant) -> Option<Vec<Key>> {
        let mut state = self.lock();
        if readings.iter().flatten().next().is_some() {
            state.silent_since = None;
        } else {
            let since = *state.silent_since.get_or_insert(now);
            if now - since < SILENCE {
                return Some(Vec::new());
            }
        }
        let before = state.told.replace(readings.clone());
        before.and_then(|before| changes(&before, readings))
    }

    /// Whether the gateways know a service; `None` before they were asked.
    pub fn route_view(&self, service: &Key, contested: Vec<Contested>) -> Option<RouteView> {
        let told = self.lock().told.clone()?;
        Some(RouteView::of(&of_service(&told, service), contested))
    }

    /// A gateway's counts under the keys that are known of the last time: thousands of names need not be copied every second.
    pub fn keyed(&self, counts: &HashMap<(&str, &str), GatewayReading>) -> Readings {
        let told = self.lock().told.clone();
        let before = || told.iter().flat_map(|all| all.iter().flatten());
        let mut text = String::new();
        let mut key = |namespace: &str, name: &str| {
            text.clear();
            text.extend([namespace, "/", name]);
            let known = before().find_map(|known| known.get_key_value(text.as_str()));
            known.map_or_else(|| Key::new(namespace, name), |(key, _)| key.clone())
        };
        let counts = counts.iter();
        counts
            .map(|((namespace, name), reading)| (key(namespace, name), *reading))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What each gateway told of one service. One that answers and has no series has had no request for it.
pub fn of_service(all: &AllReadings, service: &Key) -> Vec<Option<GatewayReading>> {
    let of = |gateway: &Option<Readings>| {
        gateway
            .as_ref()
            .map(|readings| readings.get(service).copied().unwrap_or_default())
    };
    all.iter().map(of).collect()
}

/// Services that are known to all who answer now and were not before, or the other way round. `None` when nobody answered
/// before and somebody does now, or the other way round.
fn changes(before: &AllReadings, after: &AllReadings) -> Option<Vec<Key>> {
    let answered = |all: &AllReadings| all.iter().flatten().count() > 0;
    if answered(before) != answered(after) {
        return None;
    }
    let (lost, won) = (known(before, after), known(after, before));
    Some(lost.chain(won).cloned().collect())
}

/// Services that every gateway which answered knows in the one and not in the other.
fn known<'a>(all: &'a AllReadings, other: &'a AllReadings) -> impl Iterator<Item = &'a Key> {
    let first = all.iter().flatten().next();
    let keys = first.into_iter().flat_map(HashMap::keys);
    keys.filter(move |service| is_known(all, service) && !is_known(other, service))
}

/// Whether every gateway which answered knows a service.
fn is_known(all: &AllReadings, service: &Key) -> bool {
    let mut answers = all.iter().flatten().peekable();
    let knows = |readings: &Readings| {
        let reading = readings.get(service);
        reading.is_some_and(|r| r.route_pods.is_some())
    };
    answers.peek().is_some() && answers.all(knows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(services: &[&str]) -> Readings {
        let reading = GatewayReading {
            route_pods: Some(1),
            ..GatewayReading::default()
        };
        let named = services.iter().map(|s| (Key::new("n", s), reading));
        named.collect()
    }

    #[test]
    fn a_service_is_looked_at_when_the_last_gateway_learns_of_it() {
        let gateways = Gateways::default();
        let now = Instant::now();
        let take = |all: AllReadings| gateways.take(&Arc::new(all), now);
        assert_eq!(
            take(vec![Some(gateway(&["a"])), Some(gateway(&[]))]),
            None,
            "the first words"
        );
        assert_eq!(
            take(vec![Some(gateway(&["a"])), Some(gateway(&[]))]),
            Some(vec![])
        );
        let all = take(vec![Some(gateway(&["a"])), Some(gateway(&["a"]))]);
        assert_eq!(all, Some(vec![Key::new("n", "a")]));
        let view = gateways.route_view(&Key::new("n", "a"), Vec::new());
        assert_eq!(view.map(|v| (v.answered, v.knowing)), Some((2, 2)));
    }

    #[test]
    fn a_moment_of_silence_is_no_news_and_a_long_one_is() {
        let gateways = Gateways::default();
        let now = Instant::now();
        let service = Key::new("n", "a");
        gateways.take(&Arc::new(vec![Some(gateway(&["a"]))]), now);
        let silent = Arc::new(vec![None]);
        assert_eq!(gateways.take(&silent, now), Some(vec![]));
        let answered = || {
            gateways
                .route_view(&service, Vec::new())
                .map(|v| v.answered)
        };
        assert_eq!(answered(), Some(1));
        assert_eq!(gateways.take(&silent, now + SILENCE), None);
        assert_eq!(answered(), Some(0));
    }
}
