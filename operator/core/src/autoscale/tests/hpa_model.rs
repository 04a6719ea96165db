//! Kubernetes' horizontal autoscaler written down a second time, line by line after its Go source and with nothing of `hpa`, to compare with.
//!
//! Source: `k8s.io/kubernetes` 1.34, `pkg/controller/podautoscaler/horizontal.go` and `replica_calculator.go`. Names are those of the source.
//! One thing is Pagoda's: when a metric is invalid and the rest would scale down, the source returns an error and records nothing, while here
//! the present number is recorded for the way down, so that a lower one must be recommended anew for a whole window.

use std::collections::BTreeMap;

use pagoda_crds::api::{PolicyKind, SelectPolicy};

use crate::validate::{BehaviorSettings, RulesSettings};

pub enum MetricSpec {
    /// External, `AverageValue`.
    ExternalPerPod { usage: Option<i64>, target: i64 },
    /// External, `Value`.
    External { usage: Option<i64>, target: i64 },
    /// Pods, `AverageValue`: what each pod that told told.
    Pods {
        metrics: BTreeMap<String, i64>,
        target: i64,
    },
}

pub struct PodList {
    pub running: Vec<String>,
    pub pending: Vec<String>,
}

struct TimestampedRecommendation {
    recommendation: i32,
    timestamp: i64,
    only_down: bool,
}

struct TimestampedScaleEvent {
    replica_change: i32,
    timestamp: i64,
    outdated: bool,
}

pub struct HorizontalController {
    pub min_replicas: i32,
    pub max_replicas: i32,
    pub behavior: BehaviorSettings,
    recommendations: Option<Vec<TimestampedRecommendation>>,
    scale_up_events: Vec<TimestampedScaleEvent>,
    scale_down_events: Vec<TimestampedScaleEvent>,
}

#[expect(clippy::struct_field_names, reason = "names are those of the source")]
struct NormalizationArg {
    min_replicas: i32,
    max_replicas: i32,
    current_replicas: i32,
    desired_replicas: i32,
}

impl HorizontalController {
    pub fn new(min_replicas: i32, max_replicas: i32, behavior: BehaviorSettings) -> Self {
        Self {
            min_replicas,
            max_replicas,
            behavior,
            recommendations: None,
            scale_up_events: Vec::new(),
            scale_down_events: Vec::new(),
        }
    }

    /// `reconcileAutoscaler`: the number of replicas from `now` (milliseconds) on.
    pub fn reconcile(
        &mut self,
        current_replicas: i32,
        metrics: &[MetricSpec],
        pods: &PodList,
        now: i64,
    ) -> i32 {
        if self.recommendations.is_none() {
            self.recommendations = Some(vec![TimestampedRecommendation {
                recommendation: current_replicas,
                timestamp: now,
                only_down: false,
            }]);
        }
        let mut desired_replicas = 0;
        if current_replicas > self.max_replicas {
            desired_replicas = self.max_replicas;
        } else if current_replicas < self.min_replicas {
            desired_replicas = self.min_replicas;
        } else {
            let Ok(metric_desired_replicas) =
                self.compute_replicas_for_metrics(current_replicas, metrics, pods)
            else {
                let recommendations = self.recommendations.as_mut().expect("recorded at first");
                recommendations.push(TimestampedRecommendation {
                    recommendation: current_replicas,
                    timestamp: now,
                    only_down: true,
                });
                return current_replicas;
            };
            if metric_desired_replicas > desired_replicas {
                desired_replicas = metric_desired_replicas;
            }
            desired_replicas = self.normalize_desired_replicas_with_behaviors(
                current_replicas,
                desired_replicas,
                now,
            );
        }
        if desired_replicas != current_replicas {
            self.store_scale_event(current_replicas, desired_replicas, now);
        }
        desired_replicas
    }

