//! Which fault a request meets: rules, the first that matches decides.

use std::time::Duration;

use super::request::{ApiRequest, Verb};

/// What happens to a request instead of, or on the way to, its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The API server is not asked; this status is the answer, with `Retry-After` in seconds when there is one.
    Answer {
        /// HTTP status, such as 409.
        status: u16,
        /// Seconds.
        retry_after: Option<u32>,
    },
    /// It reaches the API server this much later.
    Delay(Duration),
    /// It is taken and never answered, as long as the rule stands; then its connection ends.
    Silence,
    /// Its connection ends without an answer, and the API server never hears of it.
    HangUp,
    /// The API server does it, and its connection ends without an answer.
    LoseAnswer,
    /// It is a watch, which is opened and then meets this.
    Watch(WatchFault),
}

/// What happens to a watch that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFault {
    /// Its stream ends as the API server ends one whose time is over.
    Close,
    /// Its connection ends in the middle of the stream.
    Cut,
    /// It gets an event of the type ERROR with the code 410, and ends.
    Gone,
    /// The connection stays, and nothing comes any more until it thaws.
    Freeze,
}

/// Which requests a rule is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    verbs: Verbs,
    resource: Option<String>,
    except: Vec<String>,
    namespace: Option<String>,
    name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Verbs {
    #[default]
    Any,
    Writes,
    These(Vec<Verb>),
}

impl Match {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests that may change something, those for Leases and Events included.
    pub fn writes() -> Self {
        Self {
            verbs: Verbs::Writes,
            ..Self::default()
        }
    }

    /// Watches.
    pub fn watches() -> Self {
        Self::verbs(&[Verb::Watch])
    }

    /// Requests of these verbs.
    pub fn verbs(verbs: &[Verb]) -> Self {
        Self {
            verbs: Verbs::These(verbs.to_vec()),
            ..Self::default()
        }
    }

    /// Only of this resource: `deployments` is not `deployments/scale`.
    #[must_use]
    pub fn of(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Not of this resource.
    #[must_use]
    pub fn except(mut self, resource: &str) -> Self {
        self.except.push(resource.to_owned());
        self
    }

    /// Only in this namespace. A watch of all namespaces is in none.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Only of the object of this name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Whether `request` is one of them.
    pub fn covers(&self, request: &ApiRequest) -> bool {
        let same = |wanted: &Option<String>, found: Option<&String>| {
            wanted.is_none() || wanted.as_ref() == found
        };
        let verb = match &self.verbs {
            Verbs::Any => true,
            Verbs::Writes => request.verb.writes(),
            Verbs::These(verbs) => verbs.contains(&request.verb),
        };
        verb && same(&self.resource, Some(&request.resource))
            && !self.except.contains(&request.resource)
            && same(&self.namespace, request.namespace.as_ref())
            && same(&self.name, request.name.as_ref())
    }
}

/// A rule that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(u64);

#[derive(Debug)]
struct Rule {
    id: RuleId,
    matching: Match,
    fault: Fault,
    left: Option<u32>,
    hits: u64,
}

/// Rules in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Script {
    rules: Vec<Rule>,
    added: u64,
}

impl Script {
    /// Adds a rule, for the next `times` requests that it decides or for all of them.
    pub(super) fn add(&mut self, matching: Match, fault: Fault, times: Option<u32>) -> RuleId {
        self.added += 1;
        let id = RuleId(self.added);
        self.rules.push(Rule {
            id,
            matching,
            fault,
            left: times,
            hits: 0,
        });
        id
    }

    /// Takes a rule away; how many requests it decided, 0 when it had gone.
    pub(super) fn remove(&mut self, id: RuleId) -> u64 {
        let hits = self.hits(id);
        self.rules.retain(|rule| rule.id != id);
        hits
    }

    /// How many requests a rule has decided.
    pub(super) fn hits(&self, id: RuleId) -> u64 {
        self.rules
            .iter()
            .find(|rule| rule.id == id)
            .map_or(0, |rule| rule.hits)
    }

    /// Takes all rules away.
    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// Whether the rule still stands.
    pub(super) fn stands(&self, id: RuleId) -> bool {
        self.rules.iter().any(|rule| rule.id == id)
    }

