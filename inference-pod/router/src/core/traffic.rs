//! Which revision's pods a request goes to while a canary runs.
//!
//! A [`Traffic`] shares requests out among sets of pods, each known by what its pods' names start with.
//! The set is drawn from a point in `0..100` that is the request's own, so that each set gets exactly
//! its percent of evenly drawn points; the policy then chooses inside the set. A set without a pod that
//! can still be tried is no reason to fail a request: any other pod takes it.

use std::sync::Arc;

use thiserror::Error;

/// Points to draw from: one per percent.
pub const POINTS: u32 = 100;

/// More revisions than a rollout ever has at once; each one costs series.
const MAX_SHARES: usize = 8;
/// The longest label value and the longest name of a Deployment in Kubernetes, and its hyphen.
const MAX_TEXT_BYTES: usize = 64;

/// One revision's part of the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The revision's name.
    pub revision: Arc<str>,
    /// What its pods' names start with.
    pub pod_prefix: String,
    /// Percent of the requests.
    pub percent: u32,
}

/// Why shares cannot be followed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TrafficError {
    /// There are too many.
    #[error("there are more than {MAX_SHARES} shares")]
    TooMany,
    /// A name is missing or is none that the operator writes.
    #[error("a revision or pod prefix is empty, too long, or not of a-z, 0-9, '.' and '-'")]
    BadName,
    /// Two shares speak of the same pods.
    #[error("a revision or pod prefix is there twice")]
    Twice,
    /// Together they are more than everything.
    #[error("the percentages add up to more than 100")]
    TooMuch,
}

/// How requests are shared out; without a share, every ready pod is equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    shares: Vec<Share>,
}

impl Traffic {
    /// Checked shares. Percentages may leave a rest, which goes to the pods that no share speaks of.
    pub fn new(shares: Vec<Share>) -> Result<Self, TrafficError> {
        if shares.len() > MAX_SHARES {
            return Err(TrafficError::TooMany);
        }
        if !shares
            .iter()
            .all(|share| is_name(&share.revision) && is_name(&share.pod_prefix))
        {
            return Err(TrafficError::BadName);
        }
        let twice = |(at, share): (usize, &Share)| {
            shares[..at].iter().any(|other| {
                other.revision == share.revision || other.pod_prefix == share.pod_prefix
            })
        };
        if shares.iter().enumerate().any(twice) {
            return Err(TrafficError::Twice);
        }
        let sum: u64 = shares.iter().map(|share| u64::from(share.percent)).sum();
        if sum > u64::from(POINTS) {
            return Err(TrafficError::TooMuch);
        }
        Ok(Self { shares })
    }

    /// The shares; none when every ready pod is equal.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// The share that a pod belongs to: the one with the longest prefix of its name, since an earlier
    /// release's Deployment `chat` has pods whose prefix `chat-` is also one of all later ones.
    pub fn share_of(&self, pod_name: &str) -> Option<usize> {
        let matching = self
            .shares
            .iter()
            .enumerate()
            .filter(|(_, share)| pod_name.starts_with(&share.pod_prefix));
        matching
            .max_by_key(|(_, share)| share.pod_prefix.len())
            .map(|(index, _)| index)
    }

    /// The share that owns `point` of `0..POINTS`; `None` for the rest.
    pub fn drawn(&self, point: u32) -> Option<usize> {
        let mut below = 0;
        self.shares.iter().position(|share| {
            below += share.percent;
            point < below
        })
    }
}

/// The pods that may take a request: those of the drawn share that have not failed it, else all others
/// that have not. `groups` holds each pod's share, `tried` indices of pods that failed this request.
pub fn candidates(groups: &[Option<usize>], drawn: Option<usize>, tried: &[usize]) -> Vec<usize> {
    let untried = |index: &usize| !tried.contains(index);
    let inside: Vec<usize> = (0..groups.len())
        .filter(|index| groups[*index] == drawn)
        .filter(untried)
        .collect();
    if inside.is_empty() {
        (0..groups.len()).filter(untried).collect()
    } else {
        inside
    }
}

