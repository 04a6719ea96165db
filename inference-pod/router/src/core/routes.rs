//! Which service answers to a model name, and which of its pods may be given a request.
//!
//! [`Routes`] is a synchronous index. Watches feed it services and endpoint slices in any order,
//! with repetitions; each change returns the services it may have affected, so that the caller
//! refreshes only those.
//!
//! # Guarantees
//! - A name claimed by several services belongs to the oldest (creation time, then `namespace/name`),
//!   whatever order they were seen in; when that one goes, the next oldest has it at once.
//! - `namespace/name` always reaches its own service, even if another claims that very text as a name.
//! - A removed service answers to nothing; its slices may still be there without harm.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::choose::Policy;
use super::traffic::Traffic;

/// A service's identity: `namespace/name`. Cloning it is cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey {
    qualified: Arc<str>,
    namespace_bytes: usize,
}

impl ServiceKey {
    /// The key of service `name` in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            qualified: format!("{namespace}/{name}").into(),
            namespace_bytes: namespace.len(),
        }
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.qualified[..self.namespace_bytes]
    }

    /// The service's name inside its namespace.
    pub fn name(&self) -> &str {
        &self.qualified[self.namespace_bytes + 1..]
    }

    /// `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.qualified
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified)
    }
}

impl fmt::Debug for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified)
    }
}

/// What one listing speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole cluster.
    Cluster,
    /// One namespace.
    Namespace(String),
}

impl Scope {
    /// Whether an object's key lies in it.
    pub fn contains(&self, key: &ServiceKey) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespace(namespace) => key.namespace() == namespace,
        }
    }
}

/// How a service wants its requests handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How a pod is chosen.
    pub policy: Policy,
    /// The most requests held at once while no pod is ready.
    pub hold_max_requests: usize,
    /// How long one request is held before it is refused.
    pub hold_timeout: Duration,
    /// After this time a held request for a stream is answered, with comments until a pod is ready; never without it.
    pub early_stream: Option<Duration>,
    /// Requests one pod computes at once; held requests are let go in waves of this many a ready pod.
    pub pod_capacity: usize,
    /// How requests are shared out among revisions.
    pub traffic: Traffic,
    /// Whether times to first token are told with the load: a histogram that few services need.
    pub tells_ttft: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: Policy::TwoChoices,
            hold_max_requests: 1000,
            hold_timeout: Duration::from_mins(2),
            early_stream: None,
            pod_capacity: 64,
            traffic: Traffic::default(),
            tells_ttft: false,
        }
    }
}

/// One service as its InferenceService describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRecord {
    /// Which service.
    pub key: ServiceKey,
    /// Creation time, seconds since the epoch; the oldest owns a contested name.
    pub created_seconds: i64,
    /// The names clients know it by, besides `namespace/name`.
    pub names: Vec<String>,
    /// How its requests are handled.
    pub settings: Settings,
}

/// One address behind a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Where the pod listens.
    pub address: SocketAddr,
    /// The pod's unique id, or empty when unknown: an address used again by another pod is another endpoint.
    pub pod_uid: String,
    /// The pod's name, for logs; may be empty.
    pub pod_name: String,
}

/// One endpoint slice: part of a service's addresses, already reduced to those that may be given requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceRecord {
    /// The slice's own `namespace/name`.
    pub slice: ServiceKey,
    /// The service it belongs to.
    pub service: ServiceKey,
    /// Ready and not terminating.
    pub ready: Vec<Endpoint>,
}

/// A name a service can be reached by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel<'a> {
    /// As a request's `model` names it.
    pub name: &'a str,
    /// The service that answers.
    pub service: &'a ServiceKey,
    /// That service's creation time, seconds since the epoch.
    pub created_seconds: i64,
}

type Claim = (i64, ServiceKey);

/// The index. See the module's documentation.
#[derive(Debug, Default)]
pub struct Routes {
    services: HashMap<ServiceKey, ServiceRecord>,
    qualified: HashMap<Arc<str>, ServiceKey>,
    claims: BTreeMap<String, BTreeSet<Claim>>,
    slices: HashMap<ServiceKey, SliceRecord>,
    slices_of: HashMap<ServiceKey, BTreeSet<ServiceKey>>,
}

