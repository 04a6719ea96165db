//! Who takes part in a rollout, and what all phases ask of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pagoda_crds::api::{FailedRevision, InferenceServiceStatus, RolloutPhase, RolloutStatus};

use super::{
    RevisionSeen, RolloutSeen, canary,
    seen::{count, seconds},
    surge, terminate_first,
};
use crate::validate::Service;

pub(super) struct Cast<'a> {
    pub service: &'a Service,
    pub seen: &'a RolloutSeen<'a>,
    pub now: &'a Time,
    /// Pods that the service should have.
    pub wanted: u32,
    /// Whether the status speaks of another target yet.
    pub is_fresh: bool,
    /// The revision that the status says serves.
    pub current: Option<&'a str>,
    pub target: Option<&'a RevisionSeen>,
    /// Pods of the target that answer.
    pub target_ready: u32,
    /// All other revisions.
    pub olds: Vec<&'a RevisionSeen>,
    /// Of those the one that serves, and is brought back when the target fails.
    pub main: Option<&'a RevisionSeen>,
}

impl<'a> Cast<'a> {
    pub fn of(
        service: &'a Service,
        seen: &'a RolloutSeen<'a>,
        previous: &'a InferenceServiceStatus,
        now: &'a Time,
    ) -> Self {
        let revision = previous.revision.as_ref();
        let current = revision.and_then(|r| r.current.as_deref());
        let is_target = |r: &&RevisionSeen| r.revision == seen.target;
        let target = seen.revisions.iter().find(is_target);
        let olds: Vec<_> = seen.revisions.iter().filter(|r| !is_target(r)).collect();
        let serves = |r: &&&RevisionSeen| Some(r.revision.as_str()) == current;
        let best = |r: &&&RevisionSeen| (r.ready(), r.spec_replicas, r.existing());
        let main = olds
            .iter()
            .find(serves)
            .or_else(|| olds.iter().max_by_key(best))
            .copied();
        Self {
            service,
            seen,
            now,
            wanted: service.replicas,
            is_fresh: revision.is_none_or(|r| r.updated != seen.target)
                // One that says nothing of a rollout that it needs was not written by a plan.
                || (previous.rollout.is_none() && current != Some(seen.target)),
            current,
            target,
            target_ready: target.map_or(0, RevisionSeen::ready),
            olds,
            main,
        }
    }

    pub fn is_main(&self, old: &RevisionSeen) -> bool {
        self.main.is_some_and(|main| main.revision == old.revision)
    }

    /// Pods that a rollout may have too many or too few.
    pub fn budget(&self) -> u32 {
        (self.wanted / 4).max(1)
    }

    /// Pods that the target's Deployment asks for now.
    pub fn target_spec(&self) -> u32 {
        self.target.map_or(0, |t| t.spec_replicas)
    }

    /// Pods of other revisions that stay.
    pub fn old_alive(&self) -> u32 {
        self.olds.iter().map(|old| count(old.alive())).sum()
    }

    /// Pods of other revisions that hold something of a node.
    pub fn old_existing(&self) -> u32 {
        self.olds.iter().map(|old| old.existing()).sum()
    }

    /// Nodes that pods of other revisions run on, in order.
    pub fn old_nodes(&self) -> Vec<String> {
        let alive = self.olds.iter().flat_map(|old| old.alive());
        let mut nodes: Vec<String> = alive.filter_map(|p| p.node.clone()).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// The status of a rollout that goes on: it progressed when the last pod of the target became ready.
    pub fn continued(&self, earlier: &RolloutStatus) -> RolloutStatus {
        let mut status = earlier.clone();
        if status.phase == RolloutPhase::RolledBack {
            return status;
        }
        let ready = self.target.into_iter().flat_map(RevisionSeen::alive);
        let last = ready
            .filter(|p| p.ready)
            .filter_map(|p| p.ready_since.as_ref())
            .max();
        if let Some(last) = last.filter(|last| status.progressed.as_ref() < Some(last)) {
            status.progressed = Some(last.clone());
        }
        status.started.get_or_insert_with(|| self.now.clone());
        status.progressed.get_or_insert_with(|| self.now.clone());
        status
    }

    /// Why the target cannot be what serves: its pods' own words, or the deadline. Pods that fail are given less time where
    /// nobody answers meanwhile.
    pub fn failure(&self, status: &RolloutStatus) -> Option<FailedRevision> {
        let pods = self.target.into_iter().flat_map(RevisionSeen::alive);
        let overdue = self.is_overdue(status);
        let tried = terminate_first::given_up_in(self, status).is_some_and(|seconds| seconds <= 0);
        let worst = pods.filter_map(|p| p.diagnosis.as_ref()).max();
        let worst = worst.filter(|w| {
            w.is_permanent() || (overdue && w.is_obstacle()) || (tried && w.is_failure())
        });
        let (reason, message) = match worst {
            Some(worst) => (worst.reason.as_str(), worst.message.clone()),
            None if overdue => ("ProgressDeadlineExceeded", self.deadline_words(status)),
            None => return None,
        };
        Some(FailedRevision {
            revision: self.seen.target.to_owned(),
            reason: reason.to_owned(),
            message,
        })
    }

    fn deadline_words(&self, status: &RolloutStatus) -> String {
        let seconds = self.service.rollout.progress_deadline_seconds;
        if status.phase == RolloutPhase::Prefetching {
            return format!("the model was not on the nodes within {seconds} s");
        }
        format!("no further pod of the new revision became ready within {seconds} s")
    }

    pub fn is_overdue(&self, status: &RolloutStatus) -> bool {
        self.overdue_in(status).is_some_and(|seconds| seconds <= 0)
    }

    /// Seconds until the next pod of the target has taken longer than it may; `None` while there is none to wait for.
    fn overdue_in(&self, status: &RolloutStatus) -> Option<i64> {
        let since = self.waits_since(status)?;
        let deadline = i64::from(self.service.rollout.progress_deadline_seconds);
        Some(deadline - seconds(since, self.now))
    }

    /// Since when the next pod of the target is waited for.
    pub fn waits_since<'s>(&'s self, status: &'s RolloutStatus) -> Option<&'s Time> {
        let progressed = status.progressed.as_ref()?;
        if status.phase == RolloutPhase::Prefetching {
            return Some(progressed);
        }
        // Waiting for old pods to end, or for pods that are about to be made, is no fault of the new ones.
        let target = self.target.filter(|t| t.ready() < t.spec_replicas)?;
        let waiting = target.alive().filter(|p| !p.ready);
        let first = waiting.filter_map(|p| p.created.as_ref()).min();
        first
            .map(|first| first.max(progressed))
            .or(target.is_refused.then_some(progressed))
    }

    /// When time alone changes something.
    pub fn look_again(&self, status: &RolloutStatus) -> Option<u32> {
        if status.phase == RolloutPhase::RolledBack {
            return None;
        }
        let due = [
            self.overdue_in(status),
            surge::crowded_in(self, status),
            terminate_first::skipped_in(self, status),
            terminate_first::given_up_in(self, status),
            canary::due_in(self, status),
        ];
        // What is due already has been done: only another event moves it.
        let next = due.into_iter().flatten().filter(|s| *s > 0).min()?;
        Some(u32::try_from(next).unwrap_or(u32::MAX))
    }
}
