//! What is seen of the revisions of a service.

use k8s_openapi::{
    api::{apps::v1::Deployment, batch::v1::Job},
    apimachinery::pkg::apis::meta::v1::Time,
};
use pagoda_crds::names;

use super::GateReadings;
use crate::{build::ANNOTATION_MODEL_KEY, pods::PodView};

/// What counts of a revision's Deployment: little enough to keep for every one of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeploymentView {
    /// Its name.
    pub name: String,
    /// Its revision; none of a release before revisions.
    pub revision: Option<String>,
    /// Name of its model in a node's cache.
    pub model_key: Option<String>,
    /// Pods that its spec asks for.
    pub spec_replicas: u32,
    /// Why its pods are refused (quota, admission), if they are.
    pub refused: Option<String>,
    /// Whether its own controller says that its pods have taken longer than they may.
    pub is_past_deadline: bool,
}

impl DeploymentView {
    /// Reads a Deployment.
    pub fn of(deployment: &Deployment) -> Self {
        let metadata = &deployment.metadata;
        let label = |key: &str| metadata.labels.as_ref()?.get(key).cloned();
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).cloned();
        let spec = deployment.spec.as_ref();
        let status = deployment.status.as_ref();
        let conditions = || {
            let list = status.and_then(|s| s.conditions.as_ref());
            list.into_iter().flatten()
        };
        let refused = conditions().find(|c| c.type_ == "ReplicaFailure" && c.status == "True");
        let late = Some("ProgressDeadlineExceeded");
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            revision: label(names::LABEL_REVISION),
            model_key: annotation(ANNOTATION_MODEL_KEY),
            // The API server's default.
            spec_replicas: spec
                .and_then(|s| s.replicas)
                .map_or(1, |r| u32::try_from(r).unwrap_or(0)),
            refused: refused.map(|c| c.message.clone().unwrap_or_default()),
            is_past_deadline: conditions()
                .any(|c| c.type_ == "Progressing" && c.reason.as_deref() == late),
        }
    }
}

/// A revision that has a Deployment, or pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevisionSeen {
    /// The revision. Of a Deployment without one, its name.
    pub revision: String,
    /// Its Deployment, whether or not it exists any more.
    pub deployment_name: String,
    /// Whether it is of a release before revisions: its Deployment is named like the service.
    pub is_legacy: bool,
    /// Pods that its Deployment's spec asks for.
    pub spec_replicas: u32,
    /// Name of its model in a node's cache.
    pub model_key: Option<String>,
    /// Whether its pods are refused (quota, admission).
    pub is_refused: bool,
    /// Its pods, whatever they are.
    pub pods: Vec<PodView>,
}

impl RevisionSeen {
    /// Sorts a service's pods to its Deployments. Pods whose Deployment is gone are left out: nobody can move them any more,
    /// and they end by themselves.
    pub fn sort(deployments: &[DeploymentView], pods: &[PodView]) -> Vec<Self> {
        let of = |deployment: &DeploymentView| Self {
            revision: deployment
                .revision
                .clone()
                .unwrap_or_else(|| deployment.name.clone()),
            deployment_name: deployment.name.clone(),
            is_legacy: deployment.revision.is_none(),
            spec_replicas: deployment.spec_replicas,
            model_key: deployment.model_key.clone(),
            is_refused: deployment.refused.is_some(),
            pods: pods
                .iter()
                .filter(|p| p.revision == deployment.revision)
                .cloned()
                .collect(),
        };
        let mut revisions: Vec<Self> = deployments.iter().map(of).collect();
        revisions.sort_by(|a, b| a.deployment_name.cmp(&b.deployment_name));
        revisions
    }

    /// Pods that are not on their way out.
    pub(super) fn alive(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().filter(|p| !p.leaving)
    }

    /// Pods that answer and stay.
    pub(super) fn ready(&self) -> u32 {
        count(self.alive().filter(|p| p.ready))
    }

    /// Pods that hold something of a node: those on their way out as well.
    pub(super) fn existing(&self) -> u32 {
        count(self.pods.iter().filter(|p| !p.ended))
    }

