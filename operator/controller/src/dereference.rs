//! Step 1, client not required: what is known of the world around a service.

use k8s_openapi::api::apps::v1::Deployment;
use pagoda_operator_core::status::PodView;

use crate::{key::Key, stores::Stores};

/// The world around a service.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Its Deployment.
    pub deployment: Option<Deployment>,
    /// Its pods, by name.
    pub pods: Vec<PodView>,
}

/// Looks around a service.
pub fn dereference(stores: &Stores, key: &Key) -> Surroundings {
    let deployment = stores.deployments.get(key);
    Surroundings {
        deployment: deployment.and_then(|json| serde_json::from_slice(&json).ok()),
        pods: pods_of(stores, key),
    }
}

fn pods_of(stores: &Stores, key: &Key) -> Vec<PodView> {
    let pods = stores.pods.of(key);
    pods.into_iter()
        .map(|(_, view)| PodView::clone(&view))
        .collect()
}
