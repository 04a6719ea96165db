//! What the operator knows of the cluster: one watch for each kind and namespace, read into memory.
//!
//! Children and pods are watched by label, so that other people's objects cost nothing. They are kept as packed text, or
//! as the few fields that decide: thousands of services are to fit where typed objects would need a gigabyte.

mod fill;
mod keep;
mod names_index;
mod nodes;
mod packed;
mod read;
mod table;

pub use keep::{
    Age, Claim, Content, DeploymentRow, Guarded, PodRow, ScaledSpec, ServiceRow, owner,
};
pub use names_index::Names;
pub use nodes::Nodes;
pub use packed::Packed;
pub use read::watch;
pub use table::{Kept, Table};

use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use pagoda_operator_core::{build::ChildKind, status::PodView};
use serde_json::Value;
use tokio::sync::watch as watch_channel;

use crate::{
    key::Key,
    scalers::{Conflict, Scalers},
};

/// Everything that is watched.
#[derive(Clone)]
pub struct Stores {
    /// InferenceServices.
    pub services: Arc<Table<Arc<ServiceRow>>>,
    /// Names of models, and whose they are.
    pub names: Arc<Names>,
    /// Pods of all services.
    pub pods: Arc<Table<Arc<PodRow>>>,
    /// Where gateways are.
    pub gateways: Arc<Table<Arc<EndpointSlice>>>,
    /// Deployments of all services.
    pub deployments: Arc<Table<Arc<DeploymentRow>>>,
    /// ConfigMaps of all services.
    pub config_maps: Arc<Table<Packed>>,
    /// Jobs that bring models to nodes; none when they may not be read.
    pub jobs: Arc<Table<Packed>>,
    /// Nodes; none when they may not be read.
    pub nodes: Arc<Nodes>,
    /// Who else scales services; only who writes them, when HPAs may not be read.
    pub scalers: Arc<Scalers>,
    service_accounts: Arc<Table<Packed>>,
    core_services: Arc<Table<Packed>>,
    budgets: Arc<Table<Packed>>,
    unread: watch_channel::Receiver<usize>,
}

impl Stores {
    /// A child as it was last seen.
    pub fn child(&self, kind: ChildKind, key: &Key) -> Option<Value> {
        let packed = match kind {
            ChildKind::ConfigMap => self.config_maps.get(key)?,
            ChildKind::ServiceAccount => self.service_accounts.get(key)?,
            ChildKind::Service => self.core_services.get(key)?,
            ChildKind::PodDisruptionBudget => self.budgets.get(key)?,
            ChildKind::Deployment => self.deployments.get(key)?.object.clone(),
            ChildKind::Job => self.jobs.get(key)?,
        };
        packed.read()
    }

    /// Pods of a service that serve, or will, by name.
    pub fn pods_of(&self, service: &Key) -> Vec<PodView> {
        self.pod_views(service, false)
    }

    /// Pods that bring a service's model to nodes, by name.
    pub fn prefetch_pods_of(&self, service: &Key) -> Vec<PodView> {
        self.pod_views(service, true)
    }

    fn pod_views(&self, service: &Key, prefetches: bool) -> Vec<PodView> {
        let rows = self.pods.of(service).into_iter();
        rows.filter(|(_, row)| row.prefetches == prefetches)
            .map(|(_, row)| row.view.clone())
            .collect()
    }

    /// Who else moves the number of pods of a service.
    pub fn conflict(&self, service: &Key) -> Option<Conflict> {
        self.scalers.conflict(service, &self.deployments)
    }

    /// Waits until every watch has been read once. Before that, an absent child may only be unread. Fails when the
    /// watches have ended.
    pub async fn wait_until_read(&self) -> Result<(), WatchesEnded> {
        let mut unread = self.unread.clone();
        unread
            .wait_for(|watches| *watches == 0)
            .await
            .map(|_| ())
            .map_err(|_| WatchesEnded)
    }
}

/// The watches have ended, and with them the process.
#[derive(Debug, thiserror::Error)]
#[error("the watches have ended")]
pub struct WatchesEnded;
