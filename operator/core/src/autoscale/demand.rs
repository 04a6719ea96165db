//! What clients ask of a service, out of what gateways and pods counted.

use std::{collections::HashMap, sync::Arc};

use super::{Millis, PodReading};
use crate::exposition::{ExpositionError, declares, parse};

const HELD: &str = "pagoda_gateway_held_requests";
const IN_FLIGHT: &str = "pagoda_gateway_in_flight_requests";
const REQUESTS: &str = "pagoda_gateway_requests_total";
const ROUTE_PODS: &str = "pagoda_gateway_route_pods";

/// What is known of a service at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Pods that the spec asks for.
    pub current: u32,
    /// Pods that answer.
    pub ready: u32,
    /// What clients ask of it.
    pub demand: Demand,
    /// Every pod that lives and stays.
    pub pods: Vec<PodSeen>,
    /// Answers of a Prometheus, in the order of the spec.
    pub queries: Vec<Option<QueryReading>>,
}

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
    /// Requests that wait in pods.
    pub waiting: u64,
    /// Requests that ever came to the gateways that run now.
    pub gateway_arrivals: Option<u64>,
}

impl Demand {
    /// Surely nobody asks for anything now.
    pub(super) fn is_quiet(&self) -> bool {
        self.complete && self.held == 0 && self.in_flight == 0
    }

    /// Thousandths of requests held, waiting and running, if known.
    pub(super) fn in_flight_milli(&self) -> Option<u64> {
        let all = self.held.saturating_add(self.in_flight);
        self.known.then(|| all.saturating_mul(1000))
    }

    /// Thousandths of requests held and waiting, if known.
    pub(super) fn queued_milli(&self) -> Option<u64> {
        let all = self.held.saturating_add(self.waiting);
        self.known.then(|| all.saturating_mul(1000))
    }
}

/// One pod of a service, as it is seen at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSeen {
    /// Its name.
    pub name: Arc<str>,
    /// Revision that it was built from.
    pub revision: Arc<str>,
    /// What it runs on: the node's accelerator product, or its instance type, or `cpu`.
    pub hardware: Arc<str>,
    /// Whether it answers.
    pub ready: bool,
    /// Time since it was made.
    pub age_millis: Millis,
    /// Time since it answers, if it does.
    pub ready_age_millis: Option<Millis>,
    /// What it told; none when it did not answer in time, or is not ready.
    pub reading: Option<PodReading>,
}

/// The answer of a Prometheus to one query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryReading {
    /// Thousandths.
    pub value_milli: u64,
    /// How old the figure itself is.
    pub age_millis: Millis,
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
    pub fn parse_all(text: &str) -> Result<HashMap<(&str, &str), Self>, ExpositionError> {
        if !declares(text, IN_FLIGHT) {
            return Err(ExpositionError::Malformed(IN_FLIGHT.to_owned()));
        }
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
        Ok(readings)
    }
}

/// What everybody who was asked has said about one service; `None` for one who did not answer in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceReadings {
    /// Gateways.
    pub gateways: Vec<Option<GatewayReading>>,
    /// Every pod that lives and stays, ready or not.
    pub pods: Vec<PodSeen>,
    /// One for each query of the spec; none for one that is absent, or is not one figure.
    pub queries: Vec<Option<QueryReading>>,
}

/// Sums readings up.
///
/// A request through the gateway is counted by its pod as well, and one past the gateway by the pod alone: so the
/// larger count is the better one. Without any gateway nobody knows what is held.
pub fn observe(current: u32, readings: ServiceReadings) -> Observation {
    let gateways: Vec<_> = readings.gateways.iter().flatten().collect();
    let ready = readings.pods.iter().filter(|pod| pod.ready);
    let told = || ready.clone().filter_map(|pod| pod.reading.as_ref());
    let all_gateways = !readings.gateways.is_empty() && gateways.len() == readings.gateways.len();
    let all_pods = ready.clone().count() == told().count();
    let held: u64 = sum(gateways.iter().map(|g| g.held));
    let forwarded: u64 = sum(gateways.iter().map(|g| g.in_flight));
    let waiting: u64 = sum(told().map(|p| p.waiting));
    let in_pods: u64 = sum(told().map(|p| p.running)).saturating_add(waiting);
    let finished: u64 = sum(gateways.iter().map(|g| g.finished));
    let arrived = finished.saturating_add(forwarded).saturating_add(held);
    let demand = Demand {
        complete: all_gateways && all_pods,
        known: !gateways.is_empty() || told().next().is_some(),
        held,
        in_flight: forwarded.max(in_pods),
        waiting,
        gateway_arrivals: all_gateways.then_some(arrived),
    };
    let ready = ready.count() as u32;
    Observation {
        current,
        ready,
        demand,
        pods: readings.pods,
        queries: readings.queries,
    }
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}