    fn compute_replicas_for_metrics(
        &self,
        spec_replicas: i32,
        metric_specs: &[MetricSpec],
        pods: &PodList,
    ) -> Result<i32, ()> {
        let mut replicas = 0;
        let mut invalid_metrics_count = 0;
        for spec in metric_specs {
            let proposal = match spec {
                MetricSpec::ExternalPerPod { usage, target } => usage.map(|usage| {
                    self.get_external_per_pod_metric_replicas(spec_replicas, usage, *target)
                }),
                MetricSpec::External { usage, target } => usage.map(|usage| {
                    self.get_usage_ratio_replica_count(
                        spec_replicas,
                        usage as f64 / *target as f64,
                        pods,
                    )
                }),
                MetricSpec::Pods { metrics, target } => {
                    self.calc_plain_metric_replicas(metrics, spec_replicas, *target, pods)
                }
            };
            match proposal {
                None => invalid_metrics_count += 1,
                Some(proposal) => {
                    if replicas == 0 || proposal > replicas {
                        replicas = proposal;
                    }
                }
            }
        }
        if invalid_metrics_count >= metric_specs.len()
            || (invalid_metrics_count > 0 && replicas < spec_replicas)
        {
            return Err(());
        }
        Ok(replicas)
    }

    fn is_within(&self, usage_ratio: f64) -> bool {
        let scale_down = f64::from(self.behavior.down.tolerance_milli) / 1000.0;
        let scale_up = f64::from(self.behavior.up.tolerance_milli) / 1000.0;
        (1.0 - scale_down) <= usage_ratio && usage_ratio <= (1.0 + scale_up)
    }

    fn get_external_per_pod_metric_replicas(
        &self,
        status_replicas: i32,
        usage: i64,
        target_usage_per_pod: i64,
    ) -> i32 {
        let mut replica_count = status_replicas;
        let usage_ratio = usage as f64 / (target_usage_per_pod as f64 * f64::from(replica_count));
        if !self.is_within(usage_ratio) {
            replica_count = (usage as f64 / target_usage_per_pod as f64).ceil() as i32;
        }
        replica_count
    }

    fn get_usage_ratio_replica_count(
        &self,
        current_replicas: i32,
        usage_ratio: f64,
        pods: &PodList,
    ) -> i32 {
        if current_replicas != 0 {
            if self.is_within(usage_ratio) {
                return current_replicas;
            }
            let ready_pod_count = pods.running.len() as i64;
            return (usage_ratio * ready_pod_count as f64).ceil() as i32;
        }
        usage_ratio.ceil() as i32
    }

    fn calc_plain_metric_replicas(
        &self,
        told: &BTreeMap<String, i64>,
        current_replicas: i32,
        target_usage: i64,
        pods: &PodList,
    ) -> Option<i32> {
        let mut metrics = told.clone();
        let unready_pods = &pods.pending;
        let missing_pods: Vec<&String> = pods
            .running
            .iter()
            .filter(|name| !metrics.contains_key(*name))
            .collect();
        let ready_pod_count = pods.running.len() - missing_pods.len();
        for name in unready_pods {
            metrics.remove(name);
        }
        if metrics.is_empty() {
            return None;
        }
        let usage_ratio = get_metric_usage_ratio(&metrics, target_usage);
        let scale_up_with_unready = !unready_pods.is_empty() && usage_ratio > 1.0;
        if !scale_up_with_unready && missing_pods.is_empty() {
            if self.is_within(usage_ratio) {
                return Some(current_replicas);
            }
            return Some((usage_ratio * ready_pod_count as f64).ceil() as i32);
        }
        if !missing_pods.is_empty() {
            if usage_ratio < 1.0 {
                for name in &missing_pods {
                    metrics.insert((*name).clone(), target_usage);
                }
            } else if usage_ratio > 1.0 {
                for name in &missing_pods {
                    metrics.insert((*name).clone(), 0);
                }
            }
        }
        if scale_up_with_unready {
            for name in unready_pods {
                metrics.insert(name.clone(), 0);
            }
        }
        let new_usage_ratio = get_metric_usage_ratio(&metrics, target_usage);
        if self.is_within(new_usage_ratio)
            || (usage_ratio < 1.0 && new_usage_ratio > 1.0)
            || (usage_ratio > 1.0 && new_usage_ratio < 1.0)
        {
            return Some(current_replicas);
        }
        let new_replicas = (new_usage_ratio * metrics.len() as f64).ceil() as i32;
        if (new_usage_ratio < 1.0 && new_replicas > current_replicas)
            || (new_usage_ratio > 1.0 && new_replicas < current_replicas)
        {
            return Some(current_replicas);
        }
        Some(new_replicas)
    }

