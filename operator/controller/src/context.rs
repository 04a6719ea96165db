//! What all steps share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{Client, runtime::events::Recorder};
use pagoda_crds::wire::ModelInfo;
use pagoda_operator_core::{build::Images, status::Autoscaling};
use tokio::{sync::watch, time::Instant};

use crate::{
    events, http_client::HttpClient, key::Key, lease::Leadership, metrics::Metrics, queue::Queue,
    settings::Settings, stores::Stores,
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
    /// The last refusal that was written for an object that cannot be read.
    pub unreadable: Option<String>,
    /// Reconciles that failed in a row.
    pub failures: u32,
    /// When the first of them failed.
    pub failing_since: Option<Instant>,
    /// When a status was last written.
    pub told: Option<Instant>,
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
    pub recorder: Recorder,
    /// Asks pods and gateways.
    pub http: HttpClient,
    /// What to build with.
    pub images: Images,
    /// True once the process should end.
    pub stop: watch::Sender<bool>,
    memory: Mutex<HashMap<Key, Memory>>,
}

impl Context {
    /// A context without memories.
    pub fn new(
        client: Client,
        settings: Settings,
        stores: Stores,
        leadership: Leadership,
        metrics: Arc<Metrics>,
        queue: Arc<Queue>,
    ) -> Self {
        Self {
            recorder: events::recorder(client.clone(), &settings),
            images: Images {
                engine: settings.engine_image.clone(),
                pull_policy: settings.engine_image_pull_policy.clone(),
            },
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
            *memory = Memory {
                uid: uid.to_owned(),
                ..Memory::default()
            };
        }
    }

    /// What is remembered of a service.
    pub fn recall(&self, key: &Key) -> Memory {
        self.lock().get(key).cloned().unwrap_or_default()
    }

    /// Changes what is remembered. Of a service that was not met, nothing is.
    pub fn remember<T: Default>(&self, key: &Key, change: impl FnOnce(&mut Memory) -> T) -> T {
        self.lock().get_mut(key).map(change).unwrap_or_default()
    }

    /// Forgets a service.
    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
