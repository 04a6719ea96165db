//! From a measurement to a number of pods.
//!
//! Source: `pkg/controller/podautoscaler/replica_calculator.go` (`calcPlainMetricReplicas`, `getUsageRatioReplicaCount`,
//! `GetExternalPerPodMetricReplicas`) and `metrics/utilization.go`.

use crate::validate::BehaviorSettings;

/// How far a ratio of usage and target may be from 1 without a change.
#[derive(Clone, Copy, Debug)]
pub(in crate::autoscale) struct Tolerances {
    down: f64,
    up: f64,
}

impl Tolerances {
    pub fn of(behavior: &BehaviorSettings) -> Self {
        let share = |milli: u32| f64::from(milli) / 1000.0;
        Self {
            down: share(behavior.down.tolerance_milli),
            up: share(behavior.up.tolerance_milli),
        }
    }

    fn hold(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// `AverageValue`: a total of which each of the pods that were asked for should carry `target_milli`.
pub(in crate::autoscale) fn average_value(
    usage_milli: u64,
    target_milli: u64,
    current: u32,
    tolerances: Tolerances,
) -> u32 {
    let (usage, target) = (usage_milli as f64, target_milli.max(1) as f64);
    if tolerances.hold(usage / (target * f64::from(current))) {
        return current;
    }
    (usage / target).ceil() as u32
}

/// `Value`: a figure that more pods make smaller. From zero pods it counts as if there were one.
pub(in crate::autoscale) fn value(
    usage_milli: u64,
    target_milli: u64,
    current: u32,
    ready: u32,
    tolerances: Tolerances,
) -> u32 {
    let ratio = usage_milli as f64 / target_milli.max(1) as f64;
    if current == 0 {
        return ratio.ceil() as u32;
    }
    if tolerances.hold(ratio) {
        return current;
    }
    (ratio * f64::from(ready)).ceil() as u32
}

/// What the pods of a service told of one metric.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::autoscale) struct PodSamples {
    /// Sum of what was told.
    pub sum_milli: u64,
    /// Pods that told.
    pub told: u32,
    /// Pods that should have told and did not.
    pub missing: u32,
    /// Pods that are not ready.
    pub unready: u32,
}

impl PodSamples {
    /// The mean in whole thousandths, as a ratio to the target.
    fn ratio(self, target_milli: u64) -> f64 {
        (self.sum_milli / u64::from(self.told.max(1))) as f64 / target_milli.max(1) as f64
    }

    /// Counts `pods` as if each had told `milli`.
    fn with(self, pods: u32, milli: u64) -> Self {
        Self {
            sum_milli: self
                .sum_milli
                .saturating_add(milli.saturating_mul(u64::from(pods))),
            told: self.told.saturating_add(pods),
            ..self
        }
    }
}

/// `Pods`: the mean over pods. Those of which nothing is known are taken to be such that the change is the smaller for it.
/// None when no pod told.
pub(in crate::autoscale) fn pods(
    samples: PodSamples,
    target_milli: u64,
    current: u32,
    tolerances: Tolerances,
) -> Option<u32> {
    if samples.told == 0 {
        return None;
    }
    let ratio = samples.ratio(target_milli);
    let grows_beside_unready = samples.unready > 0 && ratio > 1.0;
    if !grows_beside_unready && samples.missing == 0 {
        let all = f64::from(samples.told);
        return Some(if tolerances.hold(ratio) {
            current
        } else {
            (ratio * all).ceil() as u32
        });
    }
    let mut all = samples;
    if ratio < 1.0 {
        all = all.with(samples.missing, target_milli);
    } else if ratio > 1.0 {
        all = all.with(samples.missing, 0);
    }
    if grows_beside_unready {
        all = all.with(samples.unready, 0);
    }
    let cautious = all.ratio(target_milli);
    let turned = (ratio < 1.0 && cautious > 1.0) || (ratio > 1.0 && cautious < 1.0);
    if tolerances.hold(cautious) || turned {
        return Some(current);
    }
    let wanted = (cautious * f64::from(all.told)).ceil() as u32;
    let contradicts = (cautious < 1.0 && wanted > current) || (cautious > 1.0 && wanted < current);
    Some(if contradicts { current } else { wanted })
}
