//! Who else moves the number of pods of a service, and how Pagoda keeps peace with them.
//!
//! HorizontalPodAutoscalers are watched where the account may read them (KEDA's ScaledObjects make some, so they are seen as
//! well); whoever else writes `spec.replicas` is known by the field manager that the API server notes.

mod conflict;
mod rivalry;

pub use conflict::{Conflict, Target};

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use pagoda_crds::names;
use tokio::time::Instant;

use crate::{
    key::Key,
    queue::Queue,
    stores::{DeploymentRow, ServiceRow, Table},
};
use rivalry::{Millis, Rivalry};

/// Changes of others come in bursts.
const SOON: Duration = Duration::from_millis(200);

/// Another autoscaler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalerRow {
    /// What it scales.
    pub target: Target,
    /// The object that made it, if one did: kind and name.
    pub maker: Option<(String, String)>,
}

impl ScalerRow {
    /// What counts of an HPA.
    pub fn of(object: &HorizontalPodAutoscaler) -> Self {
        let spec = object.spec.as_ref();
        let target = spec.map(|spec| &spec.scale_target_ref);
        let of = |kind: &str, group: &str| {
            target
                .filter(|target| target.kind == kind)
                .filter(|target| group_of(target.api_version.as_deref()) == group)
                .map(|target| target.name.clone())
        };
        let service = of(names::KIND, names::GROUP).map(Target::Service);
        let deployment = || of("Deployment", "apps").map(Target::Deployment);
        let owners = object.metadata.owner_references.iter().flatten();
        let mut makers = owners.filter(|owner| owner.controller == Some(true));
        Self {
            target: service.or_else(deployment).unwrap_or(Target::Other),
            maker: makers
                .next()
                .map(|owner| (owner.kind.clone(), owner.name.clone())),
        }
    }
}

fn group_of(api_version: Option<&str>) -> &str {
    api_version
        .and_then(|version| version.split_once('/'))
        .map_or("", |(group, _)| group)
}

/// All who scale, by what they scale.
#[derive(Debug)]
pub struct Scalers {
    /// HPAs by their own names.
    pub table: Arc<Table<Arc<ScalerRow>>>,
    clock: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// HPAs by namespace and what they scale there.
    by_target: BTreeMap<(String, Target), BTreeSet<Key>>,
    /// Services whose number somebody has overwritten.
    rivals: HashMap<Key, Rival>,
}

#[derive(Debug)]
struct Rival {
    uid: String,
    manager: Arc<str>,
    rivalry: Rivalry,
}

impl Default for Scalers {
    fn default() -> Self {
        Self {
            table: Arc::default(),
            clock: Instant::now(),
            state: Mutex::default(),
        }
    }
}

impl Scalers {
    /// Who else moves the number of pods of this service. An autoscaler is named before somebody who only writes.
    pub fn conflict(
        &self,
        service: &Key,
        deployments: &Table<Arc<DeploymentRow>>,
    ) -> Option<Conflict> {
        let state = self.lock();
        if state.by_target.is_empty() && state.rivals.is_empty() {
            return None;
        }
        let target = Target::Service(service.name().to_owned());
        let of_service = self.autoscaler(&state, service.namespace(), target, None);
        of_service
            .or_else(|| self.of_deployments(&state, service, deployments))
            .or_else(|| self.writer(&state, service))
    }

    fn of_deployments(
        &self,
        state: &State,
        service: &Key,
        deployments: &Table<Arc<DeploymentRow>>,
    ) -> Option<Conflict> {
        if state.by_target.is_empty() {
            return None;
        }
        deployments.of(service).into_iter().find_map(|(key, _)| {
            let name = key.name().to_owned();
            let target = Target::Deployment(name.clone());
            self.autoscaler(state, service.namespace(), target, Some(name))
        })
    }

