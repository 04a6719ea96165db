//! Which pod has which address, and whose it is.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};

use super::State;
use super::load::ServiceLoad;

/// Label of the InferenceService's name on its pods.
const SERVICE_LABEL: &str = "serving.pagoda.dev/service";
const PAUSE: Duration = Duration::from_millis(200);

/// Follows the pods of all services until aborted.
pub(super) async fn pods(client: Client, state: Arc<State>) {
    let config = watcher::Config::default().labels(SERVICE_LABEL);
    let mut events = watcher(Api::<Pod>::all(client), config).boxed();
    let mut known: HashMap<String, (Ipv4Addr, Arc<ServiceLoad>)> = HashMap::new();
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod))) => {
                let uid = pod.uid().unwrap_or_default();
                match (place(&pod, &state), known.contains_key(&uid)) {
                    (Some((address, service)), false) => {
                        service.add_pod(address);
                        route(&state, address, Some(service.clone()));
                        known.insert(uid, (address, service));
                    }
                    (None, true) => leave(&state, known.remove(&uid)),
                    _ => {}
                }
            }
            Ok(Some(watcher::Event::Delete(pod))) => {
                leave(&state, known.remove(&pod.uid().unwrap_or_default()));
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Address and service of a pod that is ready and stays.
fn place(pod: &Pod, state: &State) -> Option<(Ipv4Addr, Arc<ServiceLoad>)> {
    let status = pod.status.as_ref()?;
    let is_ready = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    if !is_ready || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let address = status.pod_ip.as_ref()?.parse().ok()?;
    let service = pod.labels().get(SERVICE_LABEL)?;
    Some((address, state.service(&pod.namespace()?, service)))
}

fn leave(state: &State, known: Option<(Ipv4Addr, Arc<ServiceLoad>)>) {
    if let Some((address, service)) = known {
        service.remove_pod(address);
        route(state, address, None);
    }
}

fn route(state: &State, address: Ipv4Addr, service: Option<Arc<ServiceLoad>>) {
    let mut pods = state.pods.write().unwrap_or_else(PoisonError::into_inner);
    match service {
        Some(service) => pods.insert(address, service),
        None => pods.remove(&address),
    };
}
