//! Requests to reconcile that come from within: the autoscaler has news for a status.

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use kube::runtime::reflector::ObjectRef;

use crate::stores::Guarded;

/// Asks for reconciles. Bounded in effect: the autoscaler asks once for each service whose state changed.
#[derive(Clone)]
pub struct Trigger(UnboundedSender<ObjectRef<Guarded>>);

/// Requests as they come.
pub type Triggered = UnboundedReceiver<ObjectRef<Guarded>>;

/// Both ends.
pub fn channel() -> (Trigger, Triggered) {
    let (sender, receiver) = unbounded();
    (Trigger(sender), receiver)
}

impl Trigger {
    /// Asks for a reconcile; without effect while the process ends.
    pub fn reconcile(&self, namespace: &str, name: &str) {
        let _ = self
            .0
            .unbounded_send(ObjectRef::new(name).within(namespace));
    }
}
