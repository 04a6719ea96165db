//! Inputs and outputs of every service's last decision as metrics, made when they are scraped and kept nowhere.

use std::{fmt, sync::Arc};

use pagoda_crds::api::{CapacityStatus, Metric};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use tokio::time::Instant;

use super::signals::{ServiceSignals, Signals};
use crate::key::Key;

/// Figures of all services.
#[derive(Debug)]
pub struct Exported(pub Arc<Signals>);

type Row = (Key, Arc<ServiceSignals>);

impl Collector for Exported {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut rows = self.0.all();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        let mut family = Family {
            encoder: &mut encoder,
            rows: &rows,
        };
        family.numbers()?;
        family.figures()?;
        family.decisions()?;
        family.capacity()
    }
}

struct Family<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    rows: &'a [Row],
}

impl Family<'_, '_> {
    /// One series for each service that has the figure.
    fn each(
        &mut self,
        name: &str,
        help: &str,
        figure: impl Fn(&ServiceSignals) -> Option<f64>,
    ) -> fmt::Result {
        self.labelled(name, help, |told, tell| match figure(told) {
            Some(value) => tell(&[], value),
            None => Ok(()),
        })
    }

    /// Series with further labels.
    fn labelled(
        &mut self,
        name: &str,
        help: &str,
        series: impl Fn(
            &ServiceSignals,
            &mut dyn FnMut(&[(&str, &str)], f64) -> fmt::Result,
        ) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (key, told) in self.rows {
            let mut tell = |further: &[(&str, &str)], value: f64| {
                let mut labels = vec![("namespace", key.namespace()), ("name", key.name())];
                labels.extend_from_slice(further);
                let encoder = family.encode_family(&labels)?;
                ConstGauge::new(value).encode(encoder)
            };
            series(told, &mut tell)?;
        }
        Ok(())
    }

    fn numbers(&mut self) -> fmt::Result {
        let replicas = "Pods that a service's spec asks for";
        self.each("service_replicas", replicas, |s| Some(s.replicas.into()))?;
        let ready = "Pods of a service that answer";
        self.each("service_ready_replicas", ready, |s| Some(s.ready.into()))?;
        let pending = "Pods of a service that were asked for and do not answer yet";
        self.each("service_pending_replicas", pending, |s| {
            Some(s.pending.into())
        })?;
        let held = "Requests that wait in gateways for a pod";
        self.each("service_held_requests", held, |s| s.held.map(|n| n as f64))?;
        let age = "Seconds since a service was last looked at";
        let now = Instant::now();
        self.each("service_look_age_seconds", age, move |s| {
            Some((now - s.taken).as_secs_f64())
        })
    }

    fn figures(&mut self) -> fmt::Result {
        let help = "What was measured over the window of the rule: totals, shares of one, latencies in seconds";
        let now = Instant::now();
        self.labelled("service_metric", help, move |told, tell| {
            for metric in Metric::ALL {
                if let Some(figure) = told.metric(metric, now) {
                    tell(&[("metric", metric.as_str())], whole(figure.milli))?;
                }
            }
            for (query, figure) in &told.queries {
                if let Some(figure) = figure {
                    tell(&[("metric", query)], whole(figure.milli))?;
                }
            }
            Ok(())
        })?;
        let help = "What a target wants of a metric";
        self.recommendations("service_metric_target", help, |r| whole(r.target_milli))?;
        let help = "Pods that a target asks for by itself, before bounds and behavior";
        self.recommendations("service_recommended_replicas", help, |r| r.replicas.into())
    }

    fn recommendations(
        &mut self,
        name: &str,
        help: &str,
        figure: impl Fn(&pagoda_operator_core::autoscale::Recommendation) -> f64,
    ) -> fmt::Result {
        self.labelled(name, help, |told, tell| {
            let details = told.details.iter();
            for recommendation in details.flat_map(|d| &d.inputs.recommendations) {
                let labels = [("metric", recommendation.what.as_str())];
                tell(&labels, figure(recommendation))?;
            }
            Ok(())
        })
    }

