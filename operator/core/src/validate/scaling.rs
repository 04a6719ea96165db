//! `spec.scaling` as values that the autoscaler can reckon with: integers, every default of an HPA filled in.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pagoda_crds::api::{
    Behavior, ManagedBy, Metric, PolicyKind, PrometheusQuery, Scaling, ScalingPolicy, ScalingRules,
    SelectPolicy, Target,
};

use super::{ScheduleSetting, ValidateError, schedule::schedule};
use crate::quantity::{QuantityError, parse_milli};

/// How many pods, and what moves their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalingSettings {
    /// Fewest pods.
    pub min_replicas: u32,
    /// Most pods, at least `max(min_replicas, 1)`.
    pub max_replicas: u32,
    /// Seconds without a request before zero.
    pub idle_seconds: u32,
    /// Seconds over which metrics are averaged.
    pub window_seconds: u32,
    /// What each pod should carry, or clients feel.
    pub targets: Vec<TargetSetting>,
    /// Targets of figures that a Prometheus knows.
    pub prometheus: Option<PrometheusSettings>,
    /// How fast the number may change.
    pub behavior: BehaviorSettings,
    /// What a burst may do beyond that; none if nothing.
    pub panic: Option<PanicSettings>,
    /// Times at which at least so many pods run.
    pub schedules: Arc<[ScheduleSetting]>,
    /// Seconds after which a pod that does not answer yet is no longer on its way.
    pub progress_deadline_seconds: u32,
    /// Goes on with a trend upwards.
    pub follows_trend: bool,
    /// Expects what the same hour of the same weekday brought.
    pub expects_recurrence: bool,
    /// Whether Pagoda's autoscaler owns the number.
    pub managed_by_pagoda: bool,
}

impl ScalingSettings {
    /// Whether anything could ever move the number of pods.
    pub fn is_fixed(&self) -> bool {
        self.min_replicas == self.max_replicas
    }

    /// What a Prometheus is asked.
    pub fn queries(&self) -> &[QuerySetting] {
        self.prometheus.as_ref().map_or(&[], |p| &p.queries)
    }
}

/// A target of a metric that gateways and pods tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetSetting {
    /// The metric.
    pub metric: Metric,
    /// What is wanted of it.
    pub value: TargetValue,
}

/// What is wanted of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetValue {
    /// So many thousandths for each pod; at least 1.
    Each {
        /// Thousandths.
        milli: u64,
    },
    /// So full a KV cache, averaged over the pods.
    Utilization {
        /// Percent, 1 to 100.
        percent: u32,
    },
    /// A percentile of a latency.
    Latency {
        /// 1 to 99.
        percentile: u32,
        /// What it should stay under; at least 1.
        milliseconds: u32,
    },
}

/// What is asked of a Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusSettings {
    /// Name of the server.
    pub server: String,
    /// Seconds between two questions.
    pub interval_seconds: u32,
    /// Seconds beyond which a figure is absent.
    pub max_age_seconds: u32,
    /// Questions, in the order of the spec.
    pub queries: Vec<QuerySetting>,
}

/// A question to a Prometheus, and the target for its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuerySetting {
    /// Name that decisions call it by.
    pub name: Arc<str>,
    /// PromQL.
    pub query: String,
    /// The target.
    pub value: QueryValue,
}

/// The target for a question's answer, in thousandths; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryValue {
    /// HPA's `AverageValue`: so much of the answer for each pod.
    Each(u64),
    /// HPA's `Value`: so much in all.
    Whole(u64),
}

/// How fast the number of pods may change, in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BehaviorSettings {
    /// Rules for more pods.
    pub up: RulesSettings,
    /// Rules for fewer pods.
    pub down: RulesSettings,
}

/// Rules for one direction, defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesSettings {
    /// Thousandths by which a metric may miss its target in this direction.
    pub tolerance_milli: u32,
    /// Seconds of earlier recommendations that are looked at.
    pub window_seconds: u32,
    /// Which policy counts.
    pub select: SelectPolicy,
    /// How much may change in how long; at least one unless `select` is Disabled.
    pub policies: Vec<ScalingPolicy>,
}

/// What a burst may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanicSettings {
    /// Seconds of the short window.
    pub window_seconds: u32,
    /// Percent of the pods that answer which that window must ask for.
    pub threshold_percent: u32,
}

pub(super) fn validate_scaling(
    scaling: &Scaling,
    progress_deadline_seconds: u32,
) -> Result<ScalingSettings, ValidateError> {
    if scaling.min_replicas > scaling.max_replicas || scaling.max_replicas == 0 {
        return Err(ValidateError::Bounds {
            min: scaling.min_replicas,
            max: scaling.max_replicas,
        });
    }
    let targets = scaling.targets.iter().map(target);
    let schedules = scaling.schedules.iter();
    let schedules = schedules.map(|s| schedule(s, scaling.max_replicas));
    let queries = scaling.prometheus.as_ref().map(|prometheus| {
        let queries = prometheus.queries.iter().map(query);
        Ok::<_, ValidateError>(PrometheusSettings {
            server: prometheus.server.clone(),
            interval_seconds: prometheus.interval_seconds.max(1),
            max_age_seconds: prometheus.max_age_seconds.max(1),
            queries: queries.collect::<Result<_, _>>()?,
        })
    });
    Ok(ScalingSettings {
        min_replicas: scaling.min_replicas,
        max_replicas: scaling.max_replicas,
        idle_seconds: scaling.idle_seconds,
        window_seconds: scaling.window_seconds.max(1),
        targets: targets.collect::<Result<_, _>>()?,
        prometheus: queries.transpose()?,
        behavior: behavior(scaling)?,
        panic: scaling.panic.enabled.then_some(PanicSettings {
            window_seconds: scaling.panic.window_seconds.max(1),
            threshold_percent: scaling.panic.threshold_percent,
        }),
        schedules: schedules.collect::<Result<_, _>>()?,
        progress_deadline_seconds,
        follows_trend: scaling.look_ahead.trend,
        expects_recurrence: scaling.look_ahead.recurring,
        managed_by_pagoda: scaling.managed_by == ManagedBy::Pagoda,
    })
}

