//! What each target asks for by itself.

use std::sync::Arc;

use pagoda_crds::api::Metric;

use super::{
    Measured, Millis, Observation, PodSeen, Recommendation, Unit, What,
    capacity::{Asked, Basis, Learner},
    hpa::{self, PodSamples, Tolerances},
    panic::asked_milli,
};
use crate::validate::{QuerySetting, QueryValue, ScalingSettings, TargetSetting, TargetValue};

/// What a recommendation is made from.
pub(super) struct Sources<'a> {
    pub settings: &'a ScalingSettings,
    pub seen: &'a Observation,
    pub measured: &'a Measured,
    /// See [`super::History::kv_usage_micro`].
    pub kv_usage_micro: Option<u64>,
    /// Whether somebody did not tell his part within the window.
    pub partial: bool,
    pub now: Millis,
}

/// One recommendation for each target, then one for each query. With partial knowledge the demand is a lower bound, so it may
/// ask for more and never for fewer; while nothing is known the present number stands.
pub(super) fn recommend(sources: &Sources<'_>, learner: &mut Learner) -> Vec<Recommendation> {
    let (targets, queries) = (&sources.settings.targets, sources.settings.queries());
    let mut all = Vec::with_capacity(targets.len() + queries.len());
    all.extend(targets.iter().map(|target| sources.target(target, learner)));
    all.extend(
        queries
            .iter()
            .enumerate()
            .map(|(i, query)| sources.query(i, query)),
    );
    all
}

impl Sources<'_> {
    fn target(&self, target: &TargetSetting, learner: &mut Learner) -> Recommendation {
        let demand_milli = self.measured.get(target.metric);
        let what = What::Metric(target.metric);
        match target.value {
            TargetValue::Each { milli } => {
                let wanted = demand_milli.map(|demand| self.average_value(demand, milli));
                self.told(what, Unit::EachPod, milli, demand_milli, wanted)
            }
            TargetValue::Utilization { percent } => {
                let milli = u64::from(percent) * 10;
                let wanted = self.share(milli);
                self.told(what, Unit::Share, milli, demand_milli, wanted)
            }
            TargetValue::Latency {
                percentile,
                milliseconds,
            } => {
                let unit = Unit::Percentile(percentile as u8);
                self.latency(target, unit, milliseconds.into(), learner)
            }
        }
    }

    fn latency(
        &self,
        target: &TargetSetting,
        unit: Unit,
        target_milli: u64,
        learner: &mut Learner,
    ) -> Recommendation {
        let what = What::Metric(target.metric);
        let rate = self.measured.get(Metric::RequestsPerSecond);
        let queued = self.measured.get(Metric::QueuedRequests).unwrap_or(0) / 1000;
        let advice = rate.and_then(|rate_milli| {
            // One that waits at each pod is what a queue is for.
            let queued = queued.saturating_sub(self.seen.ready.into());
            learner.recommend(
                target,
                Asked { rate_milli, queued },
                &self.seen.pods,
                self.now,
            )
        });
        let Some(advice) = advice else {
            return self.told(
                what,
                unit,
                target_milli,
                self.measured.get(target.metric),
                None,
            );
        };
        let measured = advice.measured_millis.map(u64::from);
        Recommendation {
            carries_milli: advice.each_milli,
            least_millis: match advice.basis {
                Basis::Unreachable { least_millis } => Some(least_millis),
                _ => None,
            },
            ..self.told(what, unit, target_milli, measured, Some(advice.replicas))
        }
    }

    fn query(&self, i: usize, query: &QuerySetting) -> Recommendation {
        let oldest = self
            .settings
            .prometheus
            .as_ref()
            .map_or(0, |p| p.max_age_seconds);
        let reading = self.seen.queries.get(i).copied().flatten();
        let fresh = reading.filter(|r| r.age_millis <= Millis::from(oldest) * 1000);
        let demand_milli = fresh.map(|reading| reading.value_milli);
        let (unit, target_milli, wanted) = match query.value {
            QueryValue::Each(milli) => {
                let wanted = demand_milli.map(|demand| self.average_value(demand, milli));
                (Unit::EachPod, milli, wanted)
            }
            QueryValue::Whole(milli) => {
                let (current, ready) = (self.seen.current, self.seen.ready);
                let value = |demand| hpa::value(demand, milli, current, ready, self.tolerances());
                (Unit::Whole, milli, demand_milli.map(value))
            }
        };
        let what = What::Query(Arc::clone(&query.name));
        let told = self.told(what, unit, target_milli, demand_milli, wanted);
        // A figure of its own is whole, whoever else is silent.
        let replicas = wanted.unwrap_or(told.replicas);
        Recommendation {
            partial: false,
            replicas,
            ..told
        }
    }

    fn told(
        &self,
        what: What,
        unit: Unit,
        target_milli: u64,
        demand_milli: Option<u64>,
        wanted: Option<u32>,
    ) -> Recommendation {
        let current = self.seen.current;
        let replicas = match wanted {
            Some(wanted) if !self.partial => wanted,
            Some(wanted) => wanted.max(current),
            None => current,
        };
        Recommendation {
            what,
            unit,
            demand_milli,
            target_milli,
            replicas,
            known: wanted.is_some(),
            partial: self.partial,
            carries_milli: None,
            least_millis: None,
        }
    }

    fn tolerances(&self) -> Tolerances {
        Tolerances::of(&self.settings.behavior)
    }

    fn average_value(&self, demand_milli: u64, target_milli: u64) -> u32 {
        hpa::average_value(
            demand_milli,
            target_milli,
            self.seen.current,
            self.tolerances(),
        )
    }

    /// HPA's rule for pods, with the mean of the window for each pod that told.
    fn share(&self, target_milli: u64) -> Option<u32> {
        let pods = self.seen.pods.iter();
        let told = pods.clone().filter(|pod| kv_usage(pod).is_some()).count() as u32;
        let samples = PodSamples {
            sum_milli: self
                .kv_usage_micro?
                .saturating_mul(told.into())
                .div_ceil(1000),
            told,
            missing: self.seen.ready.saturating_sub(told),
            unready: pods.filter(|pod| !pod.ready).count() as u32,
        };
        hpa::pods(samples, target_milli, self.seen.current, self.tolerances())
    }
}

