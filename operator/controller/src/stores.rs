//! What the operator knows of the cluster: one watch for each kind, read into memory.
//!
//! Children and pods are watched by label, so that other people's objects cost nothing. They are kept whole (without
//! managed fields), because knowing a child saves writing it.

use std::{fmt::Debug, hash::Hash};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, NamespaceResourceScope},
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher::{self, watcher},
    },
};
use pagoda_crds::{InferenceService, names};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::settings::Settings;
use pagoda_operator_core::build::ChildKind;

/// An InferenceService, or what was wrong with it: one malformed object must not hide the others.
pub type Guarded = DeserializeGuard<InferenceService>;

/// Requests to reconcile, and errors of the watches that they come from.
pub type Watches = BoxStream<'static, Result<ObjectRef<Guarded>, watcher::Error>>;

/// A watch is begun anew this often, so that a connection that died silently is noticed.
const WATCH_SECONDS: u32 = 120;

/// Everything that is watched.
#[derive(Clone)]
pub struct Stores {
    /// InferenceServices.
    pub services: Store<Guarded>,
    /// Children.
    pub deployments: Store<Deployment>,
    /// Pods of all services.
    pub pods: Store<Pod>,
    /// Where gateways are.
    pub gateways: Store<EndpointSlice>,
    config_maps: Store<ConfigMap>,
    service_accounts: Store<ServiceAccount>,
    core_services: Store<Service>,
    budgets: Store<PodDisruptionBudget>,
}

impl Stores {
    /// A child as it was last seen.
    pub fn child(&self, kind: ChildKind, namespace: &str, name: &str) -> Option<Value> {
        match kind {
            ChildKind::ConfigMap => find(&self.config_maps, namespace, name),
            ChildKind::ServiceAccount => find(&self.service_accounts, namespace, name),
            ChildKind::Service => find(&self.core_services, namespace, name),
            ChildKind::PodDisruptionBudget => find(&self.budgets, namespace, name),
            ChildKind::Deployment => find(&self.deployments, namespace, name),
        }
    }

    /// Waits until every watch has been read once. Before that, an absent child may only be unread.
    pub async fn wait_until_read(&self) -> Result<(), reflector::store::WriterDropped> {
        self.deployments.wait_until_ready().await?;
        self.pods.wait_until_ready().await?;
        self.gateways.wait_until_ready().await?;
        self.config_maps.wait_until_ready().await?;
        self.service_accounts.wait_until_ready().await?;
        self.core_services.wait_until_ready().await?;
        self.budgets.wait_until_ready().await?;
        self.services.wait_until_ready().await
    }
}

fn find<K>(store: &Store<K>, namespace: &str, name: &str) -> Option<Value>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + 'static,
{
    let found = store.get(&ObjectRef::new(name).within(namespace))?;
    serde_json::to_value(&*found).ok()
}

/// Starts all watches. They run while the returned stream is polled.
pub fn watch(client: &Client, settings: &Settings) -> (Stores, Watches) {
    let children = || {
        watcher::Config::default().labels(&format!(
            "{}={}",
            names::LABEL_MANAGED_BY,
            names::MANAGED_BY_OPERATOR
        ))
    };
    let gateway = format!(
        "{}={}",
        names::LABEL_SLICE_SERVICE,
        settings.gateway_service
    );
    let namespace = settings.watch_namespace.as_deref();
    let (services, of_services) = read(
        scoped(client, namespace),
        watcher::Config::default(),
        own_name,
    );
    let (deployments, of_deployments) = read(scoped(client, namespace), children(), named_by_label);
    let (config_maps, of_config_maps) = read(scoped(client, namespace), children(), named_by_label);
    let (service_accounts, of_service_accounts) =
        read(scoped(client, namespace), children(), named_by_label);
    let (core_services, of_core_services) =
        read(scoped(client, namespace), children(), named_by_label);
    let (budgets, of_budgets) = read(scoped(client, namespace), children(), named_by_label);
    let (pods, of_pods) = read(scoped(client, namespace), children(), named_by_label);
    let (gateways, of_gateways) = read(
        scoped(client, Some(&settings.system_namespace)),
        watcher::Config::default().labels(&gateway),
        nobody,
    );
    let stores = Stores {
        services,
        deployments,
        pods,
        gateways,
        config_maps,
        service_accounts,
        core_services,
        budgets,
    };
    let all = [
        of_services,
        of_deployments,
        of_config_maps,
        of_service_accounts,
        of_core_services,
        of_budgets,
        of_pods,
        of_gateways,
    ];
    (stores, futures::stream::select_all(all).boxed())
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Reads one kind into a store, and tells which service each change is about.
fn read<K>(
    api: Api<K>,
    config: watcher::Config,
    about: fn(&K) -> Option<ObjectRef<Guarded>>,
) -> (Store<K>, Watches)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default,
{
    let (store, writer) = reflector::store();
    let changes = watcher(api, config.timeout(WATCH_SECONDS))
        .modify(|object| object.meta_mut().managed_fields = None)
        .default_backoff()
        .reflect(writer)
        .touched_objects()
        .try_filter_map(move |object| futures::future::ok(about(&object)));
    (store, changes.boxed())
}

fn own_name(object: &Guarded) -> Option<ObjectRef<Guarded>> {
    Some(ObjectRef::from_obj(object))
}

fn named_by_label<K: Resource<DynamicType = ()>>(object: &K) -> Option<ObjectRef<Guarded>> {
    let service = object.labels().get(names::LABEL_SERVICE)?;
    Some(ObjectRef::new(service).within(&object.namespace()?))
}

fn nobody(_: &EndpointSlice) -> Option<ObjectRef<Guarded>> {
    None
}
