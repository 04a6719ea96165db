//! Starts the watches that fill the tables.

use std::{fmt::Debug, marker::PhantomData, sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, Pod, Service, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use kube::{Api, Client, Resource, core::NamespaceResourceScope};
use pagoda_crds::names;
use serde::de::DeserializeOwned;
use tokio::{sync::watch as watch_channel, task::JoinSet};

use super::{
    Names, Nodes, Stores,
    fill::{Fill, Observer, Unread},
    keep::{self, DeploymentRow, Guarded, PodRow, ServiceRow},
    packed::{Packed, Packer},
    table::{Kept, Table},
};
use crate::{
    heartbeat::{Heartbeats, Patience},
    key::Key,
    queue::Queue,
    scalers::Scalers,
    settings::Settings,
    watch::{self, Watch},
};

/// A watch may be silent for this long beyond its own end before it is late, and this long again before it is dead.
const SILENCE: Duration = Duration::from_secs(90);
/// Changes of children and pods come in bursts; one reconcile is enough for those of this long.
const BURST: Duration = Duration::from_millis(150);
/// A service whose spec is the same has a new status at most: usually our own.
const STATUS_ECHO: Duration = Duration::from_millis(500);

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
    let scopes = &scopes[..];
    // Pods that fetch ahead of a rollout belong to no service's selector.
    let pods = format!("{}={}", names::LABEL_MANAGED_BY, names::MANAGED_BY_OPERATOR);
    // Who edits another label of a child must not make it invisible: nobody would ever put it right, or delete it.
    let children = names::LABEL_SERVICE;
    let service = &settings.gateway_service;
    let slices = format!("{}={service}", names::LABEL_SLICE_SERVICE);
    let system = [Some(settings.system_namespace.as_str())];
    let names = Arc::<Names>::default();
    let scalers = Arc::<Scalers>::default();
    let deployments = reader.packed(scopes, children, keep::deployment);
    reader.scalers(scopes, &scalers, &deployments);
    let stores = Stores {
        services: reader.services(scopes, &names, &scalers),
        pods: reader.pods(scopes, &pods),
        gateways: reader.optional(&system, &slices, keep::gateway),
        deployments,
        scalers,
        config_maps: reader.packed::<ConfigMap, Packed>(scopes, children, keep::child),
        jobs: reader.optional(scopes, children, packing(keep::job)),
        nodes: reader.nodes(settings.watch_nodes),
        service_accounts: reader.packed::<ServiceAccount, _>(scopes, children, keep::child),
        core_services: reader.packed::<Service, _>(scopes, children, keep::child),
        budgets: reader.packed::<PodDisruptionBudget, _>(scopes, children, keep::child),
        names,
        unread: reader.unread.subscribe(),
    };
    (stores, reader.watches)
}

