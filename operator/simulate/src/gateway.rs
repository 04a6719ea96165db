//! The gateway: chooses a pod by the gateway's own policy, and holds requests while there is none.

use std::collections::VecDeque;
use std::time::Duration;

use pagoda_router_core::choose::{PodView, Policy, RequestView};
use rand::rngs::SmallRng;

use crate::fleet::PodId;
use crate::requests::RequestId;
use crate::time::Nanos;

/// A pod that may be chosen.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The pod.
    pub pod: PodId,
    in_flight: usize,
}

impl PodView for Route {
    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

/// Counts that the gateway's metrics tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayCounts {
    /// Requests held for want of a pod.
    pub held: u64,
    /// Requests forwarded and not finished.
    pub in_flight: u64,
    /// Requests that ever came.
    pub arrived: u64,
    /// Requests that ever ended, well or not.
    pub ended: u64,
}

/// The gateway.
#[derive(Debug, Default)]
pub struct Gateway {
    policy: Policy,
    routes: Vec<Route>,
    /// With the moment at which each gets a 503.
    held: VecDeque<(Nanos, RequestId)>,
    counts: GatewayCounts,
}

impl Gateway {
    /// Its counts.
    pub fn counts(&self) -> GatewayCounts {
        GatewayCounts {
            held: self.held.len() as u64,
            ..self.counts
        }
    }

    /// Pods that may be chosen.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Requests of a pod at this place that are not finished.
    pub fn in_flight_at(&self, route: u32) -> usize {
        self.routes[route as usize].in_flight
    }

    /// A request came.
    pub fn arrive(&mut self) {
        self.counts.arrived += 1;
    }

    /// A request ended that no pod had.
    pub fn refuse(&mut self) {
        self.counts.ended += 1;
    }

    /// From now on this pod may be chosen. Returns its place.
    pub fn add(&mut self, pod: PodId) -> u32 {
        self.routes.push(Route { pod, in_flight: 0 });
        self.routes.len() as u32 - 1
    }

    /// No longer. Returns the pod that is now at that place, if one is.
    pub fn remove(&mut self, place: u32) -> Option<PodId> {
        self.routes.swap_remove(place as usize);
        self.routes.get(place as usize).map(|route| route.pod)
    }

    /// The place that gets a request, of those not `tried`.
    pub fn choose(&self, tried: &[usize], now: Nanos, random: &mut SmallRng) -> Option<usize> {
        let request = RequestView { tried };
        self.policy
            .choose(request, &self.routes, Duration::from_nanos(now), random)
    }

    /// A request goes to the pod at `place`.
    pub fn forward(&mut self, place: usize) {
        self.routes[place].in_flight += 1;
        self.counts.in_flight += 1;
    }

    /// A request ended whose pod is at `place`, if it can still be chosen.
    pub fn end(&mut self, place: Option<u32>) {
        self.counts.in_flight -= 1;
        self.counts.ended += 1;
        if let Some(place) = place {
            self.routes[place as usize].in_flight -= 1;
        }
    }

    /// Whether requests wait here.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Holds a request until `deadline`; false when `most` are held already.
    pub fn hold(&mut self, id: RequestId, deadline: Nanos, most: usize) -> bool {
        let room = self.held.len() < most;
        if room {
            self.held.push_back((deadline, id));
        }
        room
    }

    /// Takes out the one that is held longest, if another request may go: those that run fill at most `places_per_pod`
    /// places of each pod.
    pub fn release(&mut self, places_per_pod: usize) -> Option<(Nanos, RequestId)> {
        let places = self.routes.len() * places_per_pod;
        if self.counts.in_flight as usize >= places {
            return None;
        }
        self.held.pop_front()
    }

    /// Holds on to one that was let go and found no room.
    pub fn hold_again(&mut self, held: (Nanos, RequestId)) {
        self.held.push_front(held);
    }

    /// Takes out one that was held for too long.
    pub fn expire(&mut self, now: Nanos) -> Option<RequestId> {
        match self.held.front() {
            Some((deadline, _)) if *deadline <= now => self.held.pop_front().map(|(_, id)| id),
            _ => None,
        }
    }
}
