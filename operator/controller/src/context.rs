//! What all steps share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use kube::Client;
use pagoda_crds::{
    InferenceServiceStatus,
    wire::{FetchProgress, ModelInfo},
};
use pagoda_operator_core::{
    build::{Images, ModelCache, Setup},
    status::{Autoscaling, LoadReading},
};
use tokio::{sync::watch, time::Instant};

use crate::{
    autoscaler::{decisions::Decisions, signals::Signals},
    canary_gate::Gate,
    events,
    gateways::Gateways,
    http_client::HttpClient,
    key::Key,
    lease::Leadership,
    metrics::Metrics,
    model_facts::Asker,
    prometheus::{Readings, config::Servers},
    queue::Queue,
    settings::Settings,
    stores::Stores,
    update_status::Version,
};

/// What is remembered of a service between reconciles. Lost with the process, and gained again by looking.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Whose memory it is: one of the same name that was made anew begins without.
    pub uid: String,
    /// What the autoscaler thinks of it.
    pub autoscaling: Autoscaling,
    /// Revision of a loaded model, and its facts.
    pub model: Option<(String, ModelInfo)>,
    /// What gateways counted in the present step of a canary.
    pub gate: Option<Box<Gate>>,
    /// How far pods have come that fetch the model.
    pub fetching: Vec<FetchProgress>,
    /// What the pods carry, until it is told.
    pub load: Option<LoadReading>,
    /// The last refusal that was written for an object that cannot be read.
    pub unreadable: Option<String>,
    /// Whether it was told that the installed definition is older than this program.
    pub outdated_told: bool,
    /// Reconciles that failed in a row.
    pub failures: u32,
    /// When the first of them failed.
    pub failing_since: Option<Instant>,
    /// Whether the status tells of them.
    pub failure_told: bool,
    /// When a status was last written.
    pub told: Option<Instant>,
    /// That status, and the version that came of it, until the watch has brought it.
    pub written: Option<Box<(Version, InferenceServiceStatus)>>,
}

/// What all steps share.
pub struct Context {
    /// Connection to the API server.
    pub client: Client,
    /// Flags.
    pub settings: Settings,
    /// What is known of the cluster.
    pub stores: Stores,
    /// Leave to write.
    pub leadership: Leadership,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// What is to be reconciled.
    pub queue: Arc<Queue>,
    /// Publishes events.
    pub publisher: events::Publisher,
    /// Asks pods and gateways.
    pub http: HttpClient,
    /// What to build with.
    pub setup: Setup,
    /// What the gateways last told.
    pub gateways: Gateways,
    /// Figures of the autoscaler's last round.
    pub signals: Arc<Signals>,
    /// What the autoscaler decided in the last hour.
    pub decisions: Arc<Decisions>,
    /// Asks pods for facts.
    pub asker: Asker,
    /// What Prometheus servers last told.
    pub prometheus: Readings,
    /// Whether Jobs may be made that bring models to nodes.
    pub may_prefetch: AtomicBool,
    /// True once the process should end.
    pub stop: watch::Sender<bool>,
    memory: Mutex<HashMap<Key, Box<Memory>>>,
}

impl Context {
    /// A context without memories.
    pub fn new(
        client: Client,
        settings: Settings,
        servers: Servers,
        stores: Stores,
        leadership: Leadership,
        metrics: Arc<Metrics>,
        queue: Arc<Queue>,
    ) -> Self {
        Self {
            publisher: events::Publisher::new(client.clone(), &settings),
            setup: setup(&settings),
            gateways: Gateways::default(),
            signals: metrics.signals.clone(),
            decisions: metrics.decisions.clone(),
            asker: Asker::default(),
            prometheus: Readings::of_servers(servers),
            may_prefetch: AtomicBool::new(true),
            client,
            settings,
            stores,
            leadership,
            metrics,
            queue,
            http: HttpClient::default(),
            stop: watch::Sender::new(false),
            memory: Mutex::default(),
        }
    }

    /// Begins to remember a service, and forgets an earlier one of its name.
    pub fn meet(&self, key: &Key, uid: &str) {
        let mut all = self.lock();
        let memory = all.entry(key.clone()).or_default();
        if memory.uid != uid {
            **memory = Memory {
                uid: uid.to_owned(),
                ..Memory::default()
            };
        }
    }

    /// What is remembered of a service.
    pub fn recall(&self, key: &Key) -> Memory {
        let all = self.lock();
        all.get(key)
            .map(|memory| (**memory).clone())
            .unwrap_or_default()
    }

    /// Changes what is remembered. Of a service that was not met, nothing is.
    pub fn remember<T: Default>(&self, key: &Key, change: impl FnOnce(&mut Memory) -> T) -> T {
        let mut all = self.lock();
        all.get_mut(key)
            .map(|memory| change(memory))
            .unwrap_or_default()
    }

    /// Services that run a canary.
    pub fn canaries(&self) -> Vec<Key> {
        let all = self.lock();
        let running = all.iter().filter(|(_, memory)| memory.gate.is_some());
        running.map(|(key, _)| key.clone()).collect()
    }

    /// Forgets a service.
    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Box<Memory>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn setup(settings: &Settings) -> Setup {
    let cache = settings.model_cache_path.clone();
    Setup {
        images: Images {
            engine: settings.engine_image.clone(),
            pull_policy: settings.engine_image_pull_policy.clone(),
        },
        model_cache: cache.zip(settings.model_cache_bytes).map(
            |(host_path, bytes_per_namespace)| ModelCache {
                host_path,
                bytes_per_namespace,
            },
        ),
    }
}
