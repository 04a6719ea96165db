//! What to do when a pod has not answered.
//!
//! Nothing of a response has reached the client when these questions are asked; afterwards there is
//! no retry. A request a pod never took may be offered again as long as its client waits. One that a
//! pod may have begun is offered again a bounded number of times: a request that kills its pod must
//! not walk through all of them.

use std::time::Duration;

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection: the pod has seen nothing.
    Connect,
    /// The pod answered 503 with `Retry-After`: it drains or is full, and has done nothing.
    Refused,
    /// The connection ended, or what came was not HTTP, before a response head: the pod may have begun.
    Broken,
    /// No response head in time; the pod may still be at it.
    TimedOut,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Offer it to a pod that has not failed it, at once.
    OtherPod,
    /// Every pod has failed it: wait this long, or until the pods change, then offer it to any.
    Wait(Duration),
    /// Tell the client.
    GiveUp,
}

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// One request's attempts so far.
#[derive(Clone, Copy, Debug)]
pub struct Attempts {
    max_begun: u32,
    begun: u32,
    rounds: u32,
}

impl Attempts {
    /// A request that may be begun by `max_begun` pods, at least one.
    pub fn new(max_begun: u32) -> Self {
        Self {
            max_begun: max_begun.max(1),
            begun: 0,
            rounds: 0,
        }
    }

    /// Notes a failure and says what to do. `untried` is the number of ready pods that have not failed
    /// this request since the last wait; `left` is how much longer its client may be kept waiting.
    pub fn after(&mut self, failure: Failure, untried: usize, left: Duration) -> Next {
        match failure {
            Failure::TimedOut => return Next::GiveUp,
            Failure::Broken => self.begun += 1,
            Failure::Connect | Failure::Refused => {}
        }
        if self.begun >= self.max_begun {
            return Next::GiveUp;
        }
        if untried > 0 {
            return Next::OtherPod;
        }
        if left.is_zero() {
            return Next::GiveUp;
        }
        let wait = FIRST_WAIT
            .saturating_mul(1 << self.rounds.min(16))
            .min(LONGEST_WAIT);
        self.rounds += 1;
        Next::Wait(wait.min(left))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn a_pod_that_never_took_the_request_is_passed_over_at_once() {
        let mut attempts = Attempts::new(3);
        for failure in [
            Failure::Connect,
            Failure::Refused,
            Failure::Connect,
            Failure::Refused,
        ] {
            assert_eq!(attempts.after(failure, 1, MINUTE), Next::OtherPod);
        }
    }

    #[test]
    fn a_request_that_may_have_been_begun_is_offered_a_bounded_number_of_times() {
        let mut attempts = Attempts::new(3);
        assert_eq!(attempts.after(Failure::Broken, 5, MINUTE), Next::OtherPod);
        assert_eq!(attempts.after(Failure::Broken, 5, MINUTE), Next::OtherPod);
        assert_eq!(attempts.after(Failure::Broken, 5, MINUTE), Next::GiveUp);
    }

    #[test]
    fn a_request_still_being_worked_on_is_never_doubled() {
        assert_eq!(
            Attempts::new(3).after(Failure::TimedOut, 5, MINUTE),
            Next::GiveUp
        );
    }

    #[test]
    fn waits_grow_and_end_with_the_clients_deadline() {
        let mut attempts = Attempts::new(3);
        let waits: Vec<_> = (0..8)
            .map(|_| attempts.after(Failure::Connect, 0, MINUTE))
            .collect();
        assert_eq!(waits[0], Next::Wait(Duration::from_millis(50)));
        assert_eq!(waits[1], Next::Wait(Duration::from_millis(100)));
        assert_eq!(waits[7], Next::Wait(LONGEST_WAIT));
        assert_eq!(
            attempts.after(Failure::Connect, 0, Duration::from_millis(3)),
            Next::Wait(Duration::from_millis(3))
        );
        assert_eq!(
            attempts.after(Failure::Connect, 0, Duration::ZERO),
            Next::GiveUp
        );
    }

    proptest! {
        #[test]
        fn no_run_of_failures_begins_a_request_more_often_than_allowed(
            failures in proptest::collection::vec((0..4u8, 0..3usize, 0..5u64), 0..200), max_begun in 0..5u32,
        ) {
            let mut attempts = Attempts::new(max_begun);
            let mut begun = 0;
            for (kind, untried, left_seconds) in failures {
                let failure = [Failure::Connect, Failure::Refused, Failure::Broken, Failure::TimedOut][kind as usize];
                begun += u32::from(failure == Failure::Broken);
                let left = Duration::from_secs(left_seconds);
                match attempts.after(failure, untried, left) {
                    Next::GiveUp => return Ok(()),
                    Next::OtherPod => prop_assert!(untried > 0),
                    Next::Wait(wait) => prop_assert!(untried == 0 && wait <= left && wait <= LONGEST_WAIT),
                }
                prop_assert!(begun < max_begun.max(1));
            }
        }
    }
}
