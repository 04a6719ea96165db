//! Without a panic window, a schedule or a look ahead a decision is HPA's: compared with a second writing-down of its source, step by step, for random
//! specs, behaviours and series.

use super::{
    hpa_model::{HorizontalController, MetricSpec, PodList},
    *,
};
use crate::validate::{PrometheusSettings, QuerySetting, QueryValue};
use proptest::prelude::*;

const KV_TARGET_PERCENT: u32 = 50;

/// What one look sees.
#[derive(Clone, Debug)]
struct Step {
    pause_seconds: u64,
    in_flight: u64,
    backlog: Option<u64>,
    lag: u64,
    /// Of the pods there are, so many load.
    loading: u32,
    kv: Vec<u32>,
}

prop_compose! {
    fn step()(pause_seconds in 1_u64..60, in_flight in 0_u64..60, backlog in proptest::option::weighted(0.9, 0_u64..60_000), lag in 0_u64..4000,
        loading in 0_u32..4, kv in proptest::collection::vec(0_u32..=1000, 40)) -> Step {
        Step { pause_seconds, in_flight, backlog, lag, loading, kv }
    }
}

prop_compose! {
    fn rules()(tolerance_milli in 0_u32..500, window_seconds in prop_oneof![Just(0), 1_u32..180], select in 0_usize..5,
        policies in proptest::collection::vec((any::<bool>(), 1_u32..150, 1_u32..240), 1..4)) -> RulesSettings {
        let policy = |(pods, value, period_seconds): (bool, u32, u32)| ScalingPolicy {
            kind: if pods { PolicyKind::Pods } else { PolicyKind::Percent },
            value: if pods { value % 10 + 1 } else { value },
            period_seconds,
        };
        RulesSettings {
            tolerance_milli, window_seconds,
            select: [SelectPolicy::Max, SelectPolicy::Max, SelectPolicy::Min, SelectPolicy::Min, SelectPolicy::Disabled][select],
            policies: policies.into_iter().map(policy).collect(),
        }
    }
}

/// Which metrics are looked at.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
struct Metrics {
    in_flight: bool,
    kv: bool,
    backlog: bool,
    lag: bool,
}

prop_compose! {
    fn metrics()(chosen in 1_u8..16) -> Metrics {
        Metrics { in_flight: chosen & 1 > 0, kv: chosen & 2 > 0, backlog: chosen & 4 > 0, lag: chosen & 8 > 0 }
    }
}

fn spec(metrics: Metrics, behavior: BehaviorSettings, min: u32, max: u32) -> ScalingSettings {
    let kv = TargetSetting {
        metric: Metric::KvCacheUtilization,
        value: TargetValue::Utilization {
            percent: KV_TARGET_PERCENT,
        },
    };
    let query = |name: &str, value| QuerySetting {
        name: name.into(),
        query: name.into(),
        value,
    };
    let queries = [
        (metrics.backlog, query("backlog", QueryValue::Each(2000))),
        (metrics.lag, query("lag", QueryValue::Whole(1000))),
    ];
    let targets = [
        (metrics.in_flight, each(Metric::InFlightRequests, 3000)),
        (metrics.kv, kv),
    ];
    ScalingSettings {
        behavior,
        targets: targets
            .into_iter()
            .filter(|(chosen, _)| *chosen)
            .map(|(_, target)| target)
            .collect(),
        prometheus: Some(PrometheusSettings {
            server: "default".into(),
            interval_seconds: 15,
            max_age_seconds: 60,
            queries: queries
                .into_iter()
                .filter(|(chosen, _)| *chosen)
                .map(|(_, query)| query)
                .collect(),
        }),
        ..settings(min, max, 1)
    }
}

impl Step {
    fn loading(&self, current: u32) -> u32 {
        self.loading.min(current.saturating_sub(1))
    }

    /// As Pagoda sees it.
    fn seen(&self, metrics: Metrics, current: u32) -> Observation {
        let ready = current - self.loading(current);
        let pods = (0..current as usize).map(|i| {
            let kv_usage_milli = Some(self.kv[i % self.kv.len()]);
            let reading = PodReading {
                kv_usage_milli,
                ..PodReading::default()
            };
            pod(
                i,
                i < ready as usize,
                (i < ready as usize).then_some(reading),
            )
        });
        let query = |value_milli| QueryReading {
            value_milli,
            age_millis: 0,
        };
        let queries = [
            (metrics.backlog, self.backlog.map(query)),
            (metrics.lag, Some(query(self.lag))),
        ];
        Observation {
            queries: queries
                .into_iter()
                .filter(|(chosen, _)| *chosen)
                .map(|(_, answer)| answer)
                .collect(),
            ..look(current, vec![gateway(0, self.in_flight, 0)], pods.collect())
        }
    }

    /// As an HPA's metrics APIs tell it.
    fn told(&self, metrics: Metrics, current: u32) -> (Vec<MetricSpec>, PodList) {
        let ready = current - self.loading(current);
        let name = |i: u32| format!("demo-{i}");
        let pods = PodList {
            running: (0..ready).map(name).collect(),
            pending: (ready..current).map(name).collect(),
        };
        let of = |i: u32| (name(i), i64::from(self.kv[i as usize % self.kv.len()]));
        let mut all = Vec::new();
        if metrics.in_flight {
            all.push(MetricSpec::ExternalPerPod {
                usage: Some(self.in_flight as i64 * 1000),
                target: 3000,
            });
        }
        if metrics.kv {
            let target = i64::from(KV_TARGET_PERCENT) * 10;
            all.push(MetricSpec::Pods {
                metrics: (0..ready).map(of).collect(),
                target,
            });
        }
        if metrics.backlog {
            all.push(MetricSpec::ExternalPerPod {
                usage: self.backlog.map(|milli| milli as i64),
                target: 2000,
            });
        }
        if metrics.lag {
            all.push(MetricSpec::External {
                usage: Some(self.lag as i64),
                target: 1000,
            });
        }
        (all, pods)
    }

    /// A moment at which every metric is on its target: what starts anew takes nothing away before it has seen a window, which an HPA does.
    fn on_target(current: u32) -> Self {
        Self {
            pause_seconds: 15,
            in_flight: u64::from(current) * 3,
            backlog: Some(u64::from(current) * 2000),
            lag: 1000,
            loading: 0,
            kv: vec![KV_TARGET_PERCENT * 10],
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_decision_without_a_burst_is_hpas(metrics in metrics(), up in rules(), down in rules(), min in 1_u32..5, extra in 0_u32..36, start in 1_u32..45,
        steps in proptest::collection::vec(step(), 1..40)) {
        let behavior = BehaviorSettings { up, down };
        let max = min + extra;
        let settings = spec(metrics, behavior.clone(), min, max);
        let mut hpa = HorizontalController::new(min as i32, max as i32, behavior);
        let (mut history, mut now, mut current) = (History::default(), 0_u64, start);
        for step in std::iter::once(Step::on_target(start)).chain(steps) {
            let (told, pods) = step.told(metrics, current);
            let expected = hpa.reconcile(current as i32, &told, &pods, now as i64);
            let (decision, next) = decide(&settings, &step.seen(metrics, current), history, at(now));
            prop_assert_eq!(decision.replicas as i32, expected, "at {} ms of {}: {:?}", now, current, decision);
            history = next;
            current = decision.replicas;
            now += step.pause_seconds * 1000;
        }
    }
}
