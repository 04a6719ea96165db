//! What the operator knows of the cluster: one watch for each kind, read into memory.
//!
//! Children and pods are watched by label, so that other people's objects cost nothing. They are kept whole (without
//! managed fields), because knowing a child saves writing it.

use std::{fmt::Debug, sync::Arc};

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
use tokio::sync::watch as watch_channel;

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
    /// Kinds that have not been read yet.
    unread: watch_channel::Receiver<usize>,
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

    /// Waits until every watch has been read once. Before that, an absent child may only be unread. Fails when the
    /// watches have ended.
    ///
    /// Not with `Store::wait_until_ready`, which wakes the last of several waiters only.
    pub async fn wait_until_read(&self) -> Result<(), WatchesEnded> {
        let mut unread = self.unread.clone();
        unread
            .wait_for(|kinds| *kinds == 0)
            .await
            .map(|_| ())
            .map_err(|_| WatchesEnded)
    }
}

/// The watches have ended, and with them the process.
#[derive(Debug, thiserror::Error)]
#[error("the watches have ended")]
pub struct WatchesEnded;

fn find<K>(store: &Store<K>, namespace: &str, name: &str) -> Option<Value>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + 'static,
{
    let found = store.get(&ObjectRef::new(name).within(namespace))?;
    serde_json::to_value(&*found).ok()
}

/// Starts all watches. They run while the returned stream is polled.
pub fn watch(client: &Client, settings: &Settings) -> (Stores, Watches) {
    let ours = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGED_BY_OPERATOR);
    let gateway = format!(
        "{}={}",
        names::LABEL_SLICE_SERVICE,
        settings.gateway_service
    );
    let children = watcher::Config::default().labels(&ours);
    let gateways = watcher::Config::default().labels(&gateway);
    let mut reader = Reader {
        client,
        unread: Arc::new(watch_channel::Sender::new(0)),
        watches: Vec::new(),
    };
    let namespace = match settings.scopes()[..] {
        [one] => one,
        _ => None,
    };
    let system = Some(settings.system_namespace.as_str());
    let stores = Stores {
        services: reader.read(namespace, &watcher::Config::default(), |service| {
            Some(ObjectRef::from_obj(service))
        }),
        deployments: reader.read(namespace, &children, named_by_label),
        pods: reader.read(namespace, &children, named_by_label),
        gateways: reader.read(system, &gateways, |_| None),
        config_maps: reader.read(namespace, &children, named_by_label),
        service_accounts: reader.read(namespace, &children, named_by_label),
        core_services: reader.read(namespace, &children, named_by_label),
        budgets: reader.read(namespace, &children, named_by_label),
        unread: reader.unread.subscribe(),
    };
    (stores, futures::stream::select_all(reader.watches).boxed())
}

/// Reads kinds into stores, and collects their changes.
struct Reader<'a> {
    client: &'a Client,
    unread: Arc<watch_channel::Sender<usize>>,
    watches: Vec<Watches>,
}

impl Reader<'_> {
    /// `about` tells which service a change is about.
    fn read<K>(
        &mut self,
        namespace: Option<&str>,
        config: &watcher::Config,
        about: fn(&K) -> Option<ObjectRef<Guarded>>,
    ) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let api: Api<K> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        self.unread.send_modify(|kinds| *kinds += 1);
        let (unread, mut counted) = (self.unread.clone(), false);
        let (store, writer) = reflector::store();
        let changes = watcher(api, config.clone().timeout(WATCH_SECONDS))
            .modify(|object| object.meta_mut().managed_fields = None)
            .default_backoff()
            .reflect(writer)
            .inspect_ok(move |event| {
                if matches!(event, watcher::Event::InitDone)
                    && !std::mem::replace(&mut counted, true)
                {
                    unread.send_modify(|kinds| *kinds -= 1);
                }
            })
            .touched_objects()
            .try_filter_map(move |object| futures::future::ok(about(&object)));
        self.watches.push(changes.boxed());
        store
    }
}

fn named_by_label<K: Resource<DynamicType = ()>>(object: &K) -> Option<ObjectRef<Guarded>> {
    let service = object.labels().get(names::LABEL_SERVICE)?;
    Some(ObjectRef::new(service).within(&object.namespace()?))
}
