//! What a decision says: the number of pods, why, and the numbers that it was made from.

use std::{fmt, sync::Arc};

use pagoda_crds::api::Metric;

use super::{Demand, Millis};

/// The number of pods to have, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Pods from now on.
    pub replicas: u32,
    /// Why.
    pub reason: Reason,
    /// What the decision was made from.
    pub inputs: Inputs,
    /// When to look again at the latest, on the clock of [`super::Moment::now`]. Earlier is right whenever something new is seen,
    /// such as a request at a gateway.
    pub next_look: Millis,
}

/// What a decision was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// Pods that the spec asks for.
    pub current: u32,
    /// Pods that answer.
    pub ready: u32,
    /// Pods that were asked for and do not answer yet: supply on its way.
    pub pending: u32,
    /// Of those, the ones for which it took longer than the rollout's `progressDeadlineSeconds`.
    pub overdue: u32,
    /// The demand at this moment.
    pub demand: Demand,
    /// What was measured, whether or not it has a target.
    pub measured: Measured,
    /// What each target asks for by itself, unbounded: targets in the order of the spec, then queries.
    pub recommendations: Vec<Recommendation>,
    /// The recommendation that asks for the most.
    pub winner: Option<u8>,
    /// Fewest pods at this moment, schedules counted in.
    pub min_replicas: u32,
    /// Most pods.
    pub max_replicas: u32,
    /// The schedule that sets the minimum, if one does.
    pub schedule: Option<Arc<str>>,
    /// While a burst is answered beyond `behavior`: the most pods that it has asked for.
    pub panic: Option<u32>,
    /// What is foreseen of the moment when a pod that is started now has loaded, if that asks for more than there is.
    pub foreseen: Option<Foreseen>,
    /// What `behavior` allows at this moment, when that is less of a change than is wanted.
    pub limit: Option<u32>,
}

/// Figures of a service by [`Metric`], averaged over `windowSeconds`, in thousandths: of requests, requests per second, tokens
/// per second; of one for a share; of a second for a latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured([Option<u64>; Metric::ALL.len()]);

impl Measured {
    /// The figure, if known.
    pub fn get(&self, metric: Metric) -> Option<u64> {
        self.0[metric as usize]
    }

    pub(super) fn set(&mut self, metric: Metric, milli: Option<u64>) {
        self.0[metric as usize] = milli;
    }
}

/// What is foreseen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreseen {
    /// How far ahead.
    pub ahead_millis: Millis,
    /// Pods that it takes then.
    pub replicas: u32,
}

/// What one target asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// What is measured.
    pub what: What,
    /// How measurement and target compare.
    pub unit: Unit,
    /// Thousandths of what was measured, if known: in all for [`Unit::EachPod`] and [`Unit::Whole`], of one for a share, of a
    /// second for a latency.
    pub demand_milli: Option<u64>,
    /// Thousandths of the target, in the same unit.
    pub target_milli: u64,
    /// Pods; the present number while nothing is known.
    pub replicas: u32,
    /// Whether anything is known that the number comes from.
    pub known: bool,
    /// Whether somebody did not tell his part, so that the measurement is a lower bound.
    pub partial: bool,
    /// Thousandths of a request per second that a typical pod was seen to carry within a latency target, if known.
    pub carries_milli: Option<u64>,
    /// Milliseconds that even an idle pod takes, when that is more than a latency target.
    pub least_millis: Option<u32>,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// By gateways and pods.
    Metric(Metric),
    /// By a Prometheus: the name of the query.
    Query(Arc<str>),
}

impl What {
    /// Its name, as decisions call it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Metric(metric) => metric.as_str(),
            Self::Query(name) => name,
        }
    }
}

/// How a measurement and its target compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A sum, and the part of it for each pod: HPA's `AverageValue`.
    EachPod,
    /// A figure, and what it should be: HPA's `Value`.
    Whole,
    /// A share of one, averaged over pods: HPA's `Pods` metric.
    Share,
    /// A percentile of a latency.
    Percentile(u8),
}

