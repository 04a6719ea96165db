//! The routes this process serves, shared by watches, which change them, and requests, which read them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::core::routes::{Routes, ServiceKey};
use crate::metrics::Metrics;
use crate::service::{Closed, Service};

/// A served name as `/v1/models` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// The name.
    pub name: String,
    /// The service behind it.
    pub service: ServiceKey,
    /// That service's creation, seconds since the epoch.
    pub created_seconds: i64,
}

#[derive(Debug, Default)]
struct Inner {
    routes: Routes,
    services: HashMap<ServiceKey, Arc<Service>>,
    closed: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Directory {
    inner: RwLock<Inner>,
    metrics: Arc<Metrics>,
    hold_max_bytes: usize,
    services_known: AtomicBool,
    endpoints_known: AtomicBool,
}

impl Directory {
    /// A directory of nothing. `hold_max_bytes` bounds the bodies held for one service.
    pub fn new(metrics: Arc<Metrics>, hold_max_bytes: usize) -> Self {
        Self {
            inner: RwLock::default(),
            metrics,
            hold_max_bytes,
            services_known: AtomicBool::new(false),
            endpoints_known: AtomicBool::new(false),
        }
    }

    /// Changes the routes and brings the affected services into line; requests see it from then on.
    pub fn update(&self, change: impl FnOnce(&mut Routes) -> Vec<ServiceKey>) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let affected = change(&mut inner.routes);
        for key in affected {
            self.refresh(&mut inner, &key);
        }
    }

    fn refresh(&self, inner: &mut Inner, key: &ServiceKey) {
        let Some(record) = inner.routes.service(key) else {
            if let Some(gone) = inner.services.remove(key) {
                gone.close(Closed::Deleted);
                gone.update(crate::core::routes::Settings::default(), Vec::new());
                gone.metrics.forget();
            }
            return;
        };
        let settings = record.settings.clone();
        let endpoints = inner.routes.ready_endpoints(key);
        let closed = inner.closed;
        let service = inner.services.entry(key.clone()).or_insert_with(|| {
            let service = Service::new(
                key.clone(),
                settings.clone(),
                self.hold_max_bytes,
                &self.metrics,
            );
            if closed {
                service.close(Closed::ShuttingDown);
            }
            service
        });
        service.update(settings, endpoints);
    }

    /// The service a request's `model` means.
    pub fn lookup(&self, model: &str) -> Option<Arc<Service>> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.services.get(inner.routes.resolve(model)?).cloned()
    }

    /// Every served name, in order.
    pub fn models(&self) -> Vec<ListedModel> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let listed = inner.routes.served_models().map(|model| ListedModel {
            name: model.name.to_owned(),
            service: model.service.clone(),
            created_seconds: model.created_seconds,
        });
        listed.collect()
    }

    /// Answers every held request that this gateway ends, and holds no more.
    pub fn close(&self) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.closed = true;
        for service in inner.services.values() {
            service.close(Closed::ShuttingDown);
        }
    }

    /// Notes that all services are known.
    pub fn services_known(&self) {
        self.services_known.store(true, Ordering::Release);
    }

    /// Notes that all endpoints are known.
    pub fn endpoints_known(&self) {
        self.endpoints_known.store(true, Ordering::Release);
    }

    /// Whether both have been listed once. What has been learnt stays valid while the API server is away.
    pub fn is_synced(&self) -> bool {
        self.services_known.load(Ordering::Acquire) && self.endpoints_known.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::routes::{Endpoint, ServiceRecord, Settings, SliceRecord};

    fn record(name: &str) -> ServiceRecord {
        ServiceRecord {
            key: ServiceKey::new("ns", name),
            created_seconds: 1,
            names: vec![name.into()],
            settings: Settings::default(),
        }
    }

    #[test]
    fn endpoints_that_come_before_their_service_are_not_lost() {
        let directory = Directory::new(Arc::default(), 100);
        let ready = vec![Endpoint {
            address: ([127, 0, 0, 1], 1).into(),
            pod_uid: String::new(),
            pod_name: String::new(),
        }];
        directory.update(|routes| {
            routes.apply_slice(SliceRecord {
                slice: ServiceKey::new("ns", "chat-x"),
                service: ServiceKey::new("ns", "chat"),
                ready,
            })
        });
        assert!(directory.lookup("chat").is_none());
        directory.update(|routes| routes.apply_service(record("chat")));
        assert_eq!(directory.lookup("chat").expect("known").ready_pods(), 1);
    }

    #[test]
    fn a_deleted_service_answers_to_nothing_and_leaves_no_series() {
        let metrics = Arc::new(Metrics::default());
        let directory = Directory::new(Arc::clone(&metrics), 100);
        directory.update(|routes| routes.apply_service(record("chat")));
        assert!(metrics.encode().expect("encodes").contains("chat"));
        directory.update(|routes| routes.remove_service(&ServiceKey::new("ns", "chat")));
        assert!(directory.lookup("chat").is_none() && directory.models().is_empty());
        assert!(!metrics.encode().expect("encodes").contains("chat"));
    }

    #[test]
    fn is_synced_once_both_lists_are_known() {
        let directory = Directory::new(Arc::default(), 100);
        directory.services_known();
        assert!(!directory.is_synced());
        directory.endpoints_known();
        assert!(directory.is_synced());
    }
}
