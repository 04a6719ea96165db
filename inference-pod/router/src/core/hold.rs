//! Requests that wait until a pod can take them: how many, how large, and when they go.
//!
//! While a service has no ready pod its requests are held, and let go in the order they came, in
//! waves as large as the ready pods' capacity: the first of three new pods is not given everything
//! that waited for all of them. Whoever is held past its deadline is the caller's to refuse.

use std::collections::BTreeMap;

use thiserror::Error;

/// Why a request may not wait.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// The service's bound on held requests is reached.
    #[error("the most requests that may wait for it, {0}, already do")]
    TooManyRequests(usize),
    /// The bound on the held requests' bytes is reached.
    #[error("the requests that wait for it would hold more than {0} bytes")]
    TooManyBytes(usize),
    /// The gateway is shutting down.
    #[error("this gateway is shutting down")]
    Closed,
}

/// The bounds on one service's held requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most requests.
    pub max_requests: usize,
    /// The most bytes of request bodies.
    pub max_bytes: usize,
}

/// Names one entry of a [`HoldQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// One service's held requests, each with what wakes it (`T`).
///
/// An entry counts towards the bounds from [`HoldQueue::admit`] to [`HoldQueue::leave`]; it is let go at
/// most once, by [`HoldQueue::release`], and counts until its owner leaves.
#[derive(Debug)]
pub struct HoldQueue<T> {
    waiting: BTreeMap<Ticket, T>,
    next_ticket: u64,
    requests: usize,
    bytes: usize,
    closed: bool,
}

impl<T> Default for HoldQueue<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            next_ticket: 0,
            requests: 0,
            bytes: 0,
            closed: false,
        }
    }
}

impl<T> HoldQueue<T> {
    /// Takes a place for a request of `bytes`, without a position in the queue.
    pub fn admit(&mut self, bytes: usize, limits: Limits) -> Result<(), Refusal> {
        if self.closed {
            return Err(Refusal::Closed);
        }
        if self.requests >= limits.max_requests {
            return Err(Refusal::TooManyRequests(limits.max_requests));
        }
        if self.bytes.saturating_add(bytes) > limits.max_bytes {
            return Err(Refusal::TooManyBytes(limits.max_bytes));
        }
        self.requests += 1;
        self.bytes += bytes;
        Ok(())
    }

