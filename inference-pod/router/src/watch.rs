//! Follows the cluster, or some of its namespaces: InferenceServices and the EndpointSlices of their pods.
//!
//! # Guarantees
//! - What has been learnt stays in force while the API server is away; what changed meanwhile is
//!   taken over when it is back, deletions included.
//! - An object that cannot be read changes nothing about the others, nor about its own last readable form.
//!
//! # Caveat
//! Endpoints are believed as Kubernetes reports them, which is late for a pod that died; the data path
//! therefore tries other pods on its own.

mod records;

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::TryStreamExt;
use futures::future::join_all;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource, ResourceExt};
use pagoda_crds::names::LABEL_SERVICE;
use serde::de::DeserializeOwned;

pub use self::records::{RoutedService, service_record, slice_record};
use crate::core::routes::{Routes, Scope, ServiceKey};
use crate::directory::Directory;
use crate::metrics::Metrics;

/// The API server ends each watch after this time, so a connection silent for much longer has died.
const WATCH_SECONDS: u32 = 60;

/// A connection to the API server on which nothing has come for so long is given up: one whose other
/// side vanished, or that was accepted and is never served, must not keep a gateway from learning.
pub const LONGEST_SILENCE: Duration = Duration::from_secs(90);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes connections to the API server end when nothing comes for `silence`.
pub fn give_up_silent_connections(config: &mut kube::Config, silence: Duration) {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(silence);
    // Counted from the request, not from when a kept connection was last used.
    config.reset_reader_on_write = true;
}

/// What is watched: the whole cluster, or each of these namespaces by itself.
pub fn scopes(namespaces: &[String]) -> Vec<Scope> {
    let mut named: Vec<_> = namespaces
        .iter()
        .filter(|name| !name.is_empty())
        .cloned()
        .collect();
    named.sort();
    named.dedup();
    if named.is_empty() {
        vec![Scope::Cluster]
    } else {
        named.into_iter().map(Scope::Namespace).collect()
    }
}

/// Follows the InferenceServices of all `scopes` for ever.
pub async fn follow_services(
    client: Client,
    scopes: Vec<Scope>,
    directory: Arc<Directory>,
    metrics: Arc<Metrics>,
) {
    let lists = Lists::of(&scopes);
    let follow_one = async |scope: &Scope| {
        let (mut seen, mut list) = (HashSet::new(), lists.one());
        let take = |event: Event<DeserializeGuard<RoutedService>>| {
            directory.update(|routes| take_service(routes, scope, &mut seen, &event));
            if matches!(event, Event::InitDone) && list.is_the_last() {
                directory.services_known();
            }
        };
        let api = api(client.clone(), scope);
        follow(
            api,
            watcher::Config::default(),
            "InferenceService",
            &metrics,
            take,
        )
        .await;
    };
    join_all(scopes.iter().map(follow_one)).await;
}

/// Follows the EndpointSlices of the InferenceServices of all `scopes` for ever.
pub async fn follow_endpoints(
    client: Client,
    scopes: Vec<Scope>,
    directory: Arc<Directory>,
    metrics: Arc<Metrics>,
) {
    let lists = Lists::of(&scopes);
    let follow_one = async |scope: &Scope| {
        let (mut seen, mut list) = (HashSet::new(), lists.one());
        let take = |event: Event<EndpointSlice>| {
            directory.update(|routes| take_slice(routes, scope, &mut seen, &event));
            if matches!(event, Event::InitDone) && list.is_the_last() {
                directory.endpoints_known();
            }
        };
        let api = api(client.clone(), scope);
        let config = watcher::Config::default().labels(LABEL_SERVICE);
        follow(api, config, "EndpointSlice", &metrics, take).await;
    };
    join_all(scopes.iter().map(follow_one)).await;
}

fn api<K>(client: Client, scope: &Scope) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match scope {
        Scope::Cluster => Api::all(client),
        Scope::Namespace(namespace) => Api::namespaced(client, namespace),
    }
}

/// First listings that have not ended yet.
struct Lists {
    outstanding: AtomicUsize,
}

/// One of them, which may be repeated.
struct List<'a> {
    of: &'a Lists,
    ended: bool,
}

impl Lists {
    fn of(scopes: &[Scope]) -> Self {
        Self {
            outstanding: AtomicUsize::new(scopes.len()),
        }
    }