    fn normalize_desired_replicas_with_behaviors(
        &mut self,
        current_replicas: i32,
        prenormalized: i32,
        now: i64,
    ) -> i32 {
        let mut arg = NormalizationArg {
            min_replicas: self.min_replicas,
            max_replicas: self.max_replicas,
            current_replicas,
            desired_replicas: prenormalized,
        };
        arg.desired_replicas = self.stabilize_recommendation_with_behaviors(&arg, now);
        self.convert_desired_replicas_with_behavior_rate(&arg, now)
    }

    fn stabilize_recommendation_with_behaviors(
        &mut self,
        args: &NormalizationArg,
        now: i64,
    ) -> i32 {
        let mut found_old_sample = false;
        let mut old_sample_index = 0;
        let mut up_recommendation = args.desired_replicas;
        let up_cutoff = now - i64::from(self.behavior.up.window_seconds) * 1000;
        let mut down_recommendation = args.desired_replicas;
        let down_cutoff = now - i64::from(self.behavior.down.window_seconds) * 1000;
        let recommendations = self.recommendations.as_mut().expect("recorded at first");
        for (i, rec) in recommendations.iter().enumerate() {
            if rec.timestamp > up_cutoff && !rec.only_down {
                up_recommendation = up_recommendation.min(rec.recommendation);
            }
            if rec.timestamp > down_cutoff {
                down_recommendation = down_recommendation.max(rec.recommendation);
            }
            if rec.timestamp < up_cutoff && rec.timestamp < down_cutoff {
                found_old_sample = true;
                old_sample_index = i;
            }
        }
        let mut recommendation = args.current_replicas;
        if recommendation < up_recommendation {
            recommendation = up_recommendation;
        }
        if recommendation > down_recommendation {
            recommendation = down_recommendation;
        }
        let new = TimestampedRecommendation {
            recommendation: args.desired_replicas,
            timestamp: now,
            only_down: false,
        };
        if found_old_sample {
            recommendations[old_sample_index] = new;
        } else {
            recommendations.push(new);
        }
        recommendation
    }

    fn convert_desired_replicas_with_behavior_rate(
        &self,
        args: &NormalizationArg,
        now: i64,
    ) -> i32 {
        if args.desired_replicas > args.current_replicas {
            let mut scale_up_limit = self.calculate_scale_up_limit(args.current_replicas, now);
            if scale_up_limit < args.current_replicas {
                scale_up_limit = args.current_replicas;
            }
            let mut maximum_allowed_replicas = args.max_replicas;
            if maximum_allowed_replicas > scale_up_limit {
                maximum_allowed_replicas = scale_up_limit;
            }
            if args.desired_replicas > maximum_allowed_replicas {
                return maximum_allowed_replicas;
            }
        } else if args.desired_replicas < args.current_replicas {
            let mut scale_down_limit = self.calculate_scale_down_limit(args.current_replicas, now);
            if scale_down_limit > args.current_replicas {
                scale_down_limit = args.current_replicas;
            }
            let mut minimum_allowed_replicas = args.min_replicas;
            if minimum_allowed_replicas < scale_down_limit {
                minimum_allowed_replicas = scale_down_limit;
            }
            if args.desired_replicas < minimum_allowed_replicas {
                return minimum_allowed_replicas;
            }
        }
        args.desired_replicas
    }