    /// Puts an admitted request at the end of the queue.
    pub fn enqueue(&mut self, wake: T) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.waiting.insert(ticket, wake);
        ticket
    }

    /// Gives an admitted request's place back, wherever it stood.
    pub fn leave(&mut self, ticket: Option<Ticket>, bytes: usize) {
        if let Some(ticket) = ticket {
            self.waiting.remove(&ticket);
        }
        self.requests = self.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Takes the request that has waited longest out of the queue.
    pub fn release(&mut self) -> Option<T> {
        self.waiting.pop_first().map(|(_, wake)| wake)
    }

    /// Refuses whoever comes from now on and returns whoever waits.
    pub fn close(&mut self) -> Vec<T> {
        self.closed = true;
        std::mem::take(&mut self.waiting).into_values().collect()
    }

    /// Requests still in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that count towards the bound.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Bytes that count towards the bound.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// How many of the waiting requests may go now.
///
/// `in_flight` counts requests at the pods and those let go that have not reached one yet.
pub fn releasable(
    waiting: usize,
    ready_pods: usize,
    in_flight: usize,
    pod_capacity: usize,
) -> usize {
    let capacity = ready_pods.saturating_mul(pod_capacity.max(1));
    waiting.min(capacity.saturating_sub(in_flight))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        max_requests: 3,
        max_bytes: 100,
    };

    #[test]
    fn refuses_past_the_bound_on_requests_and_says_which() {
        let mut queue = HoldQueue::<u32>::default();
        for _ in 0..3 {
            queue.admit(1, LIMITS).expect("within bounds");
        }
        assert_eq!(queue.admit(1, LIMITS), Err(Refusal::TooManyRequests(3)));
        queue.leave(None, 1);
        assert_eq!(queue.admit(1, LIMITS), Ok(()));
    }

    #[test]
    fn refuses_past_the_bound_on_bytes() {
        let mut queue = HoldQueue::<u32>::default();
        queue.admit(60, LIMITS).expect("within bounds");
        assert_eq!(queue.admit(41, LIMITS), Err(Refusal::TooManyBytes(100)));
        assert_eq!(queue.admit(40, LIMITS), Ok(()));
        assert_eq!(
            queue.admit(usize::MAX, LIMITS),
            Err(Refusal::TooManyBytes(100))
        );
    }

    #[test]
    fn lets_go_in_order_and_skips_whoever_left() {
        let mut queue = HoldQueue::default();
        let tickets: Vec<_> = (0..3)
            .map(|n| {
                queue.admit(1, LIMITS).expect("fits");
                queue.enqueue(n)
            })
            .collect();
        queue.leave(Some(tickets[1]), 1);
        assert_eq!(queue.release(), Some(0));
        assert_eq!(queue.release(), Some(2));
        assert_eq!(queue.release(), None);
        assert_eq!(queue.requests(), 2, "released ones count until they leave");
    }

    #[test]
    fn a_closed_queue_returns_the_waiting_and_admits_nobody() {
        let mut queue = HoldQueue::default();
        queue.admit(1, LIMITS).expect("fits");
        queue.enqueue("waits");
        assert_eq!(queue.close(), ["waits"]);
        assert_eq!(queue.admit(1, LIMITS), Err(Refusal::Closed));
    }

    #[test]
    fn nothing_goes_without_a_ready_pod_and_a_wave_fills_the_pods_there_are() {
        assert_eq!(releasable(50, 0, 0, 8), 0);
        assert_eq!(releasable(50, 1, 0, 8), 8);
        assert_eq!(releasable(50, 2, 8, 8), 8);
        assert_eq!(releasable(3, 2, 0, 8), 3);
        assert_eq!(releasable(3, 1, 40, 8), 0);
        assert_eq!(
            releasable(3, 1, 0, 0),
            1,
            "a capacity of nothing would hold for ever"
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Admit(usize),
        Leave(usize),
        Release,
    }

    proptest! {
        #[test]
        fn bounds_hold_and_order_is_kept_after_any_history(steps in proptest::collection::vec(
            prop_oneof![(0usize..60).prop_map(Step::Admit), (0usize..8).prop_map(Step::Leave), Just(Step::Release)], 0..80)
        ) {
            let mut queue = HoldQueue::default();
            let mut inside: Vec<(Ticket, usize, u32)> = Vec::new();
            let mut waiting: Vec<u32> = Vec::new();
            let mut serial = 0;
            for step in steps {
                match step {
                    Step::Admit(bytes) => if queue.admit(bytes, LIMITS).is_ok() {
                        serial += 1;
                        inside.push((queue.enqueue(serial), bytes, serial));
                        waiting.push(serial);
                    },
                    Step::Leave(nth) => if nth < inside.len() {
                        let (ticket, bytes, serial) = inside.remove(nth);
                        queue.leave(Some(ticket), bytes);
                        waiting.retain(|waits| *waits != serial);
                    },
                    Step::Release => {
                        let expected = (!waiting.is_empty()).then(|| waiting.remove(0));
                        prop_assert_eq!(queue.release(), expected);
                    }
                }
                prop_assert_eq!(queue.requests(), inside.len());
                prop_assert_eq!(queue.bytes(), inside.iter().map(|(_, bytes, _)| bytes).sum::<usize>());
                prop_assert_eq!(queue.waiting(), waiting.len());
                prop_assert!(queue.requests() <= LIMITS.max_requests && queue.bytes() <= LIMITS.max_bytes);
            }
        }

        #[test]
        fn a_wave_never_exceeds_capacity_nor_what_waits(waiting in 0usize..2000, pods in 0usize..300, in_flight in 0usize..5000, capacity in 0usize..300) {
            let wave = releasable(waiting, pods, in_flight, capacity);
            prop_assert!(wave <= waiting);
            prop_assert!(wave == 0 || wave + in_flight <= pods * capacity.max(1));
        }
    }
}
