//! Whether the pods of the current spec answer, and why not.

use pagoda_crds::api::{RolloutPhase, RolloutStatus};

use super::{MODEL_LOADED, Observed, READY, RECONCILING, STALLED, conditions::Draft};
use crate::{
    pods::{Diagnosis, PodView, Severity},
    validate::Service,
};

/// Pods by what they are.
pub(super) struct Census {
    /// Not leaving.
    pub alive: usize,
    /// Not leaving, and answering.
    pub ready: usize,
    /// Of the current revision and answering.
    pub current_ready: usize,
    /// Of an older revision, not leaving.
    old: usize,
    old_ready: usize,
    diagnosis: Option<Diagnosis>,
}

impl Census {
    pub fn count(pods: &[PodView], revision: &str) -> Self {
        let alive = || pods.iter().filter(|p| !p.leaving);
        let current = || alive().filter(|p| p.revision.as_deref() == Some(revision));
        let ready = alive().filter(|p| p.ready).count();
        let current_ready = current().filter(|p| p.ready).count();
        Self {
            alive: alive().count(),
            ready,
            current_ready,
            old: alive().count() - current().count(),
            old_ready: ready - current_ready,
            diagnosis: current().filter_map(|p| p.diagnosis.clone()).max(),
        }
    }
}

/// How the pods of the current spec do.
pub(super) struct Health {
    pub ready: Draft,
    /// Only somebody else's change helps.
    stalled: bool,
    failure: Option<Diagnosis>,
}

impl Health {
    fn sound(status: &str, reason: &str, message: &str) -> Self {
        Self {
            ready: Draft::new(READY, status, reason, message),
            stalled: false,
            failure: None,
        }
    }

    pub fn of(service: &Service, seen: &Observed<'_>, census: &Census) -> Self {
        let rollout = seen.plan.and_then(|plan| plan.status.as_ref());
        if let Some(given_up) = rollout.and_then(given_up) {
            return given_up;
        }
        if service.replicas == 0 {
            let message = "no pods run; the gateway starts one for the next request";
            return Self::sound("True", "ScaledToZero", message);
        }
        if let Some(canary) = rollout.filter(|r| r.phase == RolloutPhase::Canary) {
            return under_canary(service, seen, census, canary);
        }
        if census.current_ready == 0 {
            return unready(seen, census, rollout);
        }
        if census.old > 0 || rollout.is_some() {
            return rolling_out(seen, census);
        }
        let message = if census.current_ready < service.replicas as usize {
            "some pods answer, and more are on their way"
        } else {
            "all pods answer"
        };
        Self::sound("True", "PodsReady", message)
    }

    /// The condition that a pod has loaded the model.
    pub fn model_loaded(&self, service: &Service, census: &Census) -> Draft {
        if census.current_ready > 0 {
            return Draft::new(MODEL_LOADED, "True", "Loaded", "a pod has loaded the model");
        }
        match &self.failure {
            Some(failure) => Draft::new(MODEL_LOADED, "False", &failure.reason, &failure.message),
            None if service.replicas == 0 => Draft::new(
                MODEL_LOADED,
                "Unknown",
                "ScaledToZero",
                "no pod runs that could load it",
            ),
            None => Draft::new(
                MODEL_LOADED,
                "False",
                &self.ready.reason,
                "no pod of the current spec has loaded the model yet",
            ),
        }
    }

    /// The condition that the operator is at work, or can do no more.
    pub fn progress(&self) -> Option<Draft> {
        let (reason, message) = (&self.ready.reason, &self.ready.message);
        if self.stalled {
            Some(Draft::new(STALLED, "True", reason, message))
        } else if self.ready.status != "True" {
            Some(Draft::new(RECONCILING, "True", reason, message))
        } else {
            None
        }
    }
}

