//! Names of models: one that two services claim leads to the older one, and the other is told.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagoda_operator_core::status::{Contested, NameIndex};

use super::keep::ServiceRow;
use crate::{key::Key, queue::Queue};

const SOON: Duration = Duration::from_millis(500);

/// Names of models, and whose they are.
#[derive(Debug, Default)]
pub struct Names(Mutex<NameIndex>);

impl Names {
    /// Names of a service that lead to another one.
    pub fn contested(&self, service: &Key) -> Vec<Contested> {
        self.lock().contested(&service.to_string())
    }

    /// Takes in a change of a service, and has those looked at whose names may lead elsewhere now.
    pub(super) fn take(
        &self,
        queue: &Queue,
        service: &Key,
        before: Option<&Arc<ServiceRow>>,
        after: Option<&Arc<ServiceRow>>,
    ) {
        let claim = after.and_then(|row| row.claim.as_ref());
        if before.is_some_and(|row| row.claim.as_ref() == claim) {
            return;
        }
        let qualified = service.to_string();
        let touched = match claim {
            Some(claim) => self
                .lock()
                .insert(&qualified, claim.created_seconds, &claim.names),
            None => self.lock().remove(&qualified),
        };
        for other in touched {
            if let Some((namespace, name)) = other.split_once('/') {
                queue.add(Key::new(namespace, name), SOON);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, NameIndex> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