    fn decisions(&mut self) -> fmt::Result {
        let help = "Pods that the autoscaler wants";
        self.each("service_desired_replicas", help, |s| {
            Some(s.decision?.replicas.into())
        })?;
        let help = "1 for the reason of the last decision";
        self.labelled("service_decision", help, |told, tell| match told.decision {
            Some(decision) => tell(&[("reason", decision.reason)], 1.0),
            None => Ok(()),
        })?;
        let help = "1 while a burst is answered beyond scaling.behavior";
        self.each("service_panic", help, |s| {
            Some(f64::from(u8::from(
                s.details.as_ref()?.inputs.panic.is_some(),
            )))
        })?;
        let help = "Fewest pods at this time, schedules counted in";
        self.each("service_min_replicas", help, |s| {
            Some(s.details.as_ref()?.inputs.min_replicas.into())
        })?;
        let help = "Pods that are foreseen to be needed when one that is started now has loaded";
        self.each("service_foreseen_replicas", help, |s| {
            Some(s.details.as_ref()?.inputs.foreseen?.replicas.into())
        })
    }

    fn capacity(&mut self) -> fmt::Result {
        let help = "Tokens that a pod generates per second at its latency target";
        self.learned("service_capacity_tokens_per_second", help, |c| {
            c.tokens_per_second.map(|n| n as f64)
        })?;
        let help = "Prompt tokens that a pod takes in per second when it does nothing else";
        self.learned("service_capacity_prefill_tokens_per_second", help, |c| {
            c.prefill_tokens_per_second.map(|n| n as f64)
        })?;
        let help = "Seconds from the creation of a pod until it answers";
        self.learned("service_start_seconds", help, |c| {
            c.start_milliseconds.map(|n| n as f64 / 1000.0)
        })
    }

    fn learned(
        &mut self,
        name: &str,
        help: &str,
        figure: impl Fn(&CapacityStatus) -> Option<f64>,
    ) -> fmt::Result {
        self.labelled(name, help, |told, tell| {
            for learned in told.capacity.iter() {
                let labels = [
                    ("revision", &*learned.revision),
                    ("hardware", &*learned.hardware),
                ];
                if let Some(value) = figure(learned) {
                    tell(&labels, value)?;
                }
            }
            Ok(())
        })
    }
}

fn whole(milli: u64) -> f64 {
    milli as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{autoscaler::signals::DecisionSignal, metrics::Metrics};

    #[test]
    fn what_a_decision_was_made_from_is_exported_and_what_is_unknown_is_absent() {
        let metrics = Metrics::default();
        let mut told = ServiceSignals::unknown(Instant::now(), 4);
        told.ready = 3;
        let figure = super::super::signals::Figure {
            milli: 12_500,
            age_millis: 0,
        };
        told.set(Metric::InFlightRequests, Some(figure));
        told.decision = Some(DecisionSignal {
            replicas: 5,
            reason: "AboveTarget",
        });
        metrics.signals.publish([(Key::new("team", "chat"), told)]);
        let text = metrics.render();
        for line in [
            "pagoda_operator_service_replicas{namespace=\"team\",name=\"chat\"} 4.0",
            "pagoda_operator_service_desired_replicas{namespace=\"team\",name=\"chat\"} 5.0",
            "pagoda_operator_service_metric{namespace=\"team\",name=\"chat\",metric=\"InFlightRequests\"} 12.5",
            "pagoda_operator_service_decision{namespace=\"team\",name=\"chat\",reason=\"AboveTarget\"} 1.0",
            "pagoda_operator_scrape_failures_total{target=\"pod\"} 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(!text.contains("metric=\"TokensPerSecond\""), "{text}");
        assert!(!text.contains("service_held_requests{"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