    /// Pods that its spec asks for, without those that fail.
    pub(super) fn usable(&self) -> u32 {
        self.without(|p| p.failure().is_some())
    }

    /// Pods that its spec asks for, without such ones. Those that are there still because the spec was lowered a moment ago
    /// are counted first, or a second look would lower it once more.
    pub(super) fn without(&self, unwanted: fn(&PodView) -> bool) -> u32 {
        let there = self.spec_replicas.max(count(self.alive()));
        let unwanted = count(self.alive().filter(|p| unwanted(p)));
        there.saturating_sub(unwanted).min(self.spec_replicas)
    }

    /// Whether anything of it runs or is to run.
    pub(super) fn is_live(&self) -> bool {
        self.spec_replicas > 0 || self.existing() > 0
    }

    /// What the names of its pods, and of no other revision's, start with.
    pub(super) fn pod_prefix(&self) -> String {
        // `demo-` is the start of all names; a ReplicaSet of a release before revisions is told by its own name.
        let replica_set = self.alive().find(|p| p.ready || !self.is_legacy);
        match replica_set.and_then(|p| p.name.rsplit_once('-')) {
            Some((replica_set, _)) if self.is_legacy => format!("{replica_set}-"),
            _ => format!("{}-", self.deployment_name),
        }
    }
}

pub(super) fn count<'a>(pods: impl Iterator<Item = &'a PodView>) -> u32 {
    u32::try_from(pods.count()).unwrap_or(u32::MAX)
}

/// What is seen of the Job that brings the model to nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PrefetchSeen {
    /// There is none.
    #[default]
    Absent,
    /// It is at work.
    Running,
    /// No node takes one of its pods.
    Crowded {
        /// Since when.
        since: Time,
    },
    /// Every node has the model.
    Done,
    /// It ended without.
    Failed {
        /// CamelCase word.
        reason: String,
        /// The pod's own words.
        message: String,
    },
}

impl PrefetchSeen {
    /// Reads the Job and its pods.
    pub fn of(job: Option<&Job>, pods: &[PodView]) -> Self {
        let Some(job) = job else {
            return Self::Absent;
        };
        let status = job.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_ref());
        let is = |kind: &str| {
            let mut all = conditions.into_iter().flatten();
            all.any(|c| c.type_ == kind && c.status == "True")
        };
        let failures = || pods.iter().filter_map(PodView::failure);
        // Trying again does not help against a wrong hash.
        let words = failures()
            .find(|(_, _, permanent)| *permanent)
            .or_else(|| failures().next().filter(|_| is("Failed")));
        if let Some((reason, message, _)) = words {
            return Self::Failed {
                reason: reason.to_owned(),
                message: message.to_owned(),
            };
        }
        if is("Failed") {
            return Self::Failed {
                reason: "PrefetchFailed".to_owned(),
                message: "the model could not be brought to the nodes: the events of the prefetch Job say why".to_owned(),
            };
        }
        let waiting = pods.iter().filter(|p| !p.leaving);
        match waiting.filter_map(|p| p.unschedulable_since.as_ref()).min() {
            _ if is("Complete") => Self::Done,
            Some(since) => Self::Crowded {
                since: since.clone(),
            },
            None => Self::Running,
        }
    }
}

/// What is seen of a service's revisions.
#[derive(Clone, Copy, Debug)]
pub struct RolloutSeen<'a> {
    /// Revision of the current spec.
    pub target: &'a str,
    /// Name of its Deployment.
    pub target_name: &'a str,
    /// Name of its model in a node's cache.
    pub target_model_key: Option<&'a str>,
    /// All revisions that have a Deployment.
    pub revisions: &'a [RevisionSeen],
    /// The Job of the target revision.
    pub prefetch: &'a PrefetchSeen,
    /// What gateways counted in the present step of a canary.
    pub gate: Option<&'a GateReadings>,
    /// Whether nodes keep models.
    pub has_cache: bool,
    /// Whether a pod of the target could run on an empty node of the cluster.
    pub fits: bool,
}

/// Whole seconds from one time to a later one; negative when it is earlier.
pub(super) fn seconds(from: &Time, to: &Time) -> i64 {
    to.0.as_second() - from.0.as_second()
}