    fn autoscaler(
        &self,
        state: &State,
        namespace: &str,
        target: Target,
        deployment: Option<String>,
    ) -> Option<Conflict> {
        let found = state.by_target.get(&(namespace.to_owned(), target))?;
        let key = found.first()?;
        let maker = self.table.get(key).and_then(|row| row.maker.clone());
        let (kind, name) =
            maker.unwrap_or_else(|| ("HorizontalPodAutoscaler".to_owned(), key.name().to_owned()));
        Some(Conflict::Autoscaler {
            kind,
            name,
            deployment,
        })
    }

    fn writer(&self, state: &State, service: &Key) -> Option<Conflict> {
        let now = self.now();
        let rival = state.rivals.get(service)?;
        rival.rivalry.lasts(now).then(|| Conflict::Writer {
            manager: rival.manager.to_string(),
            pauses: rival.rivalry.pauses(now),
        })
    }

    /// Takes in a change of an HPA, and has the services looked at that it concerns.
    pub fn take(
        &self,
        queue: &Queue,
        key: &Key,
        before: Option<&Arc<ScalerRow>>,
        after: Option<&Arc<ScalerRow>>,
        deployments: &Table<Arc<DeploymentRow>>,
    ) {
        if before == after {
            return;
        }
        let place = |row: &Arc<ScalerRow>| (key.namespace().to_owned(), row.target.clone());
        let mut state = self.lock();
        if let Some(place) = before.map(place)
            && let Some(keys) = state.by_target.get_mut(&place)
        {
            keys.remove(key);
            if keys.is_empty() {
                state.by_target.remove(&place);
            }
        }
        if let Some(row) = after.filter(|row| row.target != Target::Other) {
            let keys = state.by_target.entry(place(row)).or_default();
            keys.insert(key.clone());
        }
        drop(state);
        for row in before.into_iter().chain(after) {
            if let Some(service) = concerned(key.namespace(), &row.target, deployments) {
                queue.add(service, SOON);
            }
        }
    }

    /// Takes in a change of a service: whether somebody has written over what the autoscaler had written.
    pub fn watch_writers(
        &self,
        queue: &Queue,
        key: &Key,
        before: Option<&Arc<ServiceRow>>,
        after: Option<&Arc<ServiceRow>>,
    ) {
        let Some(after) = after else {
            self.lock().rivals.remove(key);
            return;
        };
        let Some(manager) = overwriter(before.map(|row| &**row), after) else {
            return;
        };
        let now = self.now();
        let mut state = self.lock();
        state.rivals.retain(|_, rival| !rival.rivalry.is_over(now));
        let rival = state.rivals.entry(key.clone()).or_insert_with(|| Rival {
            uid: after.uid.clone(),
            manager: manager.clone(),
            rivalry: Rivalry::default(),
        });
        if rival.uid != after.uid {
            (rival.uid, rival.rivalry) = (after.uid.clone(), Rivalry::default());
        }
        rival.manager = manager;
        rival.rivalry.overwritten(now);
        queue.add(key.clone(), SOON);
    }

    fn now(&self) -> Millis {
        self.clock.elapsed().as_millis() as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who has written over the autoscaler's number, if that is what a change was.
fn overwriter(before: Option<&ServiceRow>, after: &ServiceRow) -> Option<Arc<str>> {
    let ours = |row: &&ServiceRow| row.replicas_by.as_deref() == Some(names::MANAGER_AUTOSCALER);
    let same_object = |row: &&ServiceRow| row.uid == after.uid;
    before.filter(ours).filter(same_object)?;
    let manager = after.replicas_by.clone()?;
    (&*manager != names::MANAGER_AUTOSCALER).then_some(manager)
}

/// The service that an HPA with this target concerns, as far as its Deployment is known.
fn concerned(
    namespace: &str,
    target: &Target,
    deployments: &Table<Arc<DeploymentRow>>,
) -> Option<Key> {
    match target {
        Target::Service(name) => Some(Key::new(namespace, name)),
        Target::Deployment(name) => {
            let owner = deployments.get(&Key::new(namespace, name))?.owner.clone()?;
            Some(Key::new(namespace, &owner))
        }
        Target::Other => None,
    }
}

#[cfg(test)]
mod tests;
