//! Fixtures of the decision's tests, which are told apart by what they are about.

mod bursts;
mod cost;
mod differential;
mod faults;
mod hpa_model;
mod look_ahead;
mod properties;
mod readings;
mod rules;
mod schedules;

use super::*;
use crate::validate::{BehaviorSettings, RulesSettings, TargetSetting, TargetValue};
use pagoda_crds::api::{Metric, PolicyKind, ScalingPolicy, SelectPolicy};

/// No limit to the pace; both directions with the same tolerance.
fn behavior(tolerance_percent: u32, down_window_seconds: u32) -> BehaviorSettings {
    let rules = |window_seconds| RulesSettings {
        tolerance_milli: tolerance_percent * 10,
        window_seconds,
        select: SelectPolicy::Max,
        policies: vec![ScalingPolicy {
            kind: PolicyKind::Pods,
            value: 1_000_000,
            period_seconds: 1,
        }],
    };
    BehaviorSettings {
        up: rules(0),
        down: rules(down_window_seconds),
    }
}

fn settings(min: u32, max: u32, target_milli: u64) -> ScalingSettings {
    ScalingSettings {
        min_replicas: min,
        max_replicas: max,
        idle_seconds: 30,
        window_seconds: 1,
        prometheus: None,
        behavior: behavior(10, 60),
        panic: None,
        schedules: [].into(),
        progress_deadline_seconds: 600,
        follows_trend: false,
        expects_recurrence: false,
        targets: vec![each(Metric::InFlightRequests, target_milli)],
        managed_by_pagoda: true,
    }
}

fn each(metric: Metric, milli: u64) -> TargetSetting {
    TargetSetting {
        metric,
        value: TargetValue::Each { milli },
    }
}

/// A pod that was made long ago when it is ready, and a moment ago when not.
fn pod(number: usize, ready: bool, reading: Option<PodReading>) -> PodSeen {
    PodSeen {
        name: format!("demo-{number}").into(),
        revision: "r1".into(),
        hardware: "cpu".into(),
        ready,
        age_millis: if ready { 3_600_000 } else { 1_000 },
        ready_age_millis: None,
        reading,
    }
}

/// Ready pods that answer and do nothing.
fn pods(count: u32) -> Vec<PodSeen> {
    (0..count as usize)
        .map(|i| pod(i, true, Some(PodReading::default())))
        .collect()
}

#[expect(clippy::unnecessary_wraps, reason = "one that does not answer is none")]
fn gateway(held: u64, in_flight: u64, finished: u64) -> Option<GatewayReading> {
    Some(GatewayReading {
        held,
        in_flight,
        finished,
        ..GatewayReading::default()
    })
}

fn look(current: u32, gateways: Vec<Option<GatewayReading>>, pods: Vec<PodSeen>) -> Observation {
    let readings = ServiceReadings {
        gateways,
        pods,
        queries: Vec::new(),
    };
    observe(current, readings)
}

/// Everybody answered: the gateway holds `held`, and pods run `in_flight`.
fn seen(current: u32, held: u64, in_flight: u64) -> Observation {
    look(current, vec![gateway(held, in_flight, 0)], pods(current))
}

fn blind(current: u32) -> Observation {
    let silent = (0..current as usize).map(|i| pod(i, true, None));
    look(current, vec![None], silent.collect())
}

fn at(now: Millis) -> Moment {
    Moment {
        now,
        unix_seconds: 1_795_000_000 + (now / 1000) as i64,
    }
}

/// One look after another, a second apart; returns the last decision.
fn run(settings: &ScalingSettings, looks: impl IntoIterator<Item = Observation>) -> Decision {
    let mut history = History::default();
    let mut last = None;
    for (second, look) in looks.into_iter().enumerate() {
        let (decision, next) = decide(settings, &look, history, at(second as u64 * 1000));
        history = next;
        last = Some(decision);
    }
    last.expect("at least one look")
}

fn steady(settings: &ScalingSettings, look: &Observation, seconds: usize) -> Decision {
    run(settings, std::iter::repeat_n(look.clone(), seconds + 1))
}

/// A service whose pods are ready at once, over time.
struct Play {
    settings: ScalingSettings,
    history: History,
    now: Millis,
    current: u32,
    /// Every change, with its time.
    changes: Vec<(Millis, u32, Reason)>,
}

impl Play {
    fn new(settings: ScalingSettings, current: u32) -> Self {
        Self {
            settings,
            history: History::default(),
            now: 0,
            current,
            changes: Vec::new(),
        }
    }

    /// Decides on what `see` makes of the present number of pods, for so many seconds.
    fn seconds(&mut self, seconds: u64, see: impl Fn(u32) -> Observation) -> Decision {
        let mut last = None;
        for _ in 0..seconds {
            let history = std::mem::take(&mut self.history);
            let look = see(self.current);
            let (decision, next) = decide(&self.settings, &look, history, at(self.now));
            self.history = next;
            if decision.replicas != self.current {
                self.changes
                    .push((self.now, decision.replicas, decision.reason));
            }
            self.current = decision.replicas;
            self.now += 1000;
            last = Some(decision);
        }
        last.expect("at least one second")
    }
}