impl Routes {
    /// Adds or replaces a service.
    pub fn apply_service(&mut self, record: ServiceRecord) -> Vec<ServiceKey> {
        let key = record.key.clone();
        self.drop_claims(&key);
        for name in &record.names {
            self.claims
                .entry(name.clone())
                .or_default()
                .insert((record.created_seconds, key.clone()));
        }
        self.qualified.insert(key.qualified.clone(), key.clone());
        self.services.insert(key.clone(), record);
        vec![key]
    }

    /// Removes a service and every name it had.
    pub fn remove_service(&mut self, key: &ServiceKey) -> Vec<ServiceKey> {
        self.drop_claims(key);
        self.qualified.remove(key.as_str());
        self.services
            .remove(key)
            .map(|gone| gone.key)
            .into_iter()
            .collect()
    }

    /// Removes every service of `scope` that is not in `seen`: what a finished listing says.
    pub fn retain_services(
        &mut self,
        scope: &Scope,
        seen: &HashSet<ServiceKey>,
    ) -> Vec<ServiceKey> {
        let gone: Vec<_> = self
            .services
            .keys()
            .filter(|key| scope.contains(key) && !seen.contains(*key))
            .cloned()
            .collect();
        gone.iter()
            .flat_map(|key| self.remove_service(key))
            .collect()
    }

    /// Adds or replaces a slice.
    pub fn apply_slice(&mut self, record: SliceRecord) -> Vec<ServiceKey> {
        let mut affected = self.remove_slice(&record.slice);
        affected.push(record.service.clone());
        affected.dedup();
        self.slices_of
            .entry(record.service.clone())
            .or_default()
            .insert(record.slice.clone());
        self.slices.insert(record.slice.clone(), record);
        affected
    }

    /// Removes the slice `namespace/name`.
    pub fn remove_slice(&mut self, slice: &ServiceKey) -> Vec<ServiceKey> {
        let Some(gone) = self.slices.remove(slice) else {
            return Vec::new();
        };
        if let Some(of) = self.slices_of.get_mut(&gone.service) {
            of.remove(slice);
            if of.is_empty() {
                self.slices_of.remove(&gone.service);
            }
        }
        vec![gone.service]
    }

    /// Removes every slice of `scope` that is not in `seen`.
    pub fn retain_slices(&mut self, scope: &Scope, seen: &HashSet<ServiceKey>) -> Vec<ServiceKey> {
        let gone: Vec<_> = self
            .slices
            .keys()
            .filter(|key| scope.contains(key) && !seen.contains(*key))
            .cloned()
            .collect();
        gone.iter().flat_map(|key| self.remove_slice(key)).collect()
    }

    /// The service a request's `model` means, if any.
    pub fn resolve(&self, model: &str) -> Option<&ServiceKey> {
        self.qualified
            .get(model)
            .or_else(|| self.claims.get(model)?.first().map(|(_, key)| key))
    }

    /// What is known of a service.
    pub fn service(&self, key: &ServiceKey) -> Option<&ServiceRecord> {
        self.services.get(key)
    }

    /// The service's endpoints that may be given requests, each address once, in order.
    pub fn ready_endpoints(&self, key: &ServiceKey) -> Vec<Endpoint> {
        let slices = self.slices_of.get(key).into_iter().flatten();
        let endpoints = slices
            .filter_map(|slice| self.slices.get(slice))
            .flat_map(|slice| &slice.ready);
        let by_address: BTreeMap<SocketAddr, &Endpoint> = endpoints
            .map(|endpoint| (endpoint.address, endpoint))
            .collect();
        by_address.into_values().cloned().collect()
    }

    /// Every served name with the service that has it, in order of name.
    pub fn served_models(&self) -> impl Iterator<Item = ServedModel<'_>> {
        self.claims.iter().filter_map(|(name, claims)| {
            let (created_seconds, service) = claims.first()?;
            // A name that reads like another service's `namespace/name` never reaches its claimant.
            let reachable = self
                .qualified
                .get(name.as_str())
                .is_none_or(|owner| owner == service);
            reachable.then_some(ServedModel {
                name,
                service,
                created_seconds: *created_seconds,
            })
        })
    }

    fn drop_claims(&mut self, key: &ServiceKey) {
        let Some(record) = self.services.get(key) else {
            return;
        };
        for name in &record.names {
            let Some(claims) = self.claims.get_mut(name) else {
                continue;
            };
            claims.remove(&(record.created_seconds, key.clone()));
            if claims.is_empty() {
                self.claims.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests;
