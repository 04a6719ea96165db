//! What routing needs of the cluster's objects.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};
use kube::ResourceExt;
use kube::api::ObjectMeta;
use pagoda_crds::InferenceService;
use pagoda_crds::api::{InferenceServiceSpec, Metric, RoutingPolicy, TrafficShare};
use pagoda_crds::names::{LABEL_SERVICE, PORT_HTTP};
use serde::Deserialize;

use super::key_of;
use crate::core::choose::Policy;
use crate::core::routes::{Endpoint, ServiceKey, ServiceRecord, Settings, SliceRecord};
use crate::core::traffic::{Share, Traffic};

/// An InferenceService whose status is read only where routing needs it: what another release's operator
/// writes there must not make the whole object unreadable.
#[derive(kube::Resource, Clone, Debug, Deserialize)]
#[resource(inherit = InferenceService)]
pub struct RoutedService {
    /// Name, namespace, age.
    pub metadata: ObjectMeta,
    /// What is served, and how.
    pub spec: InferenceServiceSpec,
    /// As it came.
    #[serde(default)]
    pub status: Option<serde_json::Value>,
}

/// What routing needs of an InferenceService.
pub fn service_record(service: &RoutedService) -> ServiceRecord {
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
        early_stream: early_stream(spec.routing.hold.early_stream_seconds),
        pod_capacity: spec.engine.max_sequences as usize,
        traffic: traffic(service),
        tells_ttft: is_scaled_by_ttft(spec),
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

fn early_stream(seconds: u32) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

fn is_scaled_by_ttft(spec: &InferenceServiceSpec) -> bool {
    let mut targets = spec.scaling.targets.iter();
    targets.any(|target| target.metric == Metric::TimeToFirstToken)
}

/// How a canary shares requests out. What cannot be read or followed shares out nothing: all ready pods
/// are equal then, as they are without a canary.
fn traffic(service: &RoutedService) -> Traffic {
    let told = service
        .status
        .as_ref()
        .and_then(|status| status.pointer("/rollout/traffic"))
        .filter(|told| !told.is_null());
    let Some(told) = told else {
        return Traffic::default();
    };
    let read = Vec::<TrafficShare>::deserialize(told)
        .map_err(|error| error.to_string())
        .and_then(|shares| shares.into_iter().map(share).collect())
        .and_then(|shares| Traffic::new(shares).map_err(|error| error.to_string()));
    read.unwrap_or_else(|error| {
        tracing::warn!(service = %key_of(service), error, "status.rollout.traffic cannot be followed; all ready pods are equal");
        Traffic::default()
    })
}

fn share(told: TrafficShare) -> Result<Share, String> {
    let percent = u32::try_from(told.percent)
        .map_err(|_| format!("{} is no percentage of requests", told.percent))?;
    Ok(Share {
        revision: told.revision.into(),
        pod_prefix: told.pod_prefix,
        percent,
    })
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
