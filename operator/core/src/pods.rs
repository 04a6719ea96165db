//! What pods say of themselves, and what a person should make of it.

use k8s_openapi::{
    api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use pagoda_crds::{
    names,
    wire::{FailureReason, TerminationMessage},
};

use crate::scale_in::DELETION_COST;

/// What counts of a pod: little enough to keep for every pod of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PodView {
    /// Its name.
    pub name: String,
    /// Its address, once it has one.
    pub ip: Option<String>,
    /// Port of its server, for its metrics; 0 when it names none.
    pub port: u16,
    /// Node that it runs on, once it has one.
    pub node: Option<String>,
    /// Revision that it was built from; none on pods of releases before revisions.
    pub revision: Option<String>,
    /// When it was made.
    pub created: Option<Time>,
    /// Whether it answers.
    pub ready: bool,
    /// Since when it does or does not.
    pub ready_since: Option<Time>,
    /// Whether it is on its way out, or ended.
    pub leaving: bool,
    /// Whether it ended, and holds nothing of its node any more.
    pub ended: bool,
    /// Since when no node takes it.
    pub unschedulable_since: Option<Time>,
    /// Whether it is fetching the model.
    pub fetching: bool,
    /// Whether it is marked as one of the first to go ([`crate::scale_in`]).
    pub is_marked: bool,
    /// Why it does not answer yet.
    pub(crate) diagnosis: Option<Diagnosis>,
}

impl PodView {
    /// Reads a pod.
    pub fn of(pod: &Pod) -> Self {
        let (metadata, status) = (&pod.metadata, pod.status.as_ref());
        let condition = |kind: &str| {
            let conditions = status.and_then(|s| s.conditions.as_ref());
            conditions.into_iter().flatten().find(|c| c.type_ == kind)
        };
        let ready = condition("Ready").filter(|c| c.status == "True");
        let unscheduled = condition("PodScheduled").filter(|c| c.status == "False");
        let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let ended = ["Succeeded", "Failed"].contains(&phase);
        let spec = pod.spec.as_ref();
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            ip: status.and_then(|s| s.pod_ip.clone()),
            port: spec.map_or(0, |s| port(&s.containers)),
            node: spec.and_then(|s| s.node_name.clone()),
            revision: metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(names::LABEL_REVISION).cloned()),
            created: metadata.creation_timestamp.clone(),
            ready: ready.is_some(),
            ready_since: condition("Ready").and_then(|c| c.last_transition_time.clone()),
            leaving: metadata.deletion_timestamp.is_some() || ended,
            ended,
            unschedulable_since: unscheduled.and_then(|c| c.last_transition_time.clone()),
            is_marked: is_marked(pod),
            fetching: containers(pod).any(|c| c.name == names::CONTAINER_MODEL && runs(c)),
            diagnosis: ready.is_none().then(|| diagnose(pod, unscheduled)),
        }
    }

    /// What is wrong with it, if anything is: a CamelCase word, a sentence, and whether only a change by somebody helps.
    pub fn failure(&self) -> Option<(&str, &str, bool)> {
        let found = self.diagnosis.as_ref().filter(|d| d.is_failure())?;
        Some((&found.reason, &found.message, found.is_permanent()))
    }
}

fn is_marked(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let cost = annotations.and_then(|all| all.get(DELETION_COST));
    cost.is_some_and(|cost| cost.parse::<i32>().is_ok_and(|cost| cost < 0))
}

/// The port of the container that serves.
fn port(containers: &[Container]) -> u16 {
    let engine = containers
        .iter()
        .find(|c| c.name == names::CONTAINER_ENGINE);
    let ports = engine.and_then(|c| c.ports.as_ref());
    let http = ports
        .into_iter()
        .flatten()
        .find(|p| p.name.as_deref() == Some(names::PORT_HTTP));
    http.and_then(|p| u16::try_from(p.container_port).ok())
        .unwrap_or(0)
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|s| s.init_container_statuses.as_ref());
    let main = status.and_then(|s| s.container_statuses.as_ref());
    init.into_iter().chain(main).flatten()
}

fn runs(container: &ContainerStatus) -> bool {
    container
        .state
        .as_ref()
        .is_some_and(|s| s.running.is_some())
}