fn is_name(text: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    (1..=MAX_TEXT_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(revision: &str, pod_prefix: &str, percent: u32) -> Share {
        Share {
            revision: revision.into(),
            pod_prefix: pod_prefix.into(),
            percent,
        }
    }

    fn shares(percents: &[u32]) -> Vec<Share> {
        let one = |(index, percent): (usize, &u32)| {
            share(&format!("r{index}"), &format!("chat-r{index}-"), *percent)
        };
        percents.iter().enumerate().map(one).collect()
    }

    #[test]
    fn a_pod_belongs_to_the_longest_prefix_of_its_name() {
        let traffic = Traffic::new(vec![
            share("legacy", "chat-", 80),
            share("0123456789", "chat-0123456789-", 20),
        ])
        .expect("valid");
        assert_eq!(traffic.share_of("chat-0123456789-abcde-xyz"), Some(1));
        assert_eq!(traffic.share_of("chat-7d9f8c-xyz"), Some(0));
        assert_eq!(traffic.share_of("other-0123456789-x"), None);
        assert_eq!(traffic.share_of(""), None);
    }

    #[test]
    fn shares_that_cannot_be_followed_are_refused_with_the_reason() {
        let refused = |shares| Traffic::new(shares).expect_err("refused");
        assert_eq!(refused(shares(&[60, 60])), TrafficError::TooMuch);
        assert_eq!(
            refused(shares(&[u32::MAX, u32::MAX])),
            TrafficError::TooMuch
        );
        assert_eq!(refused(shares(&[1; 9])), TrafficError::TooMany);
        assert_eq!(refused(vec![share("a", "", 5)]), TrafficError::BadName);
        assert_eq!(refused(vec![share("", "a-", 5)]), TrafficError::BadName);
        assert_eq!(
            refused(vec![share("a\"\n", "a-", 5)]),
            TrafficError::BadName
        );
        assert_eq!(
            refused(vec![share("a", "x-", 5), share("b", "x-", 5)]),
            TrafficError::Twice
        );
        assert_eq!(
            refused(vec![share("a", "x-", 5), share("a", "y-", 5)]),
            TrafficError::Twice
        );
    }

    #[test]
    fn without_shares_every_pod_is_of_the_rest() {
        let traffic = Traffic::default();
        assert_eq!((traffic.share_of("chat-1"), traffic.drawn(0)), (None, None));
        assert_eq!(candidates(&[None, None], None, &[1]), [0]);
    }

    proptest! {
        #[test]
        fn of_all_points_each_share_owns_exactly_its_percent(percents in proptest::collection::vec(0u32..=100, 0..5)) {
            let sum: u32 = percents.iter().sum();
            let made = Traffic::new(shares(&percents));
            prop_assert_eq!(made.is_ok(), sum <= POINTS);
            if let Ok(traffic) = made {
                for (index, percent) in percents.iter().enumerate() {
                    let owned = (0..POINTS).filter(|point| traffic.drawn(*point) == Some(index)).count();
                    prop_assert_eq!(owned, *percent as usize);
                }
                let rest = (0..POINTS).filter(|point| traffic.drawn(*point).is_none()).count();
                prop_assert_eq!(rest, (POINTS - sum) as usize);
            }
        }

        #[test]
        fn an_untried_pod_is_found_whenever_there_is_one_and_inside_the_drawn_set_if_it_has_one(
            groups in proptest::collection::vec(proptest::option::of(0usize..3), 0..12),
            drawn in proptest::option::of(0usize..3),
            tried_bits in any::<u16>(),
        ) {
            let tried: Vec<usize> = (0..groups.len()).filter(|index| tried_bits >> index & 1 == 1).collect();
            let found = candidates(&groups, drawn, &tried);
            prop_assert_eq!(found.is_empty(), tried.len() == groups.len());
            prop_assert!(found.iter().all(|index| *index < groups.len() && !tried.contains(index)));
            let inside = (0..groups.len()).filter(|index| groups[*index] == drawn && !tried.contains(index)).count();
            if inside > 0 {
                prop_assert_eq!(found.len(), inside);
                prop_assert!(found.iter().all(|index| groups[*index] == drawn));
            }
        }
    }
}
