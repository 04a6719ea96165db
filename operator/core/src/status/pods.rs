//! What pods say of themselves, and what a person should make of it.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ContainerStateTerminated, ContainerStatus, Pod},
};
use pagoda_crds::{
    names,
    wire::{FailureReason, TerminationMessage},
};

use crate::build::ANNOTATION_REVISION;

/// What counts of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    /// Its name.
    pub name: String,
    /// Its address, once it has one.
    pub ip: Option<String>,
    /// Revision that it was built from.
    pub revision: Option<String>,
    /// Whether it answers.
    pub ready: bool,
    /// Whether it is on its way out, or ended.
    pub leaving: bool,
    unschedulable: Option<String>,
    containers: Vec<ContainerStatus>,
    engine_runs: bool,
}

impl PodView {
    /// Reads a pod.
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let conditions = || {
            status
                .and_then(|s| s.conditions.as_ref())
                .into_iter()
                .flatten()
        };
        let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let init = status
            .and_then(|s| s.init_container_statuses.clone())
            .unwrap_or_default();
        let main = status
            .and_then(|s| s.container_statuses.clone())
            .unwrap_or_default();
        let running = |c: &ContainerStatus| c.state.as_ref().is_some_and(|s| s.running.is_some());
        Self {
            name: pod.metadata.name.clone().unwrap_or_default(),
            ip: status.and_then(|s| s.pod_ip.clone()),
            revision: pod
                .metadata
                .annotations
                .as_ref()
                .and_then(|a| a.get(ANNOTATION_REVISION).cloned()),
            ready: conditions().any(|c| c.type_ == "Ready" && c.status == "True"),
            leaving: pod.metadata.deletion_timestamp.is_some()
                || ["Succeeded", "Failed"].contains(&phase),
            unschedulable: conditions()
                .find(|c| c.type_ == "PodScheduled" && c.status == "False")
                .map(|c| c.message.clone().unwrap_or_default()),
            engine_runs: main
                .iter()
                .any(|c| c.name == names::CONTAINER_ENGINE && running(c)),
            containers: init.into_iter().chain(main).collect(),
        }
    }

    /// Why it does not answer yet.
    pub(super) fn diagnosis(&self) -> Option<Diagnosis> {
        let failed = self.containers.iter().filter_map(of_container).max();
        let unschedulable = self.unschedulable.as_ref().map(|message| {
            Diagnosis::new(
                Severity::Waiting,
                "Unschedulable",
                format!("no node takes the pod: {message}"),
            )
        });
        let fetching = self.containers.iter().any(|c| {
            c.name == names::CONTAINER_MODEL
                && c.state.as_ref().is_some_and(|s| s.running.is_some())
        });
        let progress = if self.engine_runs {
            Diagnosis::new(
                Severity::Progress,
                "Loading",
                "the engine loads the model".into(),
            )
        } else if fetching {
            Diagnosis::new(
                Severity::Progress,
                "Fetching",
                "the model is being fetched".into(),
            )
        } else {
            Diagnosis::starting()
        };
        failed.max(unschedulable).max(Some(progress))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
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
pub(super) struct Diagnosis {
    severity: Severity,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Diagnosis {
    fn new(severity: Severity, reason: &str, message: String) -> Self {
        Self {
            severity,
            reason: reason.to_owned(),
            message,
        }
    }

    pub(super) fn starting() -> Self {
        Self::new(Severity::Progress, "Starting", "pods are starting".into())
    }

    pub(super) fn is_permanent(&self) -> bool {
        self.severity == Severity::Permanent
    }

    pub(super) fn is_failure(&self) -> bool {
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

/// Why the ReplicaSet cannot make pods: quota, admission.
pub(super) fn replica_failure(deployment: &Deployment) -> Option<Diagnosis> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let failure = conditions
        .iter()
        .find(|c| c.type_ == "ReplicaFailure" && c.status == "True")?;
    let message = format!(
        "pods are refused: {}",
        failure.message.as_deref().unwrap_or_default()
    );
    Some(Diagnosis::new(Severity::Waiting, "PodsRefused", message))
}

/// Whether the rollout has taken longer than it may.
pub(super) fn past_deadline(deployment: &Deployment) -> bool {
    let conditions = deployment
        .status
        .as_ref()
        .and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| {
        c.type_ == "Progressing" && c.reason.as_deref() == Some("ProgressDeadlineExceeded")
    })
}
