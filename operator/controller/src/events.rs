//! Events for people: on transitions alone.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use pagoda_crds::names;

use crate::{context::Context, settings::Settings};

/// The API server takes 1 kB of text.
const NOTE_BYTES: usize = 1000;

pub(crate) fn recorder(client: Client, settings: &Settings) -> Recorder {
    Recorder::new(
        client,
        Reporter {
            controller: names::MANAGER_CHILDREN.into(),
            instance: settings.identity.clone(),
        },
    )
}

/// Publishes an event; one that cannot be published is logged, for it is news and not state.
pub async fn publish(
    context: &Context,
    about: &ObjectReference,
    warning: bool,
    reason: &str,
    message: &str,
) {
    if context.leadership.check().is_err() {
        return;
    }
    let mut end = message.len().min(NOTE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let event = Event {
        type_: if warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: reason.to_owned(),
        note: Some(message[..end].to_owned()),
        action: "Reconcile".into(),
        secondary: None,
    };
    if let Err(error) = context.recorder.publish(&event, about).await {
        tracing::warn!(%error, reason, "failed to publish an event");
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
