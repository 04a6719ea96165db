//! What gateways count while a canary runs, step by step. Kept in memory: after a restart the window begins anew.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pagoda_crds::api::{InferenceServiceStatus, RolloutPhase};
use pagoda_operator_core::rollout::{GateReadings, GateWindow, RevisionReading, RevisionReadings};

use crate::{context::Context, key::Key};

/// Counts of the present step.
#[derive(Clone, Debug)]
pub struct Gate {
    step: i32,
    since: Time,
    window: GateWindow,
}

/// What was counted since the step began that the status tells of. Without a canary, nothing is counted.
pub fn readings(
    context: &Context,
    key: &Key,
    target: &str,
    previous: &InferenceServiceStatus,
    now: &Time,
) -> Option<GateReadings> {
    let step = step_of(target, previous);
    context.remember(key, |memory| {
        let Some(step) = step else {
            memory.gate = None;
            return None;
        };
        let gate = memory
            .gate
            .get_or_insert_with(|| Box::new(Gate::new(step, now)));
        if gate.step != step {
            **gate = Gate::new(step, now);
        }
        Some(gate.window.readings(target, step, gate.since.clone()))
    })
}

impl Gate {
    fn new(step: i32, now: &Time) -> Self {
        Self {
            step,
            since: now.clone(),
            window: GateWindow::default(),
        }
    }
}

fn step_of(target: &str, status: &InferenceServiceStatus) -> Option<i32> {
    let rollout = status.rollout.as_ref()?;
    let is_of_target = status
        .revision
        .as_ref()
        .is_some_and(|r| r.updated == target);
    (rollout.phase == RolloutPhase::Canary && is_of_target)
        .then_some(rollout.step)
        .flatten()
}

/// Takes in what a gateway told of all revisions.
pub fn note(context: &Context, gateway: &str, readings: RevisionReadings) {
    let mut by_service: BTreeMap<Key, BTreeMap<String, RevisionReading>> = BTreeMap::new();
    for ((namespace, service, revision), reading) in readings {
        let key = Key::new(&namespace, &service);
        by_service.entry(key).or_default().insert(revision, reading);
    }
    for key in context.canaries() {
        // A gateway without series of a revision has counted nothing of it, and counts from there.
        let of_service = by_service.remove(&key).unwrap_or_default();
        context.remember(&key, |memory| {
            if let Some(gate) = &mut memory.gate {
                gate.window.note(gateway, of_service);
            }
        });
    }
}
