//! Which pods a service can best do without.
//!
//! Kubernetes takes unready pods first, then by `controller.kubernetes.io/pod-deletion-cost`
//! (`k8s.io/kubernetes/pkg/controller/controller_utils.go`, `ActivePodsWithRanks`), and knows nothing of what a pod
//! holds. A server of models holds streams that somebody reads and a cache that took work to fill, so those count here: who
//! serves the fewest requests, then whose cache is worth least, then the youngest.

use std::cmp::Ordering;

/// Annotation by which Kubernetes chooses among ready pods: the lowest goes first, and none counts as 0.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Its value on pods that are marked to go.
pub const MARKED_COST: &str = "-1000";

/// What a pod that answers is worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodWorth<'a> {
    /// Its name.
    pub name: &'a str,
    /// Requests that run or wait in it; none when it did not tell, which counts as many.
    pub requests: Option<u64>,
    /// Thousandths of its KV cache that are filled.
    pub cache_milli: Option<u64>,
    /// Thousandths of the prompt tokens that it was asked for and had.
    pub hit_milli: Option<u64>,
    /// When it was made, in seconds of any epoch.
    pub made_seconds: i64,
    /// Whether it is marked to go already.
    pub is_marked: bool,
}

/// Marks to set and to take away, so that the right pods go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks<'a> {
    /// Pods to mark, the first to go first.
    pub set: Vec<&'a str>,
    /// Pods that were marked for an earlier time and stay now.
    pub clear: Vec<&'a str>,
}

/// Marks for a set of pods of which `leaving` are about to go, out of `ready` ones and `unready` others. Nothing is to be marked when
/// all go, or when unready pods are enough.
pub fn marks<'a>(ready: &[PodWorth<'a>], unready: usize, leaving: usize) -> Marks<'a> {
    let victims = leaving.saturating_sub(unready);
    if victims == 0 || victims >= ready.len() {
        return Marks::default();
    }
    let mut order: Vec<&PodWorth<'a>> = ready.iter().collect();
    order.sort_by(|a, b| worth_less(a, b));
    let (go, stay) = order.split_at(victims);
    Marks {
        set: go
            .iter()
            .filter(|pod| !pod.is_marked)
            .map(|p| p.name)
            .collect(),
        clear: stay
            .iter()
            .filter(|pod| pod.is_marked)
            .map(|p| p.name)
            .collect(),
    }
}

fn worth_less(a: &PodWorth<'_>, b: &PodWorth<'_>) -> Ordering {
    let requests = |pod: &PodWorth<'_>| pod.requests.unwrap_or(u64::MAX);
    requests(a)
        .cmp(&requests(b))
        .then_with(|| cache(a).cmp(&cache(b)))
        .then_with(|| b.made_seconds.cmp(&a.made_seconds))
        .then_with(|| a.name.cmp(b.name))
}

/// What is filled counts as often as it was found. A server that does not tell how often is taken to find half of what it
/// holds; one that tells nothing of its cache has nothing to lose.
fn cache(pod: &PodWorth<'_>) -> u64 {
    pod.cache_milli
        .map_or(pod.hit_milli.unwrap_or(0), |filled| {
            filled.saturating_mul(pod.hit_milli.unwrap_or(500)) / 1000
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pod(name: &str, requests: u64, cache_milli: u64, made_seconds: i64) -> PodWorth<'_> {
        PodWorth {
            name,
            requests: Some(requests),
            cache_milli: Some(cache_milli),
            hit_milli: None,
            made_seconds,
            is_marked: false,
        }
    }

    #[test]
    fn who_serves_nobody_goes_before_who_holds_a_stream_whatever_its_cache() {
        let pods = [pod("a", 3, 0, 9), pod("b", 0, 900, 9), pod("c", 1, 0, 9)];
        assert_eq!(marks(&pods, 0, 1).set, ["b"]);
        assert_eq!(marks(&pods, 0, 2).set, ["b", "c"]);
    }

    #[test]
    fn of_pods_that_serve_as_much_the_cache_that_is_worth_least_goes() {
        let used = PodWorth {
            hit_milli: Some(900),
            ..pod("used", 0, 500, 9)
        };
        let useless = PodWorth {
            hit_milli: Some(10),
            ..pod("useless", 0, 800, 9)
        };
        assert_eq!(marks(&[used, useless], 0, 1).set, ["useless"]);
    }

    #[test]
    fn of_pods_that_are_alike_the_youngest_goes() {
        let pods = [pod("old", 0, 0, 3), pod("young", 0, 0, 90)];
        assert_eq!(marks(&pods, 0, 1).set, ["young"]);
    }

    #[test]
    fn one_that_does_not_tell_is_taken_to_serve_many() {
        let silent = PodWorth {
            name: "silent",
            ..PodWorth::default()
        };
        let pods = [silent, pod("busy", 500, 900, 90)];
        assert_eq!(marks(&pods, 0, 1).set, ["busy"]);
    }

    #[test]
    fn unready_pods_go_by_themselves_and_all_need_no_choice() {
        let pods = [pod("a", 0, 0, 1), pod("b", 0, 0, 2)];
        assert_eq!(marks(&pods, 2, 2), Marks::default());
        assert_eq!(marks(&pods, 1, 2).set, ["b"], "the younger");
        assert_eq!(marks(&pods, 0, 2), Marks::default());
    }

    #[test]
    fn a_mark_of_an_earlier_time_is_taken_from_one_that_stays() {
        let earlier = PodWorth {
            is_marked: true,
            ..pod("stays", 9, 0, 1)
        };
        let marks = marks(&[earlier, pod("goes", 0, 0, 1)], 0, 1);
        assert_eq!((marks.set, marks.clear), (vec!["goes"], vec!["stays"]));
    }

    proptest! {
        #[test]
        fn so_many_are_marked_as_go_and_none_of_them_serves_more_than_one_that_stays(
            requests in proptest::collection::vec((0_u64..5, 0_u64..1000, any::<bool>()), 0..12), unready in 0_usize..4, leaving in 0_usize..16
        ) {
            let names: Vec<String> = (0..requests.len()).map(|i| format!("pod-{i}")).collect();
            let pods: Vec<PodWorth<'_>> = requests.iter().zip(&names).map(|((requests, cache, marked), name)| PodWorth {
                is_marked: *marked, ..pod(name, *requests, *cache, 1)
            }).collect();
            let found = marks(&pods, unready, leaving);
            let victims = leaving.saturating_sub(unready);
            let goes = |p: &PodWorth<'_>| (p.is_marked && !found.clear.contains(&p.name)) || found.set.contains(&p.name);
            if victims == 0 || victims >= pods.len() {
                prop_assert_eq!(found, Marks::default());
            } else {
                prop_assert_eq!(pods.iter().filter(|p| goes(p)).count(), victims);
                let most = pods.iter().filter(|p| goes(p)).filter_map(|p| p.requests).max();
                let least = pods.iter().filter(|p| !goes(p)).filter_map(|p| p.requests).min();
                prop_assert!(most <= least);
            }
        }
    }
}