/// Why a number of pods was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Every metric is within tolerance of its target, or nothing asks for a change.
    OnTarget,
    /// A metric asks for more.
    Above,
    /// Every metric asks for fewer, and has for as long as the stabilisation window.
    Below,
    /// Metrics ask for another number, but not yet for long enough.
    Stabilizing,
    /// A metric asks for more than the bounds allow.
    AtMaximum,
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
    /// A burst asks for more at once than `behavior` allows, or did a moment ago.
    Panic,
    /// Metrics ask for a larger change than the policies of `behavior` allow in their time.
    RateLimited,
    /// A schedule asks for at least this many.
    Scheduled,
    /// What is foreseen asks for more than what is.
    Forecast,
    /// Pods that were asked for do not get ready, so more of them would not help.
    PodsNotReady,
    /// The latency target cannot be met by any number of pods: even an idle one takes longer.
    Unreachable,
    /// More services wake from zero than may at once; this one waits for its turn.
    WaitsForColdStart,
    /// Somebody else writes the number of pods too.
    ConflictingScaler,
}

impl Reason {
    /// CamelCase word for events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnTarget => "OnTarget",
            Self::Above => "AboveTarget",
            Self::Below => "BelowTarget",
            Self::Stabilizing => "Stabilizing",
            Self::AtMaximum => "AtMaximum",
            Self::AtMinimum => "AtMinimum",
            Self::OutOfBounds => "OutOfBounds",
            Self::NoMetrics => "NoMetrics",
            Self::PartialMetrics => "PartialMetrics",
            Self::Idle => "Idle",
            Self::AtZero => "AtZero",
            Self::Wake => "WakeFromZero",
            Self::Panic => "Panic",
            Self::RateLimited => "RateLimited",
            Self::Scheduled => "Scheduled",
            Self::Forecast => "Forecast",
            Self::PodsNotReady => "PodsNotReady",
            Self::Unreachable => "TargetUnreachable",
            Self::WaitsForColdStart => "WaitsForColdStart",
            Self::ConflictingScaler => "ConflictingScaler",
        }
    }
}

impl fmt::Display for Decision {
    /// One line for status and events, with the numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason.as_str())?;
        let known = self.inputs.recommendations.iter();
        for (i, known) in known.filter(|r| r.demand_milli.is_some()).enumerate() {
            write!(f, "{}{known}", if i == 0 { ": " } else { ", " })?;
        }
        if self.inputs.demand.held > 0 {
            write!(f, " ({} held)", self.inputs.demand.held)?;
        }
        self.explain(f)
    }
}

impl Decision {
    /// What the measurements alone do not say.
    fn explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inputs = &self.inputs;
        match self.reason {
            Reason::Panic => write!(
                f,
                "; a burst asks for {}",
                inputs.panic.unwrap_or(self.replicas)
            ),
            Reason::RateLimited => {
                write!(
                    f,
                    "; behavior allows {} by now",
                    inputs.limit.unwrap_or(self.replicas)
                )
            }
            Reason::Scheduled => write!(
                f,
                "; schedule {} asks for at least {}",
                inputs.schedule.as_deref().unwrap_or_default(),
                inputs.min_replicas
            ),
            Reason::Forecast => match inputs.foreseen {
                Some(foreseen) => write!(
                    f,
                    "; it will take {} in {} s, when a new pod has loaded",
                    foreseen.replicas,
                    foreseen.ahead_millis.div_ceil(1000)
                ),
                None => Ok(()),
            },
            Reason::PodsNotReady => write!(
                f,
                "; {} of {} pods do not get ready",
                inputs.overdue.max(1),
                inputs.current
            ),
            Reason::AtMaximum => write!(f, "; maxReplicas is {}", inputs.max_replicas),
            Reason::Unreachable => {
                let least = inputs.recommendations.iter().find_map(|r| r.least_millis);
                write!(f, "; even an idle pod takes {} ms", least.unwrap_or(0))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.what.as_str();
        let (is, should) = (self.demand_milli.unwrap_or(0), self.target_milli);
        match self.unit {
            Unit::EachPod => write!(
                f,
                "{name} {}, target {} a pod",
                decimal(is),
                decimal(should)
            ),
            Unit::Whole => write!(f, "{name} {}, target {}", decimal(is), decimal(should)),
            Unit::Share => write!(
                f,
                "{name} {} %, target {} %",
                decimal(is.saturating_mul(100)),
                decimal(should.saturating_mul(100))
            ),
            Unit::Percentile(percentile) => {
                write!(f, "{name} p{percentile} {is} ms, target {should} ms")?;
                match self.carries_milli {
                    Some(each) => write!(f, ", {} requests/s a pod", decimal(each)),
                    None => Ok(()),
                }
            }
        }
    }
}

fn decimal(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