fn diagnose(pod: &Pod, unscheduled: Option<&PodCondition>) -> Diagnosis {
    let failed = containers(pod).filter_map(of_container).max();
    let unschedulable = unscheduled.map(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        Diagnosis::new(
            Severity::Waiting,
            "Unschedulable",
            format!("no node takes the pod: {message}"),
        )
    });
    let works = |name: &str| containers(pod).any(|c| c.name == name && runs(c));
    let progress = if works(names::CONTAINER_ENGINE) {
        Diagnosis::new(
            Severity::Progress,
            "Loading",
            "the engine loads the model".into(),
        )
    } else if works(names::CONTAINER_MODEL) {
        Diagnosis::new(
            Severity::Progress,
            "Fetching",
            "the model is being fetched".into(),
        )
    } else {
        Diagnosis::starting()
    };
    failed
        .max(unschedulable)
        .map_or(progress.clone(), |worst| worst.max(progress))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// All goes well.
    Progress,
    /// Something outside has to happen first; it may happen by itself.
    Waiting,
    /// A pod failed, and may do better next time.
    Failed,
    /// A pod failed, and will again until someone changes something.
    Permanent,
}

/// Why pods do not answer; the largest of several is the one to tell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Diagnosis {
    severity: Severity,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Diagnosis {
    pub(crate) fn new(severity: Severity, reason: &str, message: String) -> Self {
        Self {
            severity,
            reason: reason.to_owned(),
            message,
        }
    }

    pub(crate) fn starting() -> Self {
        Self::new(Severity::Progress, "Starting", "pods are starting".into())
    }

    /// Whether more than time is needed.
    pub(crate) fn is_obstacle(&self) -> bool {
        self.severity > Severity::Progress
    }

    pub(crate) fn is_permanent(&self) -> bool {
        self.severity == Severity::Permanent
    }

    pub(crate) fn is_failure(&self) -> bool {
        self.severity >= Severity::Failed
    }
}

fn of_container(container: &ContainerStatus) -> Option<Diagnosis> {
    let state = container.state.as_ref();
    let waiting = state.and_then(|s| s.waiting.as_ref());
    let reason = waiting
        .and_then(|w| w.reason.as_deref())
        .unwrap_or_default();
    let name = &container.name;
    match reason {
        "ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" | "ErrImageNeverPull"
        | "ImageInspectError" => {
            // The kubelet's own message counts its retries; one that changes by itself would be written over and over.
            let message = format!(
                "the image {} of container {name} cannot be pulled: the pod's events say why",
                container.image
            );
            return Some(Diagnosis::new(Severity::Failed, "ImagePull", message));
        }
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            let message = waiting.and_then(|w| w.message.clone()).unwrap_or_default();
            return Some(Diagnosis::new(
                Severity::Failed,
                reason,
                format!("container {name}: {message}"),
            ));
        }
        _ => {}
    }
    // The last words count also while the container is tried again, or the condition would flap with each try.
    let ended = state.and_then(|s| s.terminated.as_ref());
    let before = container
        .last_state
        .as_ref()
        .and_then(|s| s.terminated.as_ref());
    ended
        .or(before)
        .filter(|t| t.exit_code != 0)
        .map(|t| of_exit(name, t))
}

fn of_exit(container: &str, ended: &ContainerStateTerminated) -> Diagnosis {
    if let Some(last_words) = ended.message.as_deref().and_then(TerminationMessage::parse) {
        let severity = if is_permanent(last_words.reason) {
            Severity::Permanent
        } else {
            Severity::Failed
        };
        return Diagnosis::new(severity, last_words.reason.as_str(), last_words.message);
    }
    if ended.reason.as_deref() == Some("OOMKilled") {
        let message = format!(
            "container {container} was killed at its memory limit: raise hardware.resources.limits.memory or lower engine.kvMemory"
        );
        return Diagnosis::new(
            Severity::Permanent,
            FailureReason::OutOfMemory.as_str(),
            message,
        );
    }
    let message = format!(
        "container {container} ended with code {}: its log says why",
        ended.exit_code
    );
    Diagnosis::new(Severity::Failed, "Crashed", message)
}

/// Trying again helps against a bad network, a full disk that someone empties, and our own faults.
fn is_permanent(reason: FailureReason) -> bool {
    !matches!(
        reason,
        FailureReason::DownloadFailed | FailureReason::DiskFull | FailureReason::Internal
    )
}
