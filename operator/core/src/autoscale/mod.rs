//! How many pods a service should have.
//!
//! The rule is HPA v2's for a metric with an average value (`k8s.io/kubernetes/pkg/controller/podautoscaler`): within
//! tolerance of `target x current` keep, else `ceil(demand / target)`, the largest of all targets wins, and downwards the
//! largest recommendation of the stabilisation window. On top of it: to zero after idle time, from zero when the
//! gateway holds requests.
//!
//! What holds always, whatever is observed: bounds; never fewer pods on absent or partial knowledge; a
//! controller that just started removes nothing before it has watched for as long as its rules ask.

mod demand;
mod history;
mod pod_reading;
#[cfg(test)]
mod tests;

pub use demand::{Demand, GatewayReading, ServiceReadings, observe};
pub use history::History;
pub use pod_reading::PodReading;

use pagoda_crds::api::Metric;
use std::fmt;

use crate::validate::{ScalingSettings, TargetSetting, TargetValue};

/// Milliseconds on a clock that never goes back.
pub type Millis = u64;

/// What is known of a service at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Pods that the spec asks for.
    pub current: u32,
    /// Pods that answer.
    pub ready: u32,
    /// What clients ask of it.
    pub demand: Demand,
}

/// The number of pods to have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Pods from now on.
    pub replicas: u32,
    /// Why.
    pub reason: Reason,
    /// What the decision was made from.
    pub inputs: Inputs,
}

/// What a decision was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Pods before.
    pub current: u32,
    /// Pods that answer.
    pub ready: u32,
    /// The demand.
    pub demand: Demand,
    /// What each target asks for by itself, unbounded.
    pub recommendations: Vec<Recommendation>,
}

/// What one target asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// The target.
    pub target: TargetSetting,
    /// Thousandths of the metric in all, if known.
    pub demand_milli: Option<u64>,
    /// Pods; the present number while the metric is unknown.
    pub replicas: u32,
}

/// Why a number of pods was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Every metric is within tolerance of its target, or nothing asks for a change.
    OnTarget,
    /// A metric asks for more.
    Above(Metric),
    /// Every metric asks for fewer, and has for as long as the stabilisation window.
    Below,
    /// Every metric asks for fewer, but not yet for long enough.
    Stabilizing,
    /// A metric asks for more than the bounds allow.
    AtMaximum(Metric),
    /// Metrics ask for fewer than the bounds allow.
    AtMinimum,
    /// The number was outside the bounds.
    OutOfBounds,
    /// Nothing is known, so nothing changes.
    NoMetrics,
    /// Not all is known, so nothing shrinks.
    PartialMetrics,
    /// No request for as long as `idleSeconds`.
    Idle,
    /// No pods, and no request.
    AtZero,
    /// No pods, and the gateway holds requests.
    Wake,
}

impl Reason {
    /// CamelCase word for events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnTarget => "OnTarget",
            Self::Above(_) => "AboveTarget",
            Self::Below => "BelowTarget",
            Self::Stabilizing => "Stabilizing",
            Self::AtMaximum(_) => "AtMaximum",
            Self::AtMinimum => "AtMinimum",
            Self::OutOfBounds => "OutOfBounds",
            Self::NoMetrics => "NoMetrics",
            Self::PartialMetrics => "PartialMetrics",
            Self::Idle => "Idle",
            Self::AtZero => "AtZero",
            Self::Wake => "WakeFromZero",
        }
    }
}

impl fmt::Display for Decision {
    /// One line for status and events, with the numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason.as_str())?;
        let known = self
            .inputs
            .recommendations
            .iter()
            .filter_map(|r| Some((r.target, r.demand_milli?)));
        for (i, (target, demand_milli)) in known.enumerate() {
            let separator = if i == 0 { ": " } else { ", " };
            let TargetValue::Each { milli } = target.value else {
                continue;
            };
            let (demand, each) = (decimal(demand_milli), decimal(milli));
            write!(
                f,
                "{separator}{} {demand}, target {each} a pod",
                target.metric.as_str()
            )?;
        }
        if self.inputs.demand.held > 0 {
            write!(f, " ({} held)", self.inputs.demand.held)?;
        }
        Ok(())
    }
}

