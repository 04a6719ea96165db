//! Events for people: on transitions alone.

use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use pagoda_crds::names;

use crate::{context::Context, request::bounded, settings::Settings};

/// The API server takes 1 kB of text.
const NOTE_BYTES: usize = 1000;
/// Events that are remembered at most, to be counted rather than published again.
const MOST_REMEMBERED: usize = 256;

/// Publishes events, and counts those that repeat one of a moment ago as one.
///
/// A recorder of the client's library remembers what it published for six minutes, some kilobytes for each: after the news of
/// thousands of services that is most of what the process holds. So one that has published enough makes room for the next.
pub struct Publisher {
    client: Client,
    reporter: Reporter,
    recorder: Mutex<(Recorder, usize)>,
}

impl Publisher {
    /// Publishes in the name of this process.
    pub fn new(client: Client, settings: &Settings) -> Self {
        let reporter = Reporter {
            controller: names::MANAGER_CHILDREN.into(),
            instance: settings.identity.clone(),
        };
        let first = Recorder::new(client.clone(), reporter.clone());
        Self {
            client,
            reporter,
            recorder: Mutex::new((first, 0)),
        }
    }

    fn recorder(&self) -> Recorder {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        if recorder.1 >= MOST_REMEMBERED {
            *recorder = (Recorder::new(self.client.clone(), self.reporter.clone()), 0);
        }
        recorder.1 += 1;
        recorder.0.clone()
    }
}

/// One thing to tell people.
#[derive(Clone, Debug)]
pub struct News {
    /// Whether a person should look.
    pub warning: bool,
    /// CamelCase word.
    pub reason: String,
    /// CamelCase word for what was done. Events of one reason and action count as repetitions of the first, whose message
    /// they keep: what has another message needs another action.
    pub action: String,
    /// Sentence.
    pub message: String,
}

/// Publishes news; what cannot be published is logged, for it is news and not state.
pub async fn publish(context: &Context, about: &ObjectReference, news: News) {
    if context.leadership.check().is_err() {
        return;
    }
    let mut end = news.message.len().min(NOTE_BYTES);
    while !news.message.is_char_boundary(end) {
        end -= 1;
    }
    let event = Event {
        type_: if news.warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: news.reason.clone(),
        note: Some(news.message[..end].to_owned()),
        action: news.action,
        secondary: None,
    };
    let published = bounded(context.publisher.recorder().publish(&event, about)).await;
    match published {
        Ok(()) => {}
        // Nobody will read it.
        Err(error) if error.is_namespace_leaving() || error.code() == 404 => {
            tracing::debug!(%error, reason = news.reason, "no event in a namespace that is leaving");
        }
        Err(error) => tracing::warn!(%error, reason = news.reason, "failed to publish an event"),
    }
}

/// Reference to an InferenceService.
pub fn reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{}/{}", names::GROUP, names::VERSION)),
        kind: Some(names::KIND.into()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
