//! What KEDA is answered: a trigger's metadata in, a figure out. No network and no clock of its own.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pagoda_crds::api::Metric;
use pagoda_operator_core::quantity::parse_milli;
use tokio::time::Instant;

use super::messages::{MetricSpec, MetricValue, ScaledObjectRef};
use crate::{
    autoscaler::signals::Signals,
    key::Key,
    metrics_api::served::{self, Served},
};

/// An answer that KEDA shows to who wrote the ScaledObject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScalerError {
    /// Something must be written into the trigger.
    #[error("the trigger's metadata lack {key}: write {key}: {example}")]
    Missing {
        /// What.
        key: &'static str,
        /// For example.
        example: &'static str,
    },
    /// Something in it is wrong.
    #[error("the trigger's metadata have {key}: {actual:?}: {expected}")]
    Wrong {
        /// What.
        key: &'static str,
        /// What stands there.
        actual: String,
        /// What may stand there.
        expected: String,
    },
    /// Another metric was asked for than the trigger names.
    #[error("the trigger is of the metric {wanted}, and {asked} was asked for")]
    OtherMetric {
        /// The trigger's.
        wanted: &'static str,
        /// The question's.
        asked: String,
    },
    /// Nobody knows it at this moment. KEDA changes nothing then.
    #[error(
        "nobody knows {what} of {service} now: is there an InferenceService of this name, and do its gateway and pods tell their load?"
    )]
    Unknown {
        /// Which figure.
        what: &'static str,
        /// Namespace and name.
        service: String,
    },
}

/// A trigger that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    service: Key,
    served: Served,
    query: Option<String>,
}

impl Trigger {
    /// Reads a trigger. Words that are KEDA's own are left to it.
    pub fn read(asker: &ScaledObjectRef) -> Result<Self, ScalerError> {
        let service = text(&asker.scaler_metadata, "service")
            .ok_or_else(|| missing("service", "NAME, of an InferenceService in this namespace"))?;
        let word = text(&asker.scaler_metadata, "metric")
            .ok_or_else(|| missing("metric", "InFlightRequests"))?;
        let served = Served::called(word).ok_or_else(|| {
            let metrics = Metric::ALL.map(Metric::as_str);
            let others = [Served::Query, Served::DesiredReplicas].map(Served::name);
            let all = [&metrics[..], &others[..]].concat().join(", ");
            wrong("metric", word, format!("write one of {all}"))
        })?;
        let query = text(&asker.scaler_metadata, "query").map(str::to_owned);
        if served == Served::Query && query.is_none() {
            return Err(missing(
                "query",
                "NAME, of a query in spec.scaling.prometheus",
            ));
        }
        Ok(Self {
            service: Key::new(&asker.namespace, service),
            served,
            query,
        })
    }

    /// Whether a request runs, waits or is held, so that there must be pods.
    ///
    /// That nobody asks for anything is said only when everybody has told: KEDA would go to zero.
    pub fn is_active(&self, signals: &Signals, now: Instant) -> Result<bool, ScalerError> {
        let seen = signals
            .of(&self.service)
            .filter(|seen| served::is_fresh(seen, now))
            .ok_or_else(|| self.unknown("whether there are requests"))?;
        if seen.is_active() {
            return Ok(true);
        }
        let knows_all = !seen.partial
            && seen.held.is_some()
            && seen.metric(Metric::InFlightRequests, now).is_some();
        knows_all
            .then_some(false)
            .ok_or_else(|| self.unknown("whether there are requests"))
    }

    /// The metric and its target, for an HPA of KEDA's.
    pub fn spec(&self, asker: &ScaledObjectRef) -> Result<MetricSpec, ScalerError> {
        let target = text(&asker.scaler_metadata, "targetValue").ok_or_else(|| {
            missing(
                "targetValue",
                "\"8\", how much of the metric each pod should carry",
            )
        })?;
        let milli = parse_milli(&Quantity(target.to_owned()))
            .ok()
            .filter(|milli| (1..=1_000_000_000_000).contains(milli))
            .ok_or_else(|| {
                let expected = "write a number above zero, such as 8 or 0.5";
                wrong("targetValue", target, expected.to_owned())
            })?;
        // At most 10^12, which a double holds exactly.
        let milli = milli as u64;
        Ok(MetricSpec {
            metric_name: self.served.name().to_owned(),
            target_size: i64::try_from(milli.div_ceil(1000)).unwrap_or(i64::MAX),
            target_size_float: milli as f64 / 1000.0,
        })
    }

    /// The figure. `asked` is the name out of [`Self::spec`].
    pub fn value(
        &self,
        asked: &str,
        signals: &Signals,
        now: Instant,
    ) -> Result<MetricValue, ScalerError> {
        let name = self.served.name();
        if asked != name {
            return Err(ScalerError::OtherMetric {
                wanted: name,
                asked: asked.chars().take(128).collect(),
            });
        }
        let seen = signals
            .of(&self.service)
            .ok_or_else(|| self.unknown(name))?;
        let series = served::of_service(&self.service, &seen, self.served, now);
        let wanted = series.into_iter().find(|series| {
            self.query.is_none() || series.query.as_deref() == self.query.as_deref()
        });
        let figure = wanted
            .and_then(|series| series.figure)
            .ok_or_else(|| self.unknown(name))?;
        Ok(MetricValue {
            metric_name: name.to_owned(),
            metric_value: i64::try_from(figure.milli.div_ceil(1000)).unwrap_or(i64::MAX),
            metric_value_float: figure.milli as f64 / 1000.0,
        })
    }

    fn unknown(&self, what: &'static str) -> ScalerError {
        ScalerError::Unknown {
            what,
            service: self.service.to_string(),
        }
    }
}

fn text<'a>(metadata: &'a HashMap<String, String>, key: &str) -> Option<&'a str> {
    let text = metadata.get(key)?.trim();
    (!text.is_empty()).then_some(text)
}

fn missing(key: &'static str, example: &'static str) -> ScalerError {
    ScalerError::Missing { key, example }
}

fn wrong(key: &'static str, actual: &str, expected: String) -> ScalerError {
    ScalerError::Wrong {
        key,
        actual: actual.chars().take(128).collect(),
        expected,
    }
}