    fn calculate_scale_up_limit(&self, current_replicas: i32, now: i64) -> i32 {
        let rules = &self.behavior.up;
        let mut result = match rules.select {
            SelectPolicy::Disabled => return current_replicas,
            SelectPolicy::Min => i32::MAX,
            SelectPolicy::Max => i32::MIN,
        };
        for policy in &rules.policies {
            let added = replicas_change(policy.period_seconds, &self.scale_up_events, now);
            let deleted = replicas_change(policy.period_seconds, &self.scale_down_events, now);
            let period_start_replicas = current_replicas - added + deleted;
            let proposed = match policy.kind {
                PolicyKind::Pods => period_start_replicas + policy.value as i32,
                PolicyKind::Percent => (f64::from(period_start_replicas)
                    * (1.0 + f64::from(policy.value) / 100.0))
                    .ceil() as i32,
            };
            result = if rules.select == SelectPolicy::Min {
                result.min(proposed)
            } else {
                result.max(proposed)
            };
        }
        result
    }

    fn calculate_scale_down_limit(&self, current_replicas: i32, now: i64) -> i32 {
        let rules = &self.behavior.down;
        let mut result = match rules.select {
            SelectPolicy::Disabled => return current_replicas,
            SelectPolicy::Min => i32::MIN,
            SelectPolicy::Max => i32::MAX,
        };
        for policy in &rules.policies {
            let added = replicas_change(policy.period_seconds, &self.scale_up_events, now);
            let deleted = replicas_change(policy.period_seconds, &self.scale_down_events, now);
            let period_start_replicas = current_replicas - added + deleted;
            let proposed = match policy.kind {
                PolicyKind::Pods => period_start_replicas - policy.value as i32,
                PolicyKind::Percent => {
                    (f64::from(period_start_replicas) * (1.0 - f64::from(policy.value) / 100.0))
                        as i32
                }
            };
            result = if rules.select == SelectPolicy::Min {
                result.max(proposed)
            } else {
                result.min(proposed)
            };
        }
        result
    }

    fn store_scale_event(&mut self, prev_replicas: i32, new_replicas: i32, now: i64) {
        let (events, rules, replica_change) = if new_replicas > prev_replicas {
            (
                &mut self.scale_up_events,
                &self.behavior.up,
                new_replicas - prev_replicas,
            )
        } else {
            (
                &mut self.scale_down_events,
                &self.behavior.down,
                prev_replicas - new_replicas,
            )
        };
        let cutoff = now - longest_policy_period(rules) * 1000;
        let mut old_sample_index = None;
        for (i, event) in events.iter_mut().enumerate() {
            if event.timestamp < cutoff {
                event.outdated = true;
            }
            if event.outdated {
                old_sample_index = Some(i);
            }
        }
        let new = TimestampedScaleEvent {
            replica_change,
            timestamp: now,
            outdated: false,
        };
        match old_sample_index {
            Some(i) => events[i] = new,
            None => events.push(new),
        }
    }
}

fn get_metric_usage_ratio(metrics: &BTreeMap<String, i64>, target_usage: i64) -> f64 {
    let metrics_total: i64 = metrics.values().sum();
    let current_usage = metrics_total / metrics.len() as i64;
    current_usage as f64 / target_usage as f64
}

fn replicas_change(period_seconds: u32, scale_events: &[TimestampedScaleEvent], now: i64) -> i32 {
    let cutoff = now - i64::from(period_seconds) * 1000;
    let mut replicas = 0;
    for rec in scale_events {
        if rec.timestamp > cutoff {
            replicas += rec.replica_change;
        }
    }
    replicas
}

fn longest_policy_period(rules: &RulesSettings) -> i64 {
    let mut longest = 0;
    for policy in &rules.policies {
        if policy.period_seconds > longest {
            longest = policy.period_seconds;
        }
    }
    i64::from(longest)
}
