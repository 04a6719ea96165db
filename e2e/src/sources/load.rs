//! The load of one service and what its pods counted of it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::fault::Fault;
use super::lock;

/// What a request is like: so many seconds, prompt tokens and generated tokens.
const REQUEST_SECONDS: f64 = 2.0;
pub(super) const PROMPT_TOKENS: f64 = 200.0;
pub(super) const GENERATED_TOKENS: f64 = 100.0;
/// Requests that run in a pod at once; further ones wait in it.
const SEQUENCES: u64 = 64;

/// What one pod or gateway counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) running: u64,
    pub(super) waiting: u64,
    /// Requests finished since it began.
    pub(super) finished: f64,
}

/// Load of a service, shared evenly by its ready pods; held by the gateway while there is none.
#[derive(Debug)]
pub struct ServiceLoad(Mutex<State>);

#[derive(Debug)]
struct State {
    in_flight: u64,
    as_of: Instant,
    /// Finished at the gateway.
    finished: f64,
    pods: BTreeMap<Ipv4Addr, Pod>,
    fault: Fault,
    /// How many of the pods have it.
    faulty: usize,
}

#[derive(Debug, Default)]
struct Pod {
    finished: f64,
}

impl Default for ServiceLoad {
    fn default() -> Self {
        Self(Mutex::new(State {
            in_flight: 0,
            as_of: Instant::now(),
            finished: 0.0,
            pods: BTreeMap::new(),
            fault: Fault::None,
            faulty: 0,
        }))
    }
}

impl ServiceLoad {
    /// From now on so many requests are open at any time. Each takes two seconds, so half as many arrive a second.
    pub fn set_in_flight(&self, requests: u64) {
        self.now().in_flight = requests;
    }

    /// What is wrong with the first `pods` of its pods, by address; the others are sound.
    pub fn set_fault(&self, fault: Fault, pods: usize) {
        let mut state = self.now();
        (state.fault, state.faulty) = (fault, pods);
    }

    /// All counters begin at zero, as those of programs that started again.
    pub fn reset_counters(&self) {
        let mut state = self.now();
        state.finished = 0.0;
        state.pods.values_mut().for_each(|pod| pod.finished = 0.0);
    }

    /// Ready pods.
    pub fn pods(&self) -> usize {
        lock(&self.0).pods.len()
    }

    pub(super) fn add_pod(&self, address: Ipv4Addr) {
        self.now().pods.entry(address).or_default();
    }

    pub(super) fn remove_pod(&self, address: Ipv4Addr) {
        self.now().pods.remove(&address);
    }

    /// What the pod at `address` has counted until `now`, and what is wrong with it.
    pub(super) fn pod(&self, address: Ipv4Addr, now: Instant) -> (Counts, Fault) {
        let mut state = lock(&self.0);
        state.advance(now);
        let Some(index) = state.pods.keys().position(|known| *known == address) else {
            return (Counts::default(), Fault::None);
        };
        let pods = state.pods.len() as u64;
        let (each, rest) = (state.in_flight / pods, state.in_flight % pods);
        let open = each + u64::from((index as u64) < rest);
        let counts = Counts {
            running: open.min(SEQUENCES),
            waiting: open.saturating_sub(SEQUENCES),
            finished: state.pods[&address].finished,
        };
        let fault = if index < state.faulty {
            state.fault
        } else {
            Fault::None
        };
        (counts, fault)
    }

    /// What a gateway has counted until `now`: held as `waiting`, forwarded as `running`; and the ready pods.
    pub(super) fn gateway(&self, now: Instant) -> (Counts, usize) {
        let mut state = lock(&self.0);
        state.advance(now);
        let pods = state.pods.len();
        let (running, waiting) = if pods == 0 {
            (0, state.in_flight)
        } else {
            (state.in_flight, 0)
        };
        let counts = Counts {
            running,
            waiting,
            finished: state.finished,
        };
        (counts, pods)
    }

    fn now(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.0);
        state.advance(Instant::now());
        state
    }
}

impl State {
    /// Counts what has finished since the last look.
    fn advance(&mut self, now: Instant) {
        let since: Duration = now.saturating_duration_since(self.as_of);
        self.as_of = self.as_of.max(now);
        if self.pods.is_empty() {
            return;
        }
        let finished = self.in_flight as f64 / REQUEST_SECONDS * since.as_secs_f64();
        let each = finished / self.pods.len() as f64;
        self.finished += finished;
        for pod in self.pods.values_mut() {
            pod.finished += each;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, 128, last)
    }

    #[test]
    fn without_a_pod_requests_are_held_and_with_pods_they_are_shared_without_a_rest() {
        let load = ServiceLoad::default();
        load.set_in_flight(11);
        let now = Instant::now();
        assert_eq!(load.gateway(now).0.waiting, 11);
        (1..=3).for_each(|last| load.add_pod(address(last)));
        let running: Vec<u64> = (1..=3)
            .map(|last| load.pod(address(last), now).0.running)
            .collect();
        assert_eq!(running, [4, 4, 3]);
        let (counts, pods) = load.gateway(now);
        assert_eq!((counts.running, counts.waiting, pods), (11, 0, 3));
    }

    #[test]
    fn what_pods_count_is_what_the_gateway_counts_and_begins_anew_when_told() {
        let load = ServiceLoad::default();
        (1..=4).for_each(|last| load.add_pod(address(last)));
        load.set_in_flight(80);
        let later = Instant::now() + Duration::from_secs(10);
        let finished: f64 = (1..=4)
            .map(|last| load.pod(address(last), later).0.finished)
            .sum();
        assert!((finished - load.gateway(later).0.finished).abs() < 1e-6);
        assert!((395.0..=405.0).contains(&finished), "{finished}");
        load.reset_counters();
        assert!(load.pod(address(1), later).0.finished < 1e-9);
    }

    #[test]
    fn a_fault_of_one_pod_is_not_the_others() {
        let load = ServiceLoad::default();
        (1..=2).for_each(|last| load.add_pod(address(last)));
        load.set_fault(Fault::Garbage, 1);
        let now = Instant::now();
        assert_eq!(load.pod(address(1), now).1, Fault::Garbage);
        assert_eq!(load.pod(address(2), now).1, Fault::None);
    }
}
