//! What the operator knows of the cluster: one watch for each kind and namespace, read into memory.
//!
//! Children and pods are watched by label, so that other people's objects cost nothing. They are kept as text, or as the
//! few fields that decide: thousands of services are to fit where typed objects would need a gigabyte.

mod fill;
mod keep;
mod table;

pub use keep::{Content, Guarded, Json, ServiceRow, reduced};
pub use table::Table;

use std::{fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use kube::{Api, Client, Resource, core::NamespaceResourceScope};
use pagoda_crds::names;
use pagoda_operator_core::{build::ChildKind, status::PodView};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{sync::watch as watch_channel, task::JoinSet};

use crate::{
    heartbeat::{Heartbeats, Patience},
    key::Key,
    queue::Queue,
    settings::Settings,
    watch::{self, Watch},
};
use fill::{Fill, Unread};
use table::Kept;

/// A watch may be silent for this long beyond its own end before it is late, and this long again before it is dead.
const SILENCE: Duration = Duration::from_secs(90);
/// Changes of children and pods come in bursts; one reconcile is enough for those of this long.
const BURST: Duration = Duration::from_millis(150);
/// A service whose spec is the same has a new status at most: usually our own.
const STATUS_ECHO: Duration = Duration::from_millis(500);

/// Everything that is watched.
#[derive(Clone)]
pub struct Stores {
    /// InferenceServices.
    pub services: Arc<Table<Arc<ServiceRow>>>,
    /// Pods of all services.
    pub pods: Arc<Table<Arc<PodView>>>,
    /// Where gateways are.
    pub gateways: Arc<Table<Arc<EndpointSlice>>>,
    /// Deployments of all services.
    pub deployments: Arc<Table<Json>>,
    /// ConfigMaps of all services.
    pub config_maps: Arc<Table<Json>>,
    service_accounts: Arc<Table<Json>>,
    core_services: Arc<Table<Json>>,
    budgets: Arc<Table<Json>>,
    unread: watch_channel::Receiver<usize>,
}

impl Stores {
    /// A child as it was last seen.
    pub fn child(&self, kind: ChildKind, key: &Key) -> Option<Value> {
        let table = match kind {
            ChildKind::ConfigMap => &self.config_maps,
            ChildKind::ServiceAccount => &self.service_accounts,
            ChildKind::Service => &self.core_services,
            ChildKind::PodDisruptionBudget => &self.budgets,
            ChildKind::Deployment => &self.deployments,
        };
        serde_json::from_slice(&table.get(key)?).ok()
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

/// Starts all watches; they end with the returned set.
pub fn watch(
    client: &Client,
    settings: &Settings,
    queue: &Arc<Queue>,
    heartbeats: &Heartbeats,
) -> (Stores, JoinSet<()>) {
    let mut reader = Reader {
        client,
        queue,
        heartbeats,
        seconds: settings.watch_seconds,
        unread: Arc::new(watch_channel::Sender::new(0)),
        watches: JoinSet::new(),
    };
    let scopes = settings.scopes();
    let ours = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGED_BY_OPERATOR);
    let ours = Some(ours.as_str());
    let slices = format!(
        "{}={}",
        names::LABEL_SLICE_SERVICE,
        settings.gateway_service
    );
    let system = [Some(settings.system_namespace.as_str())];
    let stores = Stores {
        services: reader.services(&scopes),
        pods: reader.read::<Pod, _>(&scopes, ours, keep::pod),
        gateways: reader.read::<EndpointSlice, _>(&system, Some(&slices), keep::gateway),
        deployments: reader.read::<Deployment, _>(&scopes, ours, keep::child),
        config_maps: reader.read::<ConfigMap, _>(&scopes, ours, keep::child),
        service_accounts: reader.read::<ServiceAccount, _>(&scopes, ours, keep::child),
        core_services: reader.read::<Service, _>(&scopes, ours, keep::child),
        budgets: reader.read::<PodDisruptionBudget, _>(&scopes, ours, keep::child),
        unread: reader.unread.subscribe(),
    };
    (stores, reader.watches)
}

/// Reads kinds into tables.
struct Reader<'a> {
    client: &'a Client,
    queue: &'a Arc<Queue>,
    heartbeats: &'a Heartbeats,
    seconds: u32,
    unread: Arc<watch_channel::Sender<usize>>,
    watches: JoinSet<()>,
}

impl Reader<'_> {
    fn services(&mut self, scopes: &[Option<&str>]) -> Arc<Table<Arc<ServiceRow>>> {
        let table: Arc<Table<Arc<ServiceRow>>> = Arc::default();
        let known = table.clone();
        let keep = Arc::new(move |object: Guarded| {
            let key = Key::new(
                object.meta().namespace.as_deref()?,
                object.meta().name.as_deref()?,
            );
            keep::service(object, known.get(&key))
        });
        let delay = |before: Option<&Arc<ServiceRow>>, after: &Arc<ServiceRow>| {
            let same =
                before.is_some_and(|b| b.uid == after.uid && b.generation == after.generation);
            Some(if same { STATUS_ECHO } else { Duration::ZERO })
        };
        for scope in scopes {
            let api = self.namespaced(*scope);
            self.start(api, *scope, None, false, table.clone(), keep.clone(), delay);
        }
        table
    }

    /// A kind whose every change is a reason to look at the service that it belongs to.
    fn read<K, V>(
        &mut self,
        scopes: &[Option<&str>],
        labels: Option<&str>,
        keep: fn(K) -> Option<Kept<V>>,
    ) -> Arc<Table<V>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
    {
        let table: Arc<Table<V>> = Arc::default();
        let keep = Arc::new(keep);
        for scope in scopes {
            let api = self.namespaced(*scope);
            self.start(
                api,
                *scope,
                labels,
                false,
                table.clone(),
                keep.clone(),
                |_, _| Some(BURST),
            );
        }
        table
    }

    fn namespaced<K>(&self, scope: Option<&str>) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match scope {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "each differs from kind to kind")]
    fn start<K, V, F>(
        &mut self,
        api: Api<K>,
        scope: Option<&str>,
        labels: Option<&str>,
        optional: bool,
        table: Arc<Table<V>>,
        keep: Arc<F>,
        delay: fn(Option<&V>, &V) -> Option<Duration>,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
        F: Fn(K) -> Option<Kept<V>> + Send + Sync + 'static,
    {
        let place = scope.map_or_else(String::new, |namespace| format!(" in {namespace}"));
        let name = format!("the watch of {}{place}", K::plural(&()));
        let late = Duration::from_secs(self.seconds.into()) + SILENCE;
        let patience = Patience {
            late,
            dead: late + SILENCE,
        };
        let sign = self.heartbeats.expect(name.as_str(), patience);
        let watch = Watch {
            api,
            name,
            labels: labels.map(str::to_owned),
            seconds: self.seconds,
            optional,
        };
        let fill = Fill {
            table,
            scope: scope.map(str::to_owned),
            keep,
            delay,
            queue: self.queue.clone(),
            unread: Some(Unread::expect(&self.unread)),
            epoch: 0,
            object: std::marker::PhantomData,
        };
        self.watches.spawn(watch::run(watch, fill, sign));
    }
}