    fn one(&self) -> List<'_> {
        List {
            of: self,
            ended: false,
        }
    }
}

impl List<'_> {
    /// Notes that it has ended; true if it was the last one to end for the first time.
    fn is_the_last(&mut self) -> bool {
        !std::mem::replace(&mut self.ended, true)
            && self.of.outstanding.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    kind: &'static str,
    metrics: &Metrics,
    mut take: impl FnMut(Event<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut config = config.timeout(WATCH_SECONDS).streaming_lists();
    loop {
        let stream = watcher::watcher(api.clone(), config.clone())
            .modify(|object| object.meta_mut().managed_fields = None)
            .backoff(Patience::default());
        let mut stream = std::pin::pin!(stream);
        let mut healthy = false;
        loop {
            match stream.try_next().await {
                Ok(Some(event)) => {
                    if !healthy
                        && matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_))
                    {
                        healthy = true;
                        tracing::info!(kind, "following the cluster");
                    }
                    take(event);
                }
                Ok(None) => break,
                Err(error) => {
                    healthy = false;
                    metrics.count_watch_error(kind);
                    tracing::warn!(kind, %error, "the API server cannot be watched; routing goes on with what is known, and it is tried again");
                    if refuses_streaming_lists(&error) {
                        config.initial_list_strategy = watcher::InitialListStrategy::ListWatch;
                        break;
                    }
                }
            }
        }
    }
}

/// API servers before 1.32, or with the feature off, refuse `sendInitialEvents`.
fn refuses_streaming_lists(error: &watcher::Error) -> bool {
    let (watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::InitialListFailed(kube::Error::Api(status))) = error
    else {
        return false;
    };
    status.code == 422 || status.message.contains("sendInitialEvents")
}

/// Waits between attempts at the API server: doubling from 0.2 s to 5 s, with jitter, without end.
#[derive(Default)]
struct Patience {
    failures: u32,
}

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let longest = Duration::from_secs(5);
        let wait = (Duration::from_millis(200) * (1 << self.failures.min(10))).min(longest);
        self.failures = self.failures.saturating_add(1);
        Some(wait.mul_f64(rand::random_range(0.5..1.0)))
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

fn key_of(object: &impl ResourceExt) -> ServiceKey {
    ServiceKey::new(&object.namespace().unwrap_or_default(), &object.name_any())
}

fn take_service(
    routes: &mut Routes,
    scope: &Scope,
    seen: &mut HashSet<ServiceKey>,
    event: &Event<DeserializeGuard<RoutedService>>,
) -> Vec<ServiceKey> {
    match event {
        Event::Init => {
            seen.clear();
            Vec::new()
        }
        Event::InitDone => routes.retain_services(scope, &std::mem::take(seen)),
        Event::Delete(object) => routes.remove_service(&key_of(object)),
        Event::InitApply(object) | Event::Apply(object) => {
            seen.insert(key_of(object));
            apply_service(routes, object)
        }
    }
}

fn apply_service(routes: &mut Routes, object: &DeserializeGuard<RoutedService>) -> Vec<ServiceKey> {
    match &object.0 {
        Err(error) => {
            tracing::warn!(service = %key_of(object), %error, "an InferenceService cannot be read; its last readable form stays");
            Vec::new()
        }
        // Its pods are being taken away: nothing will come of waiting for them.
        Ok(service) if service.metadata.deletion_timestamp.is_some() => {
            routes.remove_service(&key_of(service))
        }
        Ok(service) => routes.apply_service(service_record(service)),
    }
}

fn take_slice(
    routes: &mut Routes,
    scope: &Scope,
    seen: &mut HashSet<ServiceKey>,
    event: &Event<EndpointSlice>,
) -> Vec<ServiceKey> {
    match event {
        Event::Init => {
            seen.clear();
            Vec::new()
        }
        Event::InitDone => routes.retain_slices(scope, &std::mem::take(seen)),
        Event::Delete(slice) => routes.remove_slice(&key_of(slice)),
        Event::InitApply(slice) | Event::Apply(slice) => {
            seen.insert(key_of(slice));
            match slice_record(slice) {
                Some(record) => routes.apply_slice(record),
                None => routes.remove_slice(&key_of(slice)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