fn target(target: &Target) -> Result<TargetSetting, ValidateError> {
    let wants = |field: &'static str| ValidateError::Field(field);
    let value = match target.metric {
        Metric::InFlightRequests
        | Metric::RequestsPerSecond
        | Metric::QueuedRequests
        | Metric::TokensPerSecond => {
            let each = target.average_value.as_ref().ok_or_else(|| {
                wants("scaling.targets: this metric takes averageValue, such as \"8\"")
            })?;
            TargetValue::Each {
                milli: milli("scaling.targets.averageValue", each, 1_000_000_000)?,
            }
        }
        Metric::KvCacheUtilization => TargetValue::Utilization {
            percent: target
                .percent
                .filter(|percent| (1..=100).contains(percent))
                .ok_or_else(|| {
                    wants("scaling.targets: KvCacheUtilization takes percent, from 1 to 100")
                })?,
        },
        Metric::TimeToFirstToken | Metric::InterTokenLatency => TargetValue::Latency {
            percentile: target.percentile.unwrap_or(95).clamp(1, 99),
            milliseconds: target
                .milliseconds
                .filter(|milliseconds| *milliseconds > 0)
                .ok_or_else(|| wants("scaling.targets: a latency takes milliseconds"))?,
        },
    };
    Ok(TargetSetting {
        metric: target.metric,
        value,
    })
}

fn query(query: &PrometheusQuery) -> Result<QuerySetting, ValidateError> {
    const MOST: u64 = 1_000_000_000_000;
    let value = match (&query.average_value, &query.value) {
        (Some(each), None) => QueryValue::Each(milli(
            "scaling.prometheus.queries.averageValue",
            each,
            MOST,
        )?),
        (None, Some(whole)) => {
            QueryValue::Whole(milli("scaling.prometheus.queries.value", whole, MOST)?)
        }
        _ => {
            return Err(ValidateError::Field(
                "a query of scaling.prometheus takes either averageValue or value",
            ));
        }
    };
    Ok(QuerySetting {
        name: query.name.as_str().into(),
        query: query.query.clone(),
        value,
    })
}

/// Thousandths, from 1 to `most`.
fn milli(field: &'static str, quantity: &Quantity, most: u64) -> Result<u64, ValidateError> {
    let wrong = |actual: String| ValidateError::Quantity {
        field,
        expected: "a quantity from 1m to the field's bound",
        actual,
    };
    let parsed = parse_milli(quantity).map_err(|QuantityError(actual)| wrong(actual))?;
    u64::try_from(parsed)
        .ok()
        .filter(|milli| (1..=most).contains(milli))
        .ok_or_else(|| wrong(quantity.0.clone()))
}

/// HPA's defaults: up at most 4 pods or 100 percent in 15 seconds, down all at once after the window.
fn behavior(scaling: &Scaling) -> Result<BehaviorSettings, ValidateError> {
    let every_15_seconds = |kind, value| ScalingPolicy {
        kind,
        value,
        period_seconds: 15,
    };
    let none = Behavior::default();
    let behavior = scaling.behavior.as_ref().unwrap_or(&none);
    let up = [
        every_15_seconds(PolicyKind::Pods, 4),
        every_15_seconds(PolicyKind::Percent, 100),
    ];
    let down = [every_15_seconds(PolicyKind::Percent, 100)];
    Ok(BehaviorSettings {
        up: rules(behavior.scale_up.as_ref(), scaling, 0, &up)?,
        down: rules(
            behavior.scale_down.as_ref(),
            scaling,
            scaling.scale_down_stabilization_seconds,
            &down,
        )?,
    })
}

fn rules(
    rules: Option<&ScalingRules>,
    scaling: &Scaling,
    window_seconds: u32,
    policies: &[ScalingPolicy],
) -> Result<RulesSettings, ValidateError> {
    let none = ScalingRules::default();
    let rules = rules.unwrap_or(&none);
    let tolerance_milli = match &rules.tolerance {
        None => scaling.tolerance_percent * 10,
        Some(tolerance) => tolerance_milli(tolerance)?,
    };
    let own = rules.policies.as_deref().filter(|own| !own.is_empty());
    Ok(RulesSettings {
        tolerance_milli,
        window_seconds: rules.stabilization_window_seconds.unwrap_or(window_seconds),
        select: rules.select_policy.unwrap_or_default(),
        policies: own.unwrap_or(policies).to_vec(),
    })
}

fn tolerance_milli(tolerance: &Quantity) -> Result<u32, ValidateError> {
    let wrong = |actual: String| ValidateError::Quantity {
        field: "scaling.behavior.tolerance",
        expected: "a quantity from 0 to 1",
        actual,
    };
    let parsed = parse_milli(tolerance).map_err(|QuantityError(actual)| wrong(actual))?;
    u32::try_from(parsed)
        .ok()
        .filter(|milli| *milli <= 1000)
        .ok_or_else(|| wrong(tolerance.0.clone()))
}