/// Keeps objects of one kind, all of them by one packer.
fn packing<K, V>(keep: fn(K, &Packer) -> Option<V>) -> impl Fn(K) -> Option<V> {
    let packer = Packer::default();
    move |object| keep(object, &packer)
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

/// What differs from kind to kind.
struct Plan<V, F> {
    table: Arc<Table<V>>,
    labels: Option<String>,
    optional: bool,
    keep: Arc<F>,
    delay: fn(Option<&V>, &V) -> Option<Duration>,
    observer: Observer<V>,
}

impl Reader<'_> {
    fn services(
        &mut self,
        scopes: &[Option<&str>],
        names: &Arc<Names>,
        scalers: &Arc<Scalers>,
    ) -> Arc<Table<Arc<ServiceRow>>> {
        let table: Arc<Table<Arc<ServiceRow>>> = Arc::default();
        let (known, packer) = (table.clone(), Packer::default());
        let (names, scalers, queue) = (names.clone(), scalers.clone(), self.queue.clone());
        let plan = Plan {
            table: table.clone(),
            labels: None,
            optional: false,
            keep: Arc::new(move |object: Guarded| {
                let metadata = object.meta();
                let key = Key::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?);
                keep::service(object, known.get(&key), &packer)
            }),
            delay: |before, after| {
                let same =
                    |b: &Arc<ServiceRow>| b.uid == after.uid && b.generation == after.generation;
                Some(if before.is_some_and(same) {
                    STATUS_ECHO
                } else {
                    Duration::ZERO
                })
            },
            observer: Arc::new(move |key, before, after| {
                names.take(&queue, key, before, after);
                scalers.watch_writers(&queue, key, before, after);
            }),
        };
        self.start(scopes, &plan);
        table
    }

    fn pods(&mut self, scopes: &[Option<&str>], labels: &str) -> Arc<Table<Arc<PodRow>>> {
        let table: Arc<Table<Arc<PodRow>>> = Arc::default();
        let (known, unread) = (table.clone(), self.unread.subscribe());
        let plan = Plan {
            table: table.clone(),
            labels: Some(labels.to_owned()),
            optional: false,
            keep: Arc::new(move |object: Pod| {
                let metadata = &object.metadata;
                let key = Key::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?);
                let settled = *unread.borrow() == 0;
                keep::pod(object, known.get(&key), settled)
            }),
            delay: |_, _| Some(BURST),
            observer: Arc::new(|_, _, _| {}),
        };
        self.start(scopes, &plan);
        table
    }

    /// A kind whose every change is a reason to look at the service that it belongs to.
    fn namespaced<K, V>(
        &mut self,
        scopes: &[Option<&str>],
        labels: &str,
        keep: impl Fn(K) -> Option<Kept<V>> + Send + Sync + 'static,
    ) -> Arc<Table<V>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
    {
        self.labelled(scopes, labels, keep, false)
    }

    /// The same, of a kind of which packed objects are kept.
    fn packed<K, V>(
        &mut self,
        scopes: &[Option<&str>],
        labels: &str,
        keep: fn(K, &Packer) -> Option<Kept<V>>,
    ) -> Arc<Table<V>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
    {
        self.namespaced(scopes, labels, packing(keep))
    }

    /// The same, of a kind that the operator can do without.
    fn optional<K, V>(
        &mut self,
        scopes: &[Option<&str>],
        labels: &str,
        keep: impl Fn(K) -> Option<Kept<V>> + Send + Sync + 'static,
    ) -> Arc<Table<V>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
    {
        self.labelled(scopes, labels, keep, true)
    }

    fn labelled<K, V>(
        &mut self,
        scopes: &[Option<&str>],
        labels: &str,
        keep: impl Fn(K) -> Option<Kept<V>> + Send + Sync + 'static,
        optional: bool,
    ) -> Arc<Table<V>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
    {
        let plan = Plan {
            table: Arc::default(),
            labels: Some(labels.to_owned()),
            optional,
            keep: Arc::new(keep),
            delay: |_, _| Some(BURST),
            observer: Arc::new(|_, _, _| {}),
        };
        self.start(scopes, &plan);
        plan.table
    }

    /// Autoscalers of others, of all that there are: which of them matter only their targets tell.
    fn scalers(
        &mut self,
        scopes: &[Option<&str>],
        scalers: &Arc<Scalers>,
        deployments: &Arc<Table<Arc<DeploymentRow>>>,
    ) {
        let (taken, queue, deployments) =
            (scalers.clone(), self.queue.clone(), deployments.clone());
        let plan = Plan {
            table: scalers.table.clone(),
            labels: None,
            optional: true,
            keep: Arc::new(keep::scaler),
            delay: |_, _| None,
            observer: Arc::new(move |key, before, after| {
                taken.take(&queue, key, before, after, &deployments);
            }),
        };
        self.start(scopes, &plan);
    }

    fn nodes(&mut self, wanted: bool) -> Arc<Nodes> {
        let nodes = Arc::<Nodes>::default();
        let (taken, queue) = (nodes.clone(), self.queue.clone());
        let plan = Plan {
            table: nodes.table.clone(),
            labels: None,
            optional: true,
            keep: Arc::new(keep::node),
            delay: |_, _| None,
            observer: Arc::new(move |_, before, after| taken.take(&queue, before, after)),
        };
        if wanted {
            self.follow(Api::<Node>::all(self.client.clone()), None, &plan);
        }
        nodes
    }

    fn start<K, V, F>(&mut self, scopes: &[Option<&str>], plan: &Plan<V, F>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
        F: Fn(K) -> Option<Kept<V>> + Send + Sync + 'static,
    {
        for scope in scopes {
            let api = match scope {
                Some(namespace) => Api::namespaced(self.client.clone(), namespace),
                None => Api::all(self.client.clone()),
            };
            self.follow(api, *scope, plan);
        }
    }

    fn follow<K, V, F>(&mut self, api: Api<K>, scope: Option<&str>, plan: &Plan<V, F>)
    where
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
            labels: plan.labels.clone(),
            seconds: self.seconds,
            optional: plan.optional,
        };
        let fill = Fill {
            table: plan.table.clone(),
            scope: scope.map(str::to_owned),
            keep: plan.keep.clone(),
            delay: plan.delay,
            observer: plan.observer.clone(),
            queue: self.queue.clone(),
            unread: Some(Unread::expect(&self.unread)),
            epoch: 0,
            object: PhantomData,
        };
        self.watches.spawn(watch::run(watch, fill, sign));
    }
}
