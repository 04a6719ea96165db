//! What has passed the proxy, counted.

use std::collections::BTreeMap;
use std::fmt;

use super::request::ApiRequest;
use super::script::Match;

/// What is counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountKey {
    /// What the requests were about.
    pub request: ApiRequest,
    /// Who sent them.
    pub user_agent: String,
}

/// Requests that arrived, whatever became of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<CountKey, u64>);

impl Counts {
    pub(super) fn record(&mut self, request: ApiRequest, user_agent: String) {
        *self
            .0
            .entry(CountKey {
                request,
                user_agent,
            })
            .or_default() += 1;
    }

    /// All counts.
    pub fn iter(&self) -> impl Iterator<Item = (&CountKey, u64)> {
        self.0.iter().map(|(key, count)| (key, *count))
    }

    /// Requests that `matching` covers.
    pub fn total(&self, matching: &Match) -> u64 {
        self.iter()
            .filter(|(key, _)| matching.covers(&key.request))
            .map(|(_, count)| count)
            .sum()
    }

    /// What of these counts `matching` covers.
    #[must_use]
    pub fn only(&self, matching: &Match) -> Self {
        let covered = self
            .0
            .iter()
            .filter(|(key, _)| matching.covers(&key.request));
        Self(covered.map(|(key, count)| (key.clone(), *count)).collect())
    }

    /// What came since `earlier`, of the same proxy, was taken.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let grown = self.0.iter().filter_map(|(key, count)| {
            let before = earlier.0.get(key).copied().unwrap_or_default();
            (*count > before).then(|| (key.clone(), count - before))
        });
        Self(grown.collect())
    }

    /// True when nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One line a kind of request, most frequent first, for the message of a failed test.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<(&CountKey, u64)> = self.iter().collect();
        lines.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        for (key, count) in lines.iter().take(40) {
            writeln!(f, "{count:6} {}", key.request)?;
        }
        if lines.len() > 40 {
            writeln!(f, "       and {} kinds of requests more", lines.len() - 40)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn counted(times: u64) -> Counts {
        let mut counts = Counts::default();
        for _ in 0..times {
            let write = ApiRequest::parse(&Method::PUT, "/api/v1/namespaces/a/configmaps/c", "");
            counts.record(write, "kube".to_owned());
        }
        let read = ApiRequest::parse(&Method::GET, "/api/v1/pods", "watch=true");
        counts.record(read, "kube".to_owned());
        counts
    }

    #[test]
    fn counts_what_a_match_covers() {
        let counts = counted(3);
        assert_eq!(counts.total(&Match::writes()), 3);
        assert_eq!(counts.total(&Match::any()), 4);
        assert_eq!(counts.total(&Match::writes().except("configmaps")), 0);
        assert!(counts.only(&Match::writes().of("pods")).is_empty());
    }

    #[test]
    fn the_difference_of_two_times_names_only_what_came_between() {
        let since = counted(5).since(&counted(3));
        assert_eq!(since.total(&Match::any()), 2);
        assert_eq!(since.to_string(), "     2 update configmaps a/c\n");
        assert!(counted(3).since(&counted(3)).is_empty());
    }
}
