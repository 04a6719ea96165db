//! What is remembered of each service that is scaled, and when it is looked at.
//!
//! A service is looked at when its last decision asked for it, and before that whenever something is new: its spec, its
//! pods, what a gateway counts. A service that nobody asks for anything costs a comparison a second.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use pagoda_crds::api::CapacityStatus;
use pagoda_operator_core::{
    autoscale::{GatewayReading, History, Millis},
    status::{Standing, told_capacity},
};
use tokio::time::Instant;

use crate::stores::{PodRow, ServiceRow};

/// A number of pods that was written is believed for so long before the watch has brought it.
const ECHO: Duration = Duration::from_secs(10);
/// A standing is told once it has lasted for so long: what passes by itself within moments is no news.
const LASTING: Duration = Duration::from_secs(3);

/// What is remembered of a service.
#[derive(Debug)]
pub struct Watched {
    /// Its UID: one of the same name that was made anew begins without.
    pub uid: Arc<str>,
    /// What pods were seen to carry, as far as its status tells.
    pub capacity: Arc<[CapacityStatus]>,
    /// What its next decision must remember.
    pub history: History,
    /// When it asked to be looked at next.
    next_look: Millis,
    /// Digest of what it was last decided on.
    seen: u64,
    /// What was written, at which generation of its spec, and when.
    written: Option<(i64, u32, Instant)>,
    /// How it stands, and since when.
    standing: Option<(Standing, Instant)>,
}

impl Watched {
    /// A service that was not watched before; what was learned of its pods stands in its status.
    pub fn begin(row: &ServiceRow) -> Self {
        let status = row.object().and_then(|object| object.status);
        let scaling = status.and_then(|status| status.scaling);
        let capacity = scaling.map(|s| s.capacity).unwrap_or_default();
        Self {
            uid: row.uid.as_str().into(),
            history: History::restore(&capacity),
            capacity: capacity.into(),
            next_look: 0,
            seen: 0,
            written: None,
            standing: None,
        }
    }

    /// Takes in what pods were seen to carry since; returns it when it is news for the status.
    pub fn learn(&mut self) -> Option<Vec<CapacityStatus>> {
        let learned = self.history.capacity();
        let told = told_capacity(&self.capacity, learned.clone());
        if learned.is_empty() || told == *self.capacity {
            return None;
        }
        self.capacity = told.into();
        Some(learned)
    }

    /// Whether it is to be looked at now, on what is seen of it.
    pub fn is_due(&self, seen: u64, now: Millis) -> bool {
        now >= self.next_look || seen != self.seen
    }

    /// It was looked at.
    pub fn looked(&mut self, seen: u64, next_look: Millis) {
        self.seen = seen;
        self.next_look = next_look;
    }

    /// Pods that its spec asks for, as far as this process knows: the watch may not have brought yet what was just written.
    pub fn current(&mut self, generation: i64, replicas: u32, now: Instant) -> u32 {
        match self.written {
            Some((at, written, when)) if generation <= at && now - when < ECHO => written,
            _ => {
                self.written = None;
                replicas
            }
        }
    }

    /// A number of pods was written.
    pub fn wrote(&mut self, generation: i64, replicas: u32, now: Instant) {
        self.written = Some((generation, replicas, now));
        // Whatever the decision asked for, it spoke of another number.
        self.next_look = 0;
    }

    /// Takes in how it stands; returns what is to be told, once it has lasted. The first is told at once.
    pub fn stands(&mut self, standing: Standing, now: Instant) -> Option<Standing> {
        let since = match &self.standing {
            None => return self.begins(standing, now, true),
            Some((before, since)) if *before == standing => *since,
            Some(_) => return self.begins(standing, now, false),
        };
        let lasts = now - since >= LASTING;
        if !lasts {
            self.next_look = 0;
        }
        lasts.then_some(standing)
    }

    fn begins(&mut self, standing: Standing, now: Instant, first: bool) -> Option<Standing> {
        self.standing = Some((standing.clone(), now));
        // Waiting to see whether it lasts takes another look.
        self.next_look = 0;
        first.then_some(standing)
    }
}

/// Digest of what a service is decided on, but for what its pods tell.
pub fn digest(
    generation: i64,
    current: u32,
    gateways: &[Option<GatewayReading>],
    pods: &[Arc<PodRow>],
) -> u64 {
    let mut hasher = DefaultHasher::new();
    (generation, current, gateways.len(), pods.len()).hash(&mut hasher);
    for gateway in gateways {
        let counts = gateway.as_ref().map(|g| (g.held, g.in_flight, g.finished));
        counts.hash(&mut hasher);
    }
    let ready = pods.iter().filter(|pod| pod.view.ready).count();
    ready.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> Watched {
        Watched {
            uid: "uid".into(),
            history: History::default(),
            capacity: Arc::default(),
            next_look: 0,
            seen: 0,
            written: None,
            standing: None,
        }
    }

    #[test]
    fn what_was_just_written_counts_until_the_watch_brings_it() {
        let (mut watched, now) = (watched(), Instant::now());
        watched.wrote(7, 5, now);
        assert_eq!(watched.current(7, 2, now), 5, "the watch is behind");
        assert_eq!(watched.current(8, 4, now), 4, "somebody wrote since");
        assert_eq!(watched.current(7, 2, now), 2, "and that stands");
        watched.wrote(7, 5, now);
        assert_eq!(watched.current(7, 2, now + ECHO), 2, "it never came");
    }

    #[test]
    fn a_service_is_looked_at_when_it_asked_for_it_and_when_something_is_new() {
        let mut watched = watched();
        watched.looked(11, 5000);
        assert!(!watched.is_due(11, 4999));
        assert!(watched.is_due(11, 5000));
        assert!(watched.is_due(12, 1000));
    }

    #[test]
    fn what_passes_within_moments_is_not_told() {
        let (mut watched, start) = (watched(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        assert_eq!(
            watched.stands(Standing::Follows, at(0)),
            Some(Standing::Follows)
        );
        assert_eq!(watched.stands(Standing::PartialMetrics, at(1)), None);
        assert_eq!(watched.stands(Standing::Follows, at(2)), None);
        assert_eq!(watched.stands(Standing::PartialMetrics, at(3)), None);
        assert_eq!(
            watched.stands(Standing::PartialMetrics, at(6)),
            Some(Standing::PartialMetrics)
        );
    }

    #[test]
    fn a_request_at_a_gateway_is_new() {
        let gateway = |held| {
            [Some(GatewayReading {
                held,
                ..GatewayReading::default()
            })]
        };
        let quiet = digest(1, 0, &gateway(0), &[]);
        assert_eq!(quiet, digest(1, 0, &gateway(0), &[]));
        assert_ne!(quiet, digest(1, 0, &gateway(1), &[]));
        assert_ne!(quiet, digest(1, 0, &[None], &[]));
        assert_ne!(quiet, digest(2, 0, &gateway(0), &[]));
    }
}
