//! How many services may start from zero at once: each loads a model, and together they could bury a registry, a store of
//! models or a node pool.
//!
//! # Guarantees
//! Whoever asks first starts first. A place is given back when a pod of the service answers, when nothing is wanted of the
//! service any more, or when it has taken longer than it may; so no service waits for ever for another that cannot start.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

/// One that has not asked again for this long wants to start no more.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// Places for services that start from zero, by UID.
#[derive(Debug, Default)]
pub struct ColdStarts {
    /// Places; none for as many as ask.
    most: Option<usize>,
    /// Until when each may hold its place.
    starting: HashMap<Arc<str>, Instant>,
    /// Who waits and when it last asked, in order of arrival.
    waiting: VecDeque<(Arc<str>, Instant)>,
}

impl ColdStarts {
    /// So many places; 0 for as many as ask.
    pub fn new(most: usize) -> Self {
        Self {
            most: (most > 0).then_some(most),
            ..Self::default()
        }
    }

    /// Asks for a place, to be held until a deadline at most; `false` means to ask again.
    pub fn ask(&mut self, uid: &Arc<str>, now: Instant, deadline: Duration) -> bool {
        let Some(most) = self.most else {
            return true;
        };
        if self.starting.contains_key(uid) {
            return true;
        }
        let found = self.waiting.iter().position(|(other, _)| other == uid);
        let place = found.unwrap_or_else(|| {
            self.waiting.push_back((uid.clone(), now));
            self.waiting.len() - 1
        });
        self.waiting[place].1 = now;
        if place >= most.saturating_sub(self.starting.len()) {
            return false;
        }
        self.waiting.remove(place);
        self.starting.insert(uid.clone(), now + deadline);
        true
    }

    /// Takes in that a service is on its way from zero already, as after a restart of the operator.
    pub fn holds(&mut self, uid: &Arc<str>, now: Instant, deadline: Duration) {
        if self.most.is_some() {
            self.starting.entry(uid.clone()).or_insert(now + deadline);
        }
    }

    /// A service answers, or nothing is wanted of it any more.
    pub fn done(&mut self, uid: &str) {
        if self.most.is_some() {
            self.starting.remove(uid);
            self.waiting.retain(|(other, _)| **other != *uid);
        }
    }

    /// Takes back the places of those that took too long or are no more, and forgets who asks no longer.
    pub fn sweep(&mut self, now: Instant, exists: impl Fn(&str) -> bool) {
        self.starting
            .retain(|uid, until| *until > now && exists(uid));
        self.waiting
            .retain(|(uid, asked)| now - *asked < FORGOTTEN && exists(uid));
    }

    /// Places; none for as many as ask.
    pub fn most(&self) -> Option<usize> {
        self.most
    }

    /// Services that start, and services that wait to.
    pub fn counts(&self) -> (usize, usize) {
        (self.starting.len(), self.waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEADLINE: Duration = Duration::from_mins(10);

    fn uid(name: &str) -> Arc<str> {
        name.into()
    }

    #[test]
    fn without_a_cap_nobody_waits() {
        let mut starts = ColdStarts::new(0);
        let now = Instant::now();
        assert!((0..100).all(|n| starts.ask(&uid(&n.to_string()), now, DEADLINE)));
        assert_eq!(starts.counts(), (0, 0));
    }

    #[test]
    fn those_beyond_the_cap_start_in_the_order_in_which_they_came() {
        let mut starts = ColdStarts::new(1);
        let now = Instant::now();
        let [a, b, c] = ["a", "b", "c"].map(uid);
        assert!(starts.ask(&a, now, DEADLINE));
        assert!(!starts.ask(&b, now, DEADLINE) && !starts.ask(&c, now, DEADLINE));
        assert!(starts.ask(&a, now, DEADLINE), "it has its place");
        starts.done("a");
        assert!(!starts.ask(&c, now, DEADLINE), "b came first");
        assert!(starts.ask(&b, now, DEADLINE));
        assert_eq!(starts.counts(), (1, 1));
    }

    #[test]
    fn one_that_does_not_get_ready_gives_its_place_up_at_its_deadline() {
        let mut starts = ColdStarts::new(1);
        let now = Instant::now();
        starts.holds(&uid("stuck"), now, DEADLINE);
        assert!(!starts.ask(&uid("next"), now, DEADLINE));
        let later = now + DEADLINE;
        starts.waiting[0].1 = later;
        starts.sweep(later, |_| true);
        assert!(starts.ask(&uid("next"), later, DEADLINE));
    }

    #[test]
    fn one_that_wants_to_start_no_more_does_not_hold_up_who_comes_after_it() {
        let mut starts = ColdStarts::new(1);
        let now = Instant::now();
        let [a, b, c] = ["a", "b", "c"].map(uid);
        starts.ask(&a, now, DEADLINE);
        starts.ask(&b, now, DEADLINE);
        starts.ask(&c, now, DEADLINE);
        starts.done("b");
        starts.done("a");
        assert!(starts.ask(&c, now, DEADLINE));
        starts.sweep(now, |uid| uid != "c");
        assert_eq!(
            starts.counts(),
            (0, 0),
            "a service that is gone holds nothing"
        );
    }

    proptest! {
        #[test]
        fn never_more_than_the_cap_start_and_everybody_does_in_the_end(most in 1_usize..4, order in proptest::collection::vec(0_u8..12, 1..200)) {
            let mut starts = ColdStarts::new(most);
            let now = Instant::now();
            let mut running: Vec<u8> = Vec::new();
            let mut came: Vec<u8> = Vec::new();
            for who in order {
                if running.contains(&who) {
                    running.retain(|other| *other != who);
                    starts.done(&who.to_string());
                } else {
                    if !came.contains(&who) {
                        came.push(who);
                    }
                    if starts.ask(&uid(&who.to_string()), now, DEADLINE) {
                        let place = came.iter().position(|other| *other == who).expect("it came");
                        prop_assert!(place < most, "overtook others");
                        came.remove(place);
                        running.push(who);
                    }
                }
                prop_assert!(running.len() <= most);
                prop_assert_eq!(starts.counts(), (running.len(), came.len()));
            }
            for _ in 0..12 {
                for who in running.drain(..) {
                    starts.done(&who.to_string());
                }
                for who in came.clone() {
                    if starts.ask(&uid(&who.to_string()), now, DEADLINE) {
                        came.retain(|other| *other != who);
                        running.push(who);
                    }
                }
            }
            prop_assert!(came.is_empty());
        }
    }
}
