//! How many pods a service should have.
//!
//! The rules are HPA v2's (`hpa`), with what an LLM needs on top: a panic window as Knative has it, so that a burst gets its pods at once
//! (`panic`); to zero after idle time, and from zero when the gateway holds requests; schedules (`schedule`); and a look ahead by the time
//! that a pod takes to load (`forecast`).
//!
//! What holds always, whatever is observed: bounds; never fewer pods on absent, stale or partial knowledge; a controller that just
//! started removes nothing before it has watched for as long as its rules ask; pods that were asked for and do not answer yet
//! are supply on its way, so that a model that loads slowly, or never, draws no further pods.

pub(crate) mod by_pod;
pub mod capacity;
mod decision;
mod demand;
mod follow;
mod forecast;
mod history;
mod hpa;
mod panic;
mod pod_reading;
mod recommend;
mod schedule;
mod series;
#[cfg(test)]
mod tests;

pub use decision::{Decision, Foreseen, Inputs, Measured, Reason, Recommendation, Unit, What};
pub use demand::{
    Demand, GatewayReading, Observation, PodSeen, QueryReading, ServiceReadings, observe,
};
pub use history::History;
pub use pod_reading::{Latencies, PodReader, PodReading, Work};

use crate::validate::ScalingSettings;
use capacity::Learner;
use follow::Follow;
use recommend::{Sources, recommend};

/// Milliseconds on a clock that never goes back.
pub type Millis = u64;

/// Pause between two looks while anything goes on.
const LOOK_MILLIS: Millis = 1_000;
/// The same when one look saw a burst and another is to tell whether it lasts. Two looks are what a burst takes: nothing that
/// a single one says moves pods.
const CONFIRM_MILLIS: Millis = 250;
/// The same while nothing is asked of a service and its number of pods stands.
const QUIET_LOOK_MILLIS: Millis = 5_000;

/// When a decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// On a clock that never goes back.
    pub now: Millis,
    /// On the wall, in seconds since 1970. Only schedules and what recurs by the week look at it, so that a clock that is set changes
    /// nothing else.
    pub unix_seconds: i64,
}

/// Decides the number of pods, and returns what the next decision must remember.
pub fn decide(
    settings: &ScalingSettings,
    seen: &Observation,
    mut history: History,
    at: Moment,
) -> (Decision, History) {
    history.observe(settings, seen, at);
    history.panic.suspect(false);
    let mut inputs = inputs(settings, seen, &mut history, at);
    let bounds = Bounds::of(&inputs);
    let idle = history.idle_millis(at.now);
    let (replicas, reason) = if seen.current == 0 {
        history.panic.end();
        from_zero(seen, &inputs, bounds)
    } else if seen.current != bounds.clamp(seen.current) {
        out_of_bounds(&inputs, bounds)
    } else if inputs.min_replicas == 0 && idle.is_some_and(|idle| is_idle(settings, idle)) {
        (0, Reason::Idle)
    } else {
        Follow {
            settings,
            seen,
            at,
            bounds,
        }
        .decide(&mut inputs, &mut history)
    };
    history.ask(replicas, at.now);
    let next_look = next_look(settings, seen, &history, at, replicas);
    (
        Decision {
            replicas,
            reason,
            inputs,
            next_look,
        },
        history,
    )
}

fn inputs(
    settings: &ScalingSettings,
    seen: &Observation,
    history: &mut History,
    at: Moment,
) -> Inputs {
    let measured = history.measured(settings);
    let schedule = history.schedules.at(&settings.schedules, at.unix_seconds);
    let scheduled = schedule.as_ref().map_or(0, |(_, least)| *least);
    let partial = history.is_partial(settings, at.now);
    let kv_usage_micro = history.kv_usage_micro(settings);
    let sources = Sources {
        settings,
        seen,
        measured: &measured,
        kv_usage_micro,
        partial,
        now: at.now,
    };
    let mut nothing_learned = Learner::default();
    let learner = history.learner.as_deref_mut();
    let recommendations = recommend(&sources, learner.unwrap_or(&mut nothing_learned));
    // The first of the largest, as HPA names it.
    let winner = (0..recommendations.len())
        .rev()
        .max_by_key(|i| recommendations[*i].replicas);
    Inputs {
        current: seen.current,
        ready: seen.ready,
        pending: seen.current.saturating_sub(seen.ready),
        overdue: history.overdue(settings, seen, at.now),
        demand: seen.demand.clone(),
        measured,
        recommendations,
        winner: winner.map(|i| i as u8),
        min_replicas: settings
            .min_replicas
            .max(scheduled)
            .min(settings.max_replicas),
        max_replicas: settings.max_replicas,
        schedule: schedule
            .and_then(|(name, least)| (least > settings.min_replicas).then_some(name)),
        ..Inputs::default()
    }
}

/// Fewest and most pods at one moment, zero aside: metrics never ask for zero, that is what idle time is for.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: u32,
    most: u32,
}

impl Bounds {
    fn of(inputs: &Inputs) -> Self {
        let most = inputs.max_replicas.max(1);
        Self {
            least: inputs.min_replicas.clamp(1, most),
            most,
        }
    }

    fn clamp(self, replicas: u32) -> u32 {
        replicas.clamp(self.least, self.most)
    }
}

fn is_idle(settings: &ScalingSettings, idle_millis: Millis) -> bool {
    idle_millis >= Millis::from(settings.idle_seconds) * 1000
}

fn out_of_bounds(inputs: &Inputs, bounds: Bounds) -> (u32, Reason) {
    let replicas = bounds.clamp(inputs.current);
    let scheduled = replicas > inputs.current && inputs.schedule.is_some();
    (
        replicas,
        if scheduled {
            Reason::Scheduled
        } else {
            Reason::OutOfBounds
        },
    )
}

fn from_zero(seen: &Observation, inputs: &Inputs, bounds: Bounds) -> (u32, Reason) {
    let wanted = inputs.recommendations.iter().map(|r| r.replicas).max();
    if seen.demand.held > 0 {
        (bounds.clamp(wanted.unwrap_or(1)), Reason::Wake)
    } else if inputs.min_replicas > 0 {
        out_of_bounds(inputs, bounds)
    } else if seen.demand.complete {
        (0, Reason::AtZero)
    } else {
        (0, Reason::NoMetrics)
    }
}

/// Soon while anything goes on; a service that is quiet and as small as it may be waits a little longer, and none longer than until
/// a schedule changes what counts.
fn next_look(
    settings: &ScalingSettings,
    seen: &Observation,
    history: &History,
    at: Moment,
    replicas: u32,
) -> Millis {
    let least = settings.min_replicas;
    let settled = replicas == seen.current && seen.ready == seen.current && replicas == least;
    let pause = if history.panic.is_suspected() {
        CONFIRM_MILLIS
    } else if settled && seen.demand.is_quiet() && settings.queries().is_empty() {
        QUIET_LOOK_MILLIS
    } else {
        LOOK_MILLIS
    };
    let until = history
        .schedules
        .until()
        .map(|until| until.saturating_sub(at.unix_seconds));
    let schedule = until.map_or(Millis::MAX, |seconds| seconds.max(1) as Millis * 1000);
    at.now.saturating_add(pause.min(schedule))
}
