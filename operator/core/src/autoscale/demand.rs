//! What clients ask of a service, out of what gateways and pods counted.

use std::collections::{BTreeMap, HashMap};

use super::{Observation, PodReading};
use crate::exposition::{ExpositionError, declares, parse};

const HELD: &str = "pagoda_gateway_held_requests";
const IN_FLIGHT: &str = "pagoda_gateway_in_flight_requests";
const REQUESTS: &str = "pagoda_gateway_requests_total";
const ROUTE_PODS: &str = "pagoda_gateway_route_pods";

/// Demand on one service at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Whether every gateway and every ready pod has said its part. If not, the counts are lower bounds.
    pub complete: bool,
    /// Whether anybody has said anything.
    pub known: bool,
    /// Requests that gateways hold for want of a ready pod.
    pub held: u64,
    /// Requests that run or wait in pods.
    pub in_flight: u64,
    /// Requests that ever came to the gateways that run now.
    pub gateway_arrivals: Option<u64>,
    /// Requests that ever came to the pods that run now.
    pub pod_arrivals: Option<u64>,
}

impl Demand {
    /// Surely nobody asks for anything now.
    pub(super) fn is_quiet(&self) -> bool {
        self.complete && self.held == 0 && self.in_flight == 0
    }

    /// Thousandths of requests held, waiting and running, if known.
    pub(super) fn in_flight_milli(&self) -> Option<u64> {
        self.known.then(|| {
            self.held
                .saturating_add(self.in_flight)
                .saturating_mul(1000)
        })
    }
}

/// Counts of one gateway for one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayReading {
    /// Requests held.
    pub held: u64,
    /// Requests forwarded and not finished.
    pub in_flight: u64,
    /// Requests finished.
    pub finished: u64,
    /// Ready pods that it knows of; none when it does not know the service.
    pub route_pods: Option<u64>,
}

impl GatewayReading {
    /// Reads a gateway's metrics into counts for each `(namespace, service)`. A service without series has had no
    /// request; a text that does not even declare them is not a gateway's.
    pub fn parse_all(text: &str) -> Result<BTreeMap<(String, String), Self>, ExpositionError> {
        if !declares(text, IN_FLIGHT) {
            return Err(ExpositionError::Malformed(IN_FLIGHT.to_owned()));
        }
        // Several series for each service, and one copy of its name.
        let mut readings: HashMap<(&str, &str), Self> = HashMap::new();
        for sample in parse(text, &[HELD, IN_FLIGHT, REQUESTS, ROUTE_PODS])? {
            let (Some(namespace), Some(service)) =
                (sample.label("namespace"), sample.label("service"))
            else {
                continue;
            };
            let reading = readings.entry((namespace, service)).or_default();
            match sample.name {
                HELD => reading.held += sample.count(),
                IN_FLIGHT => reading.in_flight += sample.count(),
                ROUTE_PODS => *reading.route_pods.get_or_insert(0) += sample.count(),
                _ => reading.finished += sample.count(),
            }
        }
        let named = readings.into_iter();
        Ok(named
            .map(|((namespace, service), reading)| {
                ((namespace.to_owned(), service.to_owned()), reading)
            })
            .collect())
    }
}

/// What everybody who was asked has said about one service; `None` for one who did not answer in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceReadings {
    /// Gateways.
    pub gateways: Vec<Option<GatewayReading>>,
    /// Ready pods.
    pub pods: Vec<Option<PodReading>>,
}

/// Sums readings up.
///
/// A request through the gateway is counted by its pod as well, and one past the gateway by the pod alone: so the
/// larger count is the better one. Without any gateway nobody knows what is held.
pub fn observe(current: u32, ready: u32, readings: &ServiceReadings) -> Observation {
    let gateways: Vec<_> = readings.gateways.iter().flatten().collect();
    let pods: Vec<_> = readings.pods.iter().flatten().collect();
    let all_gateways = !readings.gateways.is_empty() && gateways.len() == readings.gateways.len();
    let all_pods = pods.len() == readings.pods.len();
    let held: u64 = gateways.iter().map(|g| g.held).sum();
    let forwarded: u64 = gateways.iter().map(|g| g.in_flight).sum();
    let in_pods: u64 = pods.iter().map(|p| p.running + p.waiting).sum();
    let finished: u64 = gateways.iter().map(|g| g.finished).sum();
    // A server that does not count what it finished tells nothing of arrivals.
    let done: Option<u64> = pods.iter().map(|p| p.finished).sum();
    Observation {
        current,
        ready,
        demand: Demand {
            complete: all_gateways && all_pods,
            known: !gateways.is_empty() || !pods.is_empty(),
            held,
            in_flight: forwarded.max(in_pods),
            gateway_arrivals: all_gateways.then_some(finished + forwarded + held),
            pod_arrivals: done
                .filter(|_| all_pods && !pods.is_empty())
                .map(|done| done + in_pods),
        },
    }
}
