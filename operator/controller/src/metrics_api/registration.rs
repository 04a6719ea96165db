//! Client required: makes the API server find and believe this process. The chart makes the objects; what only the one that
//! leads can know is written here: its address, and the authority of its certificate.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{ConfigMap, Secret, Service},
        discovery::v1::EndpointSlice,
    },
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use pagoda_crds::names;
use serde_json::json;
use time::OffsetDateTime;

use super::{
    authentication::{FrontProxy, TrustError},
    certificates::{self, CertificateError, Keys},
    discovery,
};
use crate::{
    lease::LeaseError,
    request::{RequestError, bounded},
};

/// The Service without a selector that the leader stands behind.
pub const SERVICE: &str = "pagoda-metrics";
/// Where certificates and keys lie.
pub const SECRET: &str = "pagoda-metrics-tls";
/// Name of the port of the metrics APIs.
pub const PORT_HTTPS: &str = "https";
/// Name of the port of KEDA's scaler.
pub const PORT_GRPC: &str = "grpc";
const TRUST: (&str, &str) = ("kube-system", "extension-apiserver-authentication");
const CONTROLLER: &str = "endpointslice.kubernetes.io/managed-by";
/// Leaders that renew at once are two at most.
const ATTEMPTS: usize = 5;

/// Why the API server cannot be made to find this process.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// The API server refused, or did not answer.
    #[error("failed to {what}: {source}")]
    Request {
        /// To do what.
        what: String,
        /// What it said.
        source: RequestError,
    },
    /// An object of the chart is missing.
    #[error("{0} is not there: install the chart with metricsApi.enabled or keda.enabled")]
    Missing(String),
    /// Others write at the same time, again and again.
    #[error("the Secret {SECRET} changes with every look")]
    Contended,
    /// Another may lead.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// Certificates.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The API server's word about its aggregation layer.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

fn failed(what: &str) -> impl FnOnce(RequestError) -> RegistrationError {
    let what = what.to_owned();
    move |source| RegistrationError::Request { what, source }
}

/// How to know the aggregation layer.
pub async fn trust(client: &Client) -> Result<FrontProxy, RegistrationError> {
    let (namespace, name) = TRUST;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let read = bounded(api.get(name)).await;
    let map = read.map_err(failed(
        "read ConfigMap kube-system/extension-apiserver-authentication",
    ))?;
    Ok(FrontProxy::read(&map.data.unwrap_or_default())?)
}

/// Certificates and keys out of the Secret, renewed there first when it is time. Whoever writes at the same time wins or
/// loses as a whole, and the loser takes what the winner wrote.
pub async fn keys(client: &Client, namespace: &str) -> Result<Keys, RegistrationError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let names = vec![format!("{SERVICE}.{namespace}.svc")];
    for _ in 0..ATTEMPTS {
        let secret = match bounded(api.get(SECRET)).await {
            Err(error) if error.code() == 404 => {
                return Err(RegistrationError::Missing(format!(
                    "Secret {namespace}/{SECRET}"
                )));
            }
            read => read.map_err(failed(&format!("read Secret {SECRET}")))?,
        };
        let found = secret.data.as_ref().and_then(Keys::read);
        let wanted = certificates::renewed(found.as_ref(), &names, OffsetDateTime::now_utc())?;
        if found.as_ref() == Some(&wanted) {
            return Ok(wanted);
        }
        match write(&api, secret, wanted.data()).await {
            Err(error) if error.code() == 409 => {}
            written => {
                written.map_err(failed(&format!("write Secret {SECRET}")))?;
                tracing::info!(
                    secret = SECRET,
                    "the certificate of the metrics APIs is renewed"
                );
                return Ok(wanted);
            }
        }
    }
    Err(RegistrationError::Contended)
}

/// A replace with the version that was read: of two who try one fails.
async fn write(
    api: &Api<Secret>,
    secret: Secret,
    data: BTreeMap<String, ByteString>,
) -> Result<Secret, RequestError> {
    let mut secret = secret;
    secret.metadata.managed_fields = None;
    secret.data = Some(data);
    bounded(api.replace(SECRET, &PostParams::default(), &secret)).await
}