fn decimal(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Decides the number of pods, and returns what the next decision must remember.
pub fn decide(
    settings: &ScalingSettings,
    seen: &Observation,
    history: History,
    now: Millis,
) -> (Decision, History) {
    let mut history = history.observe(seen, now);
    let recommendations = recommend(settings, seen, history.rate_milli());
    let (replicas, reason) = if seen.current == 0 {
        from_zero(settings, seen, &recommendations)
    } else if seen.current != bound(settings, seen.current) {
        (bound(settings, seen.current), Reason::OutOfBounds)
    } else if history
        .idle_millis(now)
        .is_some_and(|idle| goes_to_zero(settings, idle))
    {
        (0, Reason::Idle)
    } else {
        follow(settings, seen, &recommendations, &mut history, now)
    };
    let inputs = Inputs {
        current: seen.current,
        ready: seen.ready,
        demand: seen.demand.clone(),
        recommendations,
    };
    (
        Decision {
            replicas,
            reason,
            inputs,
        },
        history,
    )
}

fn goes_to_zero(settings: &ScalingSettings, idle_millis: Millis) -> bool {
    settings.min_replicas == 0 && idle_millis >= u64::from(settings.idle_seconds) * 1000
}

/// Metrics never ask for zero: that is what idle time is for.
fn bound(settings: &ScalingSettings, replicas: u32) -> u32 {
    replicas.clamp(settings.min_replicas.max(1), settings.max_replicas)
}

fn from_zero(
    settings: &ScalingSettings,
    seen: &Observation,
    recommendations: &[Recommendation],
) -> (u32, Reason) {
    if settings.min_replicas > 0 {
        (settings.min_replicas, Reason::OutOfBounds)
    } else if seen.demand.held > 0 {
        let wanted = recommendations
            .iter()
            .map(|r| r.replicas)
            .max()
            .unwrap_or(1);
        (bound(settings, wanted), Reason::Wake)
    } else if seen.demand.complete {
        (0, Reason::AtZero)
    } else {
        (0, Reason::NoMetrics)
    }
}

/// What each target asks for. With partial knowledge the demand is a lower bound, so it may ask for more and never
/// for fewer.
fn recommend(
    settings: &ScalingSettings,
    seen: &Observation,
    rate_milli: Option<u64>,
) -> Vec<Recommendation> {
    let current = seen.current;
    let each = |target: &TargetSetting| {
        let demand_milli = match target.metric {
            Metric::InFlightRequests => seen.demand.in_flight_milli(),
            Metric::RequestsPerSecond => rate_milli,
            _ => None,
        };
        let tolerance_percent = settings.behavior.up.tolerance_milli / 10;
        let wanted = match (demand_milli, target.value) {
            (Some(demand), TargetValue::Each { milli }) => {
                by_ratio(demand, milli, current, tolerance_percent)
            }
            _ => current,
        };
        let replicas = if seen.demand.complete && demand_milli.is_some() {
            wanted
        } else {
            wanted.max(current)
        };
        Recommendation {
            target: *target,
            demand_milli,
            replicas,
        }
    };
    settings.targets.iter().map(each).collect()
}

/// HPA's rule in integers: demand and target in thousandths, so that no rounding moves a pod.
fn by_ratio(demand_milli: u64, target_milli: u64, current: u32, tolerance_percent: u32) -> u32 {
    let (demand, target) = (u128::from(demand_milli), u128::from(target_milli.max(1)));
    let carried = target * u128::from(current);
    if demand.abs_diff(carried) * 100 <= u128::from(tolerance_percent) * carried && current > 0 {
        return current;
    }
    u32::try_from(demand.div_ceil(target)).unwrap_or(u32::MAX)
}

fn follow(
    settings: &ScalingSettings,
    seen: &Observation,
    recommendations: &[Recommendation],
    history: &mut History,
    now: Millis,
) -> (u32, Reason) {
    let current = seen.current;
    let blind = !seen.demand.complete;
    let top = recommendations.iter().max_by_key(|r| r.replicas);
    // Without targets the minimum alone counts. A blind moment counts as a wish for what there is, so that fewer must
    // be wished for anew.
    let wanted = top
        .map_or(settings.min_replicas, |r| r.replicas)
        .max(if blind { current } else { 0 });
    let bounded = bound(settings, wanted);
    let stable = history.stabilize(settings, bounded, now);
    let replicas = if bounded < current {
        stable.min(current)
    } else {
        bounded
    };
    (
        replicas,
        follow_reason(top, wanted, bounded, replicas, current, blind),
    )
}

fn follow_reason(
    top: Option<&Recommendation>,
    wanted: u32,
    bounded: u32,
    replicas: u32,
    current: u32,
    blind: bool,
) -> Reason {
    match top {
        Some(top) if wanted > bounded => Reason::AtMaximum(top.target.metric),
        Some(top) if replicas > current => Reason::Above(top.target.metric),
        _ if replicas < current => Reason::Below,
        _ if bounded < current => Reason::Stabilizing,
        Some(top) if blind && top.demand_milli.is_none() => Reason::NoMetrics,
        _ if blind => Reason::PartialMetrics,
        _ if wanted < bounded => Reason::AtMinimum,
        _ => Reason::OnTarget,
    }
}
