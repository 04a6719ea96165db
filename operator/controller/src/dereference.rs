//! Step 1, client not required: what is known of the world around a service.

use pagoda_operator_core::{
    rollout::{DeploymentView, RevisionSeen},
    status::PodView,
};

use crate::{key::Key, stores::Stores};

/// The world around a service.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Its Deployments, one for each revision. Those that an earlier service of its name left are among them.
    pub deployments: Vec<DeploymentView>,
    /// Names of those that are being deleted.
    pub leaving: Vec<String>,
    /// Its pods, by name.
    pub pods: Vec<PodView>,
}

impl Surroundings {
    /// Its revisions.
    pub fn revisions(&self) -> Vec<RevisionSeen> {
        RevisionSeen::sort(&self.deployments, &self.pods)
    }

    /// Pods of one revision that answer and stay.
    pub fn ready(&self, revision: &str) -> impl Iterator<Item = &PodView> {
        let of = move |pod: &&PodView| pod.revision.as_deref() == Some(revision);
        self.pods
            .iter()
            .filter(of)
            .filter(|p| p.ready && !p.leaving)
    }
}

/// Looks around a service.
pub fn dereference(stores: &Stores, key: &Key) -> Surroundings {
    let rows = stores.deployments.of(key);
    let own: Vec<_> = rows
        .into_iter()
        .map(|(_, row)| row)
        .filter(|row| row.owner.as_deref() == Some(key.name()))
        .collect();
    let leaving = own.iter().filter(|row| row.leaving);
    Surroundings {
        leaving: leaving.map(|row| row.view.name.clone()).collect(),
        deployments: own.iter().map(|row| row.view.clone()).collect(),
        pods: stores.pods_of(key),
    }
}
