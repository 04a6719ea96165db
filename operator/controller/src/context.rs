//! What all steps share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{Client, runtime::events::Recorder};
use pagoda_crds::wire::ModelInfo;
use pagoda_operator_core::{build::Images, status::Autoscaling};
use tokio::sync::Notify;

use crate::{
    events, http_client::HttpClient, lease::Leadership, metrics::Metrics, queue::Trigger,
    settings::Settings, stores::Stores,
};

/// What is remembered of a service between reconciles. Lost with the process, and gained again by looking.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// What the autoscaler thinks of it.
    pub autoscaling: Autoscaling,
    /// Revision of a loaded model, and its facts.
    pub model: Option<(String, ModelInfo)>,
    /// The last refusal that was written for an object that cannot be read.
    pub unreadable: Option<String>,
    /// Reconciles that failed in a row.
    pub failures: u32,
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
    /// Asks for reconciles.
    pub trigger: Trigger,
    /// Publishes events.
    pub recorder: Recorder,
    /// Asks pods and gateways.
    pub http: HttpClient,
    /// What to build with.
    pub images: Images,
    /// Told once, when the process should end.
    pub stop: Notify,
    memory: Mutex<HashMap<String, Memory>>,
}

impl Context {
    /// A context without memories.
    pub fn new(
        client: Client,
        settings: Settings,
        stores: Stores,
        leadership: Leadership,
        metrics: Arc<Metrics>,
        trigger: Trigger,
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
            trigger,
            http: HttpClient::default(),
            stop: Notify::new(),
            memory: Mutex::default(),
        }
    }

    /// What is remembered of the object with this UID.
    pub fn recall(&self, uid: &str) -> Memory {
        self.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Changes what is remembered.
    pub fn remember<T>(&self, uid: &str, change: impl FnOnce(&mut Memory) -> T) -> T {
        change(self.lock().entry(uid.to_owned()).or_default())
    }

    /// Forgets all but these.
    pub fn keep_only(&self, uids: &std::collections::HashSet<String>) {
        self.lock().retain(|uid, _| uids.contains(uid));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
