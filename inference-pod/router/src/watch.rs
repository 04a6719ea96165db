//! Follows the cluster: InferenceServices and the EndpointSlices of their pods.
//!
//! # Guarantees
//! - What has been learnt stays in force while the API server is away; what changed meanwhile is
//!   taken over when it is back, deletions included.
//! - An object that cannot be read changes nothing about the others, nor about its own last readable form.
//!
//! # Caveat
//! Endpoints are believed as Kubernetes reports them, which is late for a pod that died; the data path
//! therefore tries other pods on its own.

use std::collections::HashSet;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource, ResourceExt};
use pagoda_crds::InferenceService;
use pagoda_crds::api::RoutingPolicy;
use pagoda_crds::names::{LABEL_SERVICE, PORT_HTTP};
use serde::de::DeserializeOwned;

use crate::core::choose::Policy;
use crate::core::routes::{Endpoint, Routes, ServiceKey, ServiceRecord, Settings, SliceRecord};
use crate::directory::Directory;
use crate::metrics::Metrics;

/// A watch is begun anew this often, so that a connection that died silently is noticed.
const WATCH_SECONDS: u32 = 60;

/// Follows InferenceServices for ever.
pub async fn follow_services(client: Client, directory: Arc<Directory>, metrics: Arc<Metrics>) {
    let mut seen = HashSet::new();
    let api = Api::all(client);
    follow(
        api,
        watcher::Config::default(),
        "InferenceService",
        &metrics,
        |event: Event<DeserializeGuard<InferenceService>>| {
            directory.update(|routes| take_service(routes, &mut seen, &event));
            if matches!(event, Event::InitDone) {
                directory.services_known();
            }
        },
    )
    .await;
}

/// Follows the EndpointSlices of InferenceServices for ever.
pub async fn follow_endpoints(client: Client, directory: Arc<Directory>, metrics: Arc<Metrics>) {
    let mut seen = HashSet::new();
    let config = watcher::Config::default().labels(LABEL_SERVICE);
    follow(
        Api::all(client),
        config,
        "EndpointSlice",
        &metrics,
        |event: Event<EndpointSlice>| {
            directory.update(|routes| take_slice(routes, &mut seen, &event));
            if matches!(event, Event::InitDone) {
                directory.endpoints_known();
            }
        },
    )
    .await;
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
    seen: &mut HashSet<ServiceKey>,
    event: &Event<DeserializeGuard<InferenceService>>,
) -> Vec<ServiceKey> {
    match event {
        Event::Init => {
            seen.clear();
            Vec::new()
        }
        Event::InitDone => routes.retain_services(&std::mem::take(seen)),
        Event::Delete(object) => routes.remove_service(&key_of(object)),
        Event::InitApply(object) | Event::Apply(object) => {
            seen.insert(key_of(object));
            apply_service(routes, object)
        }
    }
}

fn apply_service(
    routes: &mut Routes,
    object: &DeserializeGuard<InferenceService>,
) -> Vec<ServiceKey> {
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
    seen: &mut HashSet<ServiceKey>,
    event: &Event<EndpointSlice>,
) -> Vec<ServiceKey> {
    match event {
        Event::Init => {
            seen.clear();
            Vec::new()
        }
        Event::InitDone => routes.retain_slices(&std::mem::take(seen)),
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

/// What routing needs of an InferenceService.
pub fn service_record(service: &InferenceService) -> ServiceRecord {
    let spec = &service.spec;
    let names = if spec.model.names.is_empty() {
        vec![service.name_any()]
    } else {
        spec.model.names.clone()
    };
    let settings = Settings {
        policy: match spec.routing.policy {
            RoutingPolicy::TwoChoices => Policy::TwoChoices,
        },
        hold_max_requests: spec.routing.hold.max_requests as usize,
        hold_timeout: Duration::from_secs(spec.routing.hold.timeout_seconds.into()),
        pod_capacity: spec.engine.max_sequences as usize,
    };
    let created_seconds = service
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(0, |time| time.0.as_second());
    ServiceRecord {
        key: key_of(service),
        created_seconds,
        names,
        settings,
    }
}

/// What routing needs of an EndpointSlice; `None` if it belongs to no InferenceService or has no addresses.
pub fn slice_record(slice: &EndpointSlice) -> Option<SliceRecord> {
    let namespace = slice.namespace()?;
    let service = slice.labels().get(LABEL_SERVICE)?;
    let port = http_port(slice)?;
    let usable = slice
        .endpoints
        .iter()
        .filter(|endpoint| takes_requests(endpoint));
    let ready = usable
        .filter_map(|endpoint| endpoint_record(endpoint, port))
        .collect();
    Some(SliceRecord {
        slice: key_of(slice),
        service: ServiceKey::new(&namespace, service),
        ready,
    })
}

fn http_port(slice: &EndpointSlice) -> Option<u16> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let named = ports
        .iter()
        .find(|port| port.name.as_deref() == Some(PORT_HTTP));
    named
        .or(ports.first())?
        .port
        .and_then(|port| u16::try_from(port).ok())
}

/// Absent means ready (the API's own words), and a terminating pod takes no new requests even where its
/// Service publishes addresses that are not ready.
fn takes_requests(endpoint: &SliceEndpoint) -> bool {
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    conditions.ready.unwrap_or(true) && !conditions.terminating.unwrap_or(false)
}

fn endpoint_record(endpoint: &SliceEndpoint, port: u16) -> Option<Endpoint> {
    let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    let pod = endpoint.target_ref.clone().unwrap_or_default();
    Some(Endpoint {
        address: (address, port).into(),
        pod_uid: pod.uid.unwrap_or_default(),
        pod_name: pod.name.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
