//! Step 1, client not required: what is known of the world around a service.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use kube::{ResourceExt, runtime::reflector::ObjectRef};
use pagoda_crds::names;
use pagoda_operator_core::status::PodView;

use crate::stores::Stores;

/// The world around a service.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Its Deployment.
    pub deployment: Option<Arc<Deployment>>,
    /// Its pods, by name.
    pub pods: Vec<PodView>,
}

/// Looks around a service.
pub fn dereference(stores: &Stores, namespace: &str, name: &str) -> Surroundings {
    Surroundings {
        deployment: stores
            .deployments
            .get(&ObjectRef::new(name).within(namespace)),
        pods: pods_of(stores, namespace, name),
    }
}

/// Pods of a service, by name.
fn pods_of(stores: &Stores, namespace: &str, name: &str) -> Vec<PodView> {
    let belongs = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.metadata.namespace.as_deref() == Some(namespace)
            && pod
                .labels()
                .get(names::LABEL_SERVICE)
                .is_some_and(|service| service == name)
    };
    let mut pods: Vec<PodView> = stores
        .pods
        .state_filter(belongs)
        .iter()
        .map(|pod| PodView::of(pod))
        .collect();
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    pods
}