    /// The fault that `request` meets, and the rule that says so. A fault of watches is none to another request.
    pub(super) fn decide(&mut self, request: &ApiRequest) -> Option<(RuleId, Fault)> {
        let is_watch = request.verb == Verb::Watch;
        let rule = self.rules.iter_mut().find(|rule| {
            rule.left != Some(0)
                && (is_watch || !matches!(rule.fault, Fault::Watch(_)))
                && rule.matching.covers(request)
        })?;
        rule.hits += 1;
        rule.left = rule.left.map(|left| left - 1);
        Some((rule.id, rule.fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use proptest::prelude::*;

    const CONFLICT: Fault = Fault::Answer {
        status: 409,
        retry_after: None,
    };

    fn request(method: &Method, target: &str) -> ApiRequest {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        ApiRequest::parse(method, path, query)
    }

    fn patch(resource: &str) -> ApiRequest {
        request(
            &Method::PATCH,
            &format!("/apis/apps/v1/namespaces/a/{resource}/d"),
        )
    }

    #[test]
    fn the_first_rule_that_covers_a_request_decides() {
        let mut script = Script::default();
        let first = script.add(Match::writes().of("deployments"), CONFLICT, None);
        let second = script.add(Match::any(), Fault::HangUp, None);
        assert_eq!(
            script.decide(&patch("deployments")),
            Some((first, CONFLICT))
        );
        assert_eq!(
            script.decide(&patch("services")),
            Some((second, Fault::HangUp))
        );
        assert_eq!((script.hits(first), script.hits(second)), (1, 1));
        script.remove(first);
        assert_eq!(
            script.decide(&patch("deployments")),
            Some((second, Fault::HangUp))
        );
        script.clear();
        assert_eq!(script.decide(&patch("deployments")), None);
    }

    #[test]
    fn a_rule_for_so_many_requests_lets_the_next_ones_pass_and_still_tells_its_hits() {
        let mut script = Script::default();
        let twice = script.add(Match::writes(), CONFLICT, Some(2));
        let met = (0..5)
            .filter(|_| script.decide(&patch("deployments")).is_some())
            .count();
        assert_eq!(met, 2);
        assert_eq!(script.remove(twice), 2);
    }

    #[test]
    fn a_fault_of_watches_does_not_touch_lists() {
        let mut script = Script::default();
        script.add(Match::any(), Fault::Watch(WatchFault::Gone), None);
        assert!(
            script
                .decide(&request(&Method::GET, "/api/v1/pods"))
                .is_none()
        );
        assert!(
            script
                .decide(&request(&Method::GET, "/api/v1/pods?watch=true"))
                .is_some()
        );
    }

    #[test]
    fn a_subresource_is_a_resource_of_its_own() {
        let status = request(
            &Method::PATCH,
            "/apis/serving.pagoda.dev/v1alpha1/namespaces/a/inferenceservices/s/status",
        );
        assert!(!Match::writes().of("inferenceservices").covers(&status));
        assert!(
            Match::writes()
                .of("inferenceservices/status")
                .covers(&status)
        );
        assert!(
            !Match::writes()
                .except("inferenceservices/status")
                .covers(&status)
        );
    }

    proptest! {
        #[test]
        fn each_further_condition_only_narrows_what_a_match_covers(
            resource in "[a-c]", namespace in "[a-c]", name in "[a-c]",
            wanted in ("[a-c]", "[a-c]", "[a-c]"), writes in any::<bool>(),
        ) {
            let method = if writes { Method::PUT } else { Method::GET };
            let request = request(&method, &format!("/api/v1/namespaces/{namespace}/{resource}/{name}"));
            let narrowing = [
                Match::any(),
                Match::any().of(&wanted.0),
                Match::any().of(&wanted.0).in_namespace(&wanted.1),
                Match::any().of(&wanted.0).in_namespace(&wanted.1).named(&wanted.2),
            ];
            let covered: Vec<bool> = narrowing.iter().map(|m| m.covers(&request)).collect();
            prop_assert!(covered.windows(2).all(|pair| pair[0] || !pair[1]));
            prop_assert_eq!(
                covered[3],
                resource == wanted.0 && namespace == wanted.1 && name == wanted.2
            );
            prop_assert_eq!(Match::writes().covers(&request), writes);
        }
    }
}