/// Tells the API server whom to believe for a group. One without an APIService is served by somebody else, or by nobody:
/// that is the chart's to say.
pub async fn announce(
    client: &Client,
    api: discovery::Api,
    bundle: &str,
) -> Result<(), RegistrationError> {
    let services: Api<APIService> = Api::all(client.clone());
    let name = api.object();
    let Some(found) = absent_is_none(bounded(services.get(&name)).await)
        .map_err(failed(&format!("read APIService {name}")))?
    else {
        return Ok(());
    };
    let told = found.spec.and_then(|spec| spec.ca_bundle);
    let bundle = ByteString(bundle.as_bytes().to_vec());
    if told.as_ref() == Some(&bundle) {
        return Ok(());
    }
    let patch = Patch::Merge(json!({"spec": {"caBundle": bundle}}));
    bounded(services.patch(&name, &parameters(), &patch))
        .await
        .map(drop)
        .map_err(failed(&format!("write caBundle of APIService {name}")))
}

/// Where this process answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Address of the pod.
    pub address: IpAddr,
    /// Name and number of each port.
    pub ports: Vec<(&'static str, u16)>,
}

/// Stands behind the Service: the only one that does, for only one leads.
pub async fn stand(
    client: &Client,
    namespace: &str,
    place: &Place,
) -> Result<(), RegistrationError> {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let service = absent_is_none(bounded(services.get(SERVICE)).await)
        .map_err(failed(&format!("read Service {SERVICE}")))?
        .ok_or_else(|| RegistrationError::Missing(format!("Service {namespace}/{SERVICE}")))?;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let slice = slice(place, &service.uid().unwrap_or_default());
    let name = slice["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let found = absent_is_none(bounded(slices.get(&name)).await)
        .map_err(failed(&format!("read EndpointSlice {name}")))?;
    if found.is_some_and(|found| tells(&found, place)) {
        return Ok(());
    }
    let apply = PatchParams::apply(names::MANAGER_CHILDREN).force();
    bounded(slices.patch(&name, &apply, &Patch::Apply(&slice)))
        .await
        .map(drop)
        .map_err(failed(&format!("write EndpointSlice {name}")))
}

fn slice(place: &Place, service_uid: &str) -> serde_json::Value {
    let (family, suffix) = if place.address.is_ipv4() {
        ("IPv4", "ipv4")
    } else {
        ("IPv6", "ipv6")
    };
    let ports = place.ports.iter();
    let ports: Vec<_> = ports
        .map(|(name, port)| json!({"name": name, "port": port, "protocol": "TCP"}))
        .collect();
    // It goes with its Service.
    let owner = json!({"apiVersion": "v1", "kind": "Service", "name": SERVICE, "uid": service_uid});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{SERVICE}-{suffix}"),
            "labels": {
                names::LABEL_SLICE_SERVICE: SERVICE,
                CONTROLLER: names::MANAGED_BY_OPERATOR,
            },
            "ownerReferences": [owner],
        },
        "addressType": family,
        "endpoints": [{"addresses": [place.address], "conditions": {"ready": true}}],
        "ports": ports,
    })
}

fn tells(slice: &EndpointSlice, place: &Place) -> bool {
    let address = place.address.to_string();
    let addresses: Vec<&String> = slice.endpoints.iter().flat_map(|e| &e.addresses).collect();
    let ports = slice.ports.iter().flatten();
    let ports: Vec<_> = ports
        .filter_map(|port| Some((port.name.as_deref()?, port.port?)))
        .collect();
    let wanted = place
        .ports
        .iter()
        .map(|(name, port)| (*name, i32::from(*port)));
    addresses == [&address] && ports == wanted.collect::<Vec<_>>()
}

fn parameters() -> PatchParams {
    PatchParams {
        field_manager: Some(names::MANAGER_CHILDREN.into()),
        ..PatchParams::default()
    }
}

fn absent_is_none<T>(answer: Result<T, RequestError>) -> Result<Option<T>, RequestError> {
    match answer {
        Err(error) if error.code() == 404 => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_that_is_written_tells_what_it_should() {
        for address in ["10.1.2.3", "fd00::1"] {
            let place = Place {
                address: address.parse().expect("an address"),
                ports: vec![(PORT_HTTPS, 6443), (PORT_GRPC, 9090)],
            };
            let written: EndpointSlice =
                serde_json::from_value(slice(&place, "uid")).expect("a slice");
            assert!(tells(&written, &place));
            let elsewhere = Place {
                address: "10.1.2.4".parse().expect("an address"),
                ..place.clone()
            };
            assert!(!tells(&written, &elsewhere));
            let fewer = Place {
                ports: vec![(PORT_HTTPS, 6443)],
                ..place
            };
            assert!(!tells(&written, &fewer));
        }
    }
}
