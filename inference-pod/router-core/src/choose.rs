//! Which pod answers a request.
//!
//! A policy sees the request, the candidate pods as they are now, the time and a source of
//! randomness, and names one of them. It keeps nothing of its own, so the gateway and a simulator
//! run the same code. Policies that know caches and prompts read more of [`RequestView`] and
//! [`PodView`]; the interface stays.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;

/// A pod as a policy sees it.
pub trait PodView {
    /// Requests given to this pod and not finished, as this gateway counts them.
    fn in_flight(&self) -> usize;
}

impl<P: PodView> PodView for &P {
    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }
}

impl<P: PodView> PodView for Arc<P> {
    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }
}

/// A request as a policy sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestView<'a> {
    /// Indices of pods that have already failed this request; not chosen again.
    pub tried: &'a [usize],
}

/// How a service's pods are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The less loaded of two pods drawn at random: nearly as even as asking all of them, and many
    /// gateways doing so at once do not herd onto one pod (Mitzenmacher 2001).
    #[default]
    TwoChoices,
}

impl Policy {
    /// The index of the pod that gets the request, or `None` when every pod has been tried.
    ///
    /// `now` is the time since an arbitrary fixed moment; policies that discount old knowledge use it.
    pub fn choose<P: PodView>(
        self,
        request: RequestView<'_>,
        pods: &[P],
        _now: Duration,
        rng: &mut impl Rng,
    ) -> Option<usize> {
        match self {
            Self::TwoChoices => two_choices(request.tried, pods, rng),
        }
    }
}

fn two_choices<P: PodView>(tried: &[usize], pods: &[P], rng: &mut impl Rng) -> Option<usize> {
    let candidates = pods.len() - tried.len().min(pods.len());
    if candidates == 0 {
        return None;
    }
    let first = untried(tried, rng.random_range(0..candidates));
    if candidates == 1 {
        return Some(first);
    }
    let mut second = rng.random_range(0..candidates - 1);
    second = untried(tried, second);
    // Drawn from one fewer: the last candidate stands in for the first draw, so that the two differ.
    if second == first {
        second = untried(tried, candidates - 1);
    }
    Some(if pods[second].in_flight() < pods[first].in_flight() {
        second
    } else {
        first
    })
}

/// The `nth` index that is not in `tried` (distinct indices, any order).
fn untried(tried: &[usize], nth: usize) -> usize {
    let mut index = nth;
    loop {
        let skipped = tried.iter().filter(|tried| **tried <= index).count();
        if index == nth + skipped {
            return index;
        }
        index = nth + skipped;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    struct Pod(usize);

    impl PodView for Pod {
        fn in_flight(&self) -> usize {
            self.0
        }
    }

    fn choose(tried: &[usize], loads: &[usize], seed: u64) -> Option<usize> {
        let pods: Vec<Pod> = loads.iter().copied().map(Pod).collect();
        let mut rng = SmallRng::seed_from_u64(seed);
        Policy::TwoChoices.choose(RequestView { tried }, &pods, Duration::ZERO, &mut rng)
    }

    #[test]
    fn of_two_pods_the_less_loaded_is_always_chosen() {
        for seed in 0..200 {
            assert_eq!(choose(&[], &[3, 2], seed), Some(1));
        }
    }

    #[test]
    fn a_pod_that_failed_the_request_is_not_given_it_again() {
        for seed in 0..200 {
            assert_eq!(choose(&[1, 0], &[0, 0, 9], seed), Some(2));
            assert_eq!(choose(&[2, 0, 1], &[0, 0, 9], seed), None);
        }
        assert_eq!(choose(&[], &[], 1), None);
    }

    #[test]
    fn assigning_many_requests_leaves_pods_within_a_few_of_each_other() {
        let mut loads = [0usize; 10];
        for seed in 0..10_000 {
            let chosen = choose(&[], &loads, seed).expect("there are pods");
            loads[chosen] += 1;
        }
        let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
        assert!(most - least <= 8, "{loads:?}");
    }

    proptest! {
        #[test]
        fn the_choice_is_an_untried_pod_and_never_the_only_most_loaded_of_three_or_more(
            loads in proptest::collection::vec(0usize..50, 1..20),
            tried_bits in any::<u32>(),
            seed in any::<u64>(),
        ) {
            let mut tried: Vec<usize> = (0..loads.len()).filter(|index| tried_bits >> index & 1 == 1).collect();
            tried.reverse();
            let left: Vec<usize> = (0..loads.len()).filter(|index| !tried.contains(index)).collect();
            let chosen = choose(&tried, &loads, seed);
            prop_assert_eq!(chosen.is_some(), !left.is_empty());
            if let Some(chosen) = chosen {
                prop_assert!(left.contains(&chosen));
                let heavier = left.iter().filter(|index| loads[**index] >= loads[chosen]).count();
                prop_assert!(left.len() == 1 || heavier >= 2, "a strictly heaviest pod lost to nobody");
            }
        }

        #[test]
        fn the_nth_untried_index_skips_exactly_the_tried_ones(tried_bits in any::<u16>(), nth in 0usize..16) {
            let tried: Vec<usize> = (0..16).filter(|index| tried_bits >> index & 1 == 1).collect();
            let expected = (0..64).filter(|index| !tried.contains(index)).nth(nth);
            prop_assert_eq!(Some(untried(&tried, nth)), expected);
        }
    }
}