/// `Ready` speaks of the current spec, and that one was given up.
fn given_up(rollout: &RolloutStatus) -> Option<Health> {
    let failed = rollout
        .failed
        .as_ref()
        .filter(|_| rollout.phase == RolloutPhase::RolledBack)?;
    let (reason, words) = (&failed.reason, &failed.message);
    let message = format!(
        "revision {} was given up: {reason}: {words}; the revision before it serves until the spec changes",
        failed.revision
    );
    let why = Diagnosis::new(Severity::Permanent, reason, words.clone());
    Some(Health {
        ready: Draft::new(READY, "False", "RolledBack", &message),
        stalled: true,
        failure: Some(why),
    })
}

fn under_canary(
    service: &Service,
    seen: &Observed<'_>,
    census: &Census,
    canary: &RolloutStatus,
) -> Health {
    if census.current_ready == 0 {
        return unready(seen, census, Some(canary));
    }
    Health::sound("False", "Canary", &canary_words(service, canary))
}

/// `step 2 of 3: ...`.
pub(super) fn canary_words(service: &Service, canary: &RolloutStatus) -> String {
    step_words(canary, Some(service.rollout.canary.steps.len()))
}

pub(super) fn step_words(canary: &RolloutStatus, steps: Option<usize>) -> String {
    let percent = canary.traffic.last().map_or(0, |share| share.percent);
    let step = canary.step.unwrap_or(0) + 1;
    let of = steps.map_or_else(String::new, |steps| format!(" of {steps}"));
    format!("canary step {step}{of}: the new revision gets {percent} percent of the requests")
}

fn rolling_out(seen: &Observed<'_>, census: &Census) -> Health {
    let message = "pods of the new revision are taking over from the old one";
    let mut health = Health::sound("False", "RollingOut", message);
    let worst = census.diagnosis.clone();
    let overdue = seen.plan.is_some_and(|plan| plan.overdue);
    if let Some(worst) = worst.filter(|w| w.is_permanent() || overdue) {
        let message = format!(
            "{message}, and the next one does not answer: {}",
            worst.message
        );
        health.ready = Draft::new(READY, "False", &worst.reason, &message);
        health.stalled = true;
    }
    health
}

/// No pod of the current spec answers.
fn unready(seen: &Observed<'_>, census: &Census, rollout: Option<&RolloutStatus>) -> Health {
    let worst = obstacle(seen, census)
        .or_else(|| rollout.map(on_the_way))
        .or_else(|| census.diagnosis.clone())
        .unwrap_or_else(Diagnosis::starting);
    let overdue = seen.plan.is_some_and(|plan| plan.overdue)
        || seen.deployment.is_some_and(|d| d.is_past_deadline);
    let mut message = worst.message.clone();
    if census.old_ready > 0 {
        message.push_str("; pods of the previous revision go on serving");
    }
    Health {
        ready: Draft::new(READY, "False", &worst.reason, &message),
        stalled: worst.is_permanent() || overdue,
        failure: Some(worst).filter(Diagnosis::is_failure),
    }
}

/// What keeps pods from answering, if it is more than time. What no node holds the scheduler refuses as well, in words
/// that say less.
fn obstacle(seen: &Observed<'_>, census: &Census) -> Option<Diagnosis> {
    let told = census.diagnosis.clone();
    let told = told.filter(Diagnosis::is_obstacle);
    let refused = seen.deployment.and_then(|d| d.refused.as_ref());
    let refused = refused.map(|words| {
        let message = format!("pods are refused: {words}");
        Diagnosis::new(Severity::Waiting, "PodsRefused", message)
    });
    let homeless = seen.placement.map(|arithmetic| {
        Diagnosis::new(Severity::Permanent, "NoNodeFits", arithmetic.to_string())
    });
    told.max(refused).max(homeless)
}

/// What a rollout waits for while its pods say nothing of themselves.
fn on_the_way(rollout: &RolloutStatus) -> Diagnosis {
    let (reason, message) = match rollout.phase {
        RolloutPhase::Prefetching => ("Prefetching", "the model is being brought to the nodes"),
        RolloutPhase::Canary => ("Canary", "the first pods of the new revision are starting"),
        _ => ("RollingOut", "pods of the new revision are starting"),
    };
    Diagnosis::new(Severity::Progress, reason, message.to_owned())
}
