//! One watch: reads a kind as it is, then every change, for as long as the process lives.
//!
//! # Guarantees
//! What changed while a connection was dead comes with the next one, which goes on from the last version that was seen. A
//! version that the API server no longer has leads to a new reading of everything. A connection that is silent beyond its
//! own end is given up. Each sign of life of the API server is a beat; failing to open a watch is none.
//!
//! # Why our own
//! kube's `watcher` begins anew by itself too, but tells nobody: whether a quiet watch is at rest or wedged cannot be
//! seen from outside. Here bookmarks and new connections beat, and a kind that the account may not read is a case of its own.

use std::{fmt::Debug, pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
    core::Status,
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::heartbeat::Sign;

/// Ends an initial reading, on its bookmark.
const INITIAL_END: &str = "k8s.io/initial-events-end";
/// A connection may be silent for this long after the API server should have ended it.
const SILENCE_GRACE: Duration = Duration::from_secs(10);
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
const PAGE: u32 = 250;
/// A watch that ended sooner than this is not begun anew at once.
const SHORT: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// A kind that may not be read is tried again this often, in pauses that still beat.
const REFUSED_PAUSE: (u32, Duration) = (10, Duration::from_secs(30));

/// Where objects go.
pub trait Sink: Send {
    /// What it takes.
    type Object;
    /// Everything is read anew.
    fn begin(&mut self);
    /// An object is, or is different.
    fn put(&mut self, object: Self::Object);
    /// An object is no more.
    fn remove(&mut self, object: Self::Object);
    /// Everything was read: what was not put since `begin` is no more.
    fn complete(&mut self);
}

/// What to watch.
pub struct Watch<K> {
    /// The kind, and where.
    pub api: Api<K>,
    /// For people.
    pub name: String,
    /// Only objects with these labels.
    pub labels: Option<String>,
    /// Seconds after which the API server ends a watch.
    pub seconds: u32,
    /// Whether the operator does without it when it may not be read.
    pub optional: bool,
}

#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error("{0}")]
    Request(#[from] kube::Error),
    #[error("the API server reports {}: {}", .0.code, .0.message)]
    Reported(Box<Status>),
    #[error("the API server does not answer")]
    Unanswered,
    #[error("the connection is silent beyond its end")]
    Silent,
    #[error("the initial reading was cut off")]
    CutOff,
}

impl WatchError {
    fn status(&self) -> Option<&Status> {
        match self {
            Self::Request(kube::Error::Api(status)) | Self::Reported(status) => Some(status),
            _ => None,
        }
    }

    /// The version to go on from is too old.
    fn is_expired(&self) -> bool {
        self.status().is_some_and(|s| s.code == 410)
    }

    /// This API server cannot send what is through a watch.
    fn is_without_initial_events(&self) -> bool {
        self.status()
            .is_some_and(|s| s.message.contains("sendInitialEvents"))
    }

    /// The account may not, or the kind is not there.
    fn is_refused(&self) -> bool {
        self.status().is_some_and(|s| matches!(s.code, 403 | 404))
    }
}

/// Watches until the process ends.
pub async fn run<K, S>(watch: Watch<K>, sink: S, sign: Arc<Sign>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    S: Sink<Object = K>,
{
    let mut follower = Follower {
        watch,
        sink,
        sign,
        version: None,
        streams: true,
        failures: 0,
        refusal_told: false,
    };
    loop {
        let began = Instant::now();
        let ended = follower.session().await;
        if matches!(ended, Ok(())) && began.elapsed() > SHORT {
            continue;
        }
        follower.recover(ended).await;
    }
}

struct Follower<K, S> {
    watch: Watch<K>,
    sink: S,
    sign: Arc<Sign>,
    /// Seen so far; `None` while everything has to be read.
    version: Option<String>,
    /// Whether the API server can send what is through a watch.
    streams: bool,
    /// In a row, without a sign of life in between.
    failures: u32,
    refusal_told: bool,
}

impl<K, S> Follower<K, S>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    S: Sink<Object = K>,
{
    /// One connection, from its beginning to its end.
    async fn session(&mut self) -> Result<(), WatchError> {
        if self.version.is_none() && !self.streams {
            self.list().await?;
        }
        let initial = self.version.is_none();
        if initial {
            self.sink.begin();
        }
        let parameters = WatchParams {
            label_selector: self.watch.labels.clone(),
            timeout: Some(self.watch.seconds),
            send_initial_events: initial,
            ..WatchParams::default()
        };
        // Without a version the answer is no older than the request.
        let version = self.version.clone().unwrap_or_default();
        let api = self.watch.api.clone();
        let opened = timeout(OPEN_TIMEOUT, api.watch(&parameters, &version)).await;
        let mut events = pin!(opened.map_err(|_| WatchError::Unanswered)??);
        self.heard();
        let silence = Duration::from_secs(self.watch.seconds.into()) + SILENCE_GRACE;
        loop {
            let event = timeout(silence, events.next()).await;
            match event.map_err(|_| WatchError::Silent)? {
                Some(event) => self.take(event?)?,
                None if self.version.is_none() => return Err(WatchError::CutOff),
                None => return Ok(()),
            }
        }
    }

    fn take(&mut self, event: WatchEvent<K>) -> Result<(), WatchError> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.advance(object.resource_version());
                self.sink.put(object);
            }
            WatchEvent::Deleted(object) => {
                self.advance(object.resource_version());
                self.sink.remove(object);
            }
            WatchEvent::Bookmark(bookmark) => {
                if self.version.is_none() && bookmark.metadata.annotations.contains_key(INITIAL_END)
                {
                    self.sink.complete();
                    self.version = Some(bookmark.metadata.resource_version);
                } else {
                    self.advance(Some(bookmark.metadata.resource_version));
                }
            }
            WatchEvent::Error(status) => return Err(WatchError::Reported(status)),
        }
        self.heard();
        Ok(())
    }

    /// During an initial reading versions come in no order.
    fn advance(&mut self, version: Option<String>) {
        if self.version.is_some() && version.is_some() {
            self.version = version;
        }
    }

    fn heard(&mut self) {
        self.sign.beat();
        self.failures = 0;
    }

    /// Everything, page by page.
    async fn list(&mut self) -> Result<(), WatchError> {
        self.sink.begin();
        let mut parameters = ListParams {
            label_selector: self.watch.labels.clone(),
            ..ListParams::default().limit(PAGE)
        };
        loop {
            let page = timeout(OPEN_TIMEOUT, self.watch.api.list(&parameters)).await;
            let page = page.map_err(|_| WatchError::Unanswered)??;
            self.heard();
            page.items
                .into_iter()
                .for_each(|object| self.sink.put(object));
            let more = page.metadata.continue_.filter(|token| !token.is_empty());
            let Some(token) = more else {
                self.sink.complete();
                self.version = page.metadata.resource_version;
                return Ok(());
            };
            parameters = parameters.continue_token(&token);
        }
    }

    /// What an end asks for before the next beginning.
    async fn recover(&mut self, ended: Result<(), WatchError>) {
        let name = &self.watch.name;
        if let Err(error) = ended {
            if error.is_without_initial_events() && std::mem::take(&mut self.streams) {
                return;
            }
            if self.watch.optional && error.is_refused() {
                return self.do_without(&error).await;
            }
            // Neither the version nor anything after it is worth keeping.
            if error.is_expired() {
                self.version = None;
            }
            tracing::warn!(%error, watch = name, "a watch failed; it is begun anew");
        }
        self.failures = self.failures.saturating_add(1);
        sleep(pause(self.failures)).await;
    }

    /// Nothing of an optional kind is known; perhaps later.
    async fn do_without(&mut self, error: &WatchError) {
        if !std::mem::replace(&mut self.refusal_told, true) {
            tracing::info!(%error, watch = self.watch.name, "not allowed to read this kind; going on without it");
        }
        self.version = None;
        self.sink.begin();
        self.sink.complete();
        let (times, each) = REFUSED_PAUSE;
        for _ in 0..times {
            self.heard();
            sleep(each).await;
        }
    }
}

/// Twice as long with each failure.
fn pause(failures: u32) -> Duration {
    Duration::from_millis(250)
        .saturating_mul(1 << failures.min(8))
        .min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests;