/// Share of its KV cache that a pod uses, in thousandths.
pub(super) fn kv_usage(pod: &PodSeen) -> Option<u64> {
    let reading = pod.reading.as_ref().filter(|_| pod.ready)?;
    reading.kv_usage_milli.map(u64::from)
}

/// The load in thousandths of a pod: what the largest of all targets takes. None unless all is known.
pub(super) fn load_milli(
    recommendations: &[Recommendation],
    measured: &Measured,
    ready: u32,
) -> Option<u64> {
    let each = |r: &Recommendation| {
        let (demand, of, pods) = match (r.unit, r.carries_milli) {
            (Unit::EachPod, _) => (r.demand_milli?, r.target_milli, 1),
            (Unit::Whole | Unit::Share, _) => (r.demand_milli?, r.target_milli, ready),
            (Unit::Percentile(_), Some(carries)) => {
                (measured.get(Metric::RequestsPerSecond)?, carries, 1)
            }
            (Unit::Percentile(_), None) => (r.replicas.into(), 1, 1),
        };
        let load = u128::from(demand) * 1000 * u128::from(pods) / u128::from(of.max(1));
        r.known.then(|| u64::try_from(load).unwrap_or(u64::MAX))
    };
    let mut most = None;
    for recommendation in recommendations {
        most = most.max(Some(each(recommendation)?));
    }
    most
}

/// Thousandths of pods that figures of a short while ask for: the most of the targets that every pod carries a part of, be that
/// part said or learned.
pub(super) fn pods_milli(recommendations: &[Recommendation], shortly: &Measured) -> u64 {
    let each = recommendations.iter().filter_map(|r| {
        let What::Metric(metric) = r.what else {
            return None;
        };
        match (r.unit, r.carries_milli) {
            (Unit::EachPod, _) => Some(asked_milli(shortly.get(metric)?, r.target_milli)),
            (Unit::Percentile(_), Some(carries)) => Some(asked_milli(
                shortly.get(Metric::RequestsPerSecond)?,
                carries,
            )),
            _ => None,
        }
    });
    each.max().unwrap_or(0)
}
