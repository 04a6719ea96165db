//! Decides on what was looked at: what the core says, what other scalers and cold starts leave of it, and who is told.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use pagoda_crds::api::Metric;
use pagoda_operator_core::{
    autoscale::{
        Decision, GatewayReading, History, Moment, Observation, PodReading, QueryReading, Reason,
        ServiceReadings, decide, observe,
    },
    status::Standing,
};
use tokio::time::Instant;

use super::{
    Autoscaler, FIXED_ROUNDS, Look, Outcome, ROUND,
    act::Change,
    pods,
    signals::{DecisionSignal, Figure, ServiceSignals},
    slot,
};
use crate::{context::Context, key::Key, scalers::Conflict, stores::ScaledSpec};

impl Autoscaler {
    /// Decides on every service that was looked at.
    pub(super) fn judge(
        &mut self,
        context: &Context,
        mut looks: Vec<Look>,
        answers: Vec<Option<PodReading>>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let mut answers = answers.into_iter();
        let now = Instant::now();
        let at = Moment {
            now: self.clock.elapsed().as_millis() as u64,
            unix_seconds: Timestamp::now().as_second(),
        };
        for look in &mut looks {
            let gateways = std::mem::take(&mut look.gateways);
            let pods = pods::seen(&look.pods, &mut answers, &context.stores.nodes, now);
            self.meters.note(context, &look.key, &pods, at.now);
            if let Some(spec) = look.row.scaled.as_ref() {
                let held = held(&gateways);
                let readings = ServiceReadings {
                    gateways,
                    pods,
                    queries: queries(context, &look.key, spec, now),
                };
                let seen = observe(look.current, readings);
                let decision = self.decide(context, look, spec, &seen, at, &mut outcome);
                let told = signal(spec, look.current, &seen, held, decision, now);
                let watched = self.watched.get(&look.key);
                let capacity = watched.map(|watched| watched.capacity.clone());
                let told = ServiceSignals {
                    capacity: capacity.unwrap_or_default(),
                    ..told
                };
                outcome.signals.push((look.key.clone(), told));
            }
        }
        outcome
    }

    /// Decides on one service. Of one whose number of pods somebody else owns, what is decided is left at that.
    fn decide(
        &mut self,
        context: &Context,
        look: &Look,
        spec: &ScaledSpec,
        seen: &Observation,
        at: Moment,
        outcome: &mut Outcome,
    ) -> Decision {
        let Some(watched) = self.watched.get_mut(&look.key) else {
            // It was watched a moment ago, by this very task.
            return decide(&spec.scaling, seen, History::default(), at).0;
        };
        let history = std::mem::take(&mut watched.history);
        let (mut decision, history) = decide(&spec.scaling, seen, history, at);
        watched.history = history;
        watched.looked(look.digest, decision.next_look);
        if Duration::from_millis(decision.next_look.saturating_sub(at.now)) < ROUND {
            self.early.push(look.key.clone());
            self.early_at = decision.next_look;
        }
        // What was learned changes slowly, and working it out costs more than a decision.
        if slot(&look.key) == self.rounds % FIXED_ROUNDS
            && let Some(learned) = watched.learn()
        {
            context.remember(&look.key, |memory| {
                memory.autoscaling.capacity = Some(learned);
            });
            context.queue.add(look.key.clone(), Duration::ZERO);
        }
        let uid = watched.uid.clone();
        let scalers = &context.stores.scalers;
        let conflict = scalers.conflict(&look.key, &context.stores.deployments);
        if !spec.scaling.managed_by_pagoda {
            let standing = conflict
                .filter(|c| c.counts(false))
                .map(|c| told(&c, false));
            self.stand(context, &look.key, standing.unwrap_or(Standing::Follows));
            return decision;
        }
        let standing = match conflict.filter(|conflict| conflict.counts(true)) {
            Some(conflict) => {
                decision.replicas = conflict.permitted(
                    look.current,
                    decision.replicas,
                    decision.inputs.min_replicas,
                );
                if conflict.pauses() {
                    decision.reason = Reason::ConflictingScaler;
                }
                told(&conflict, true)
            }
            None => self.permit(&uid, look, spec, seen, &mut decision),
        };
        context
            .decisions
            .note(&look.key, &decision, at.unix_seconds);
        let standing = trouble(context, &look.key, spec, standing);
        self.stand(context, &look.key, standing);
        if decision.replicas != look.current {
            outcome.changes.push(Change {
                service: look.key.clone(),
                uid,
                generation: look.row.generation,
                from: look.current,
                decision: decision.clone(),
            });
        }
        decision
    }

    /// Holds a decision back for what other services do; returns how the service stands.
    fn permit(
        &mut self,
        uid: &Arc<str>,
        look: &Look,
        spec: &ScaledSpec,
        seen: &Observation,
        decision: &mut Decision,
    ) -> Standing {
        let starts = look.current == 0 && decision.replicas > 0;
        if starts {
            let now = Instant::now();
            if !self.cold_starts.ask(uid, now, deadline(spec)) {
                decision.replicas = 0;
                decision.reason = Reason::WaitsForColdStart;
                let most = self.cold_starts.most().unwrap_or(0);
                return Standing::WaitsForColdStart { most };
            }
        } else if look.current == 0 || seen.ready > 0 {
            self.cold_starts.done(uid);
        }
        Standing::of(decision)
    }

    /// Has the status tell how a service stands, once that has lasted.
    fn stand(&mut self, context: &Context, key: &Key, standing: Standing) {
        let Some(watched) = self.watched.get_mut(key) else {
            return;
        };
        let Some(told) = watched.stands(standing, Instant::now()) else {
            return;
        };
        let is_news = context.remember(key, |memory| {
            let before = memory.autoscaling.standing.as_ref();
            let is_news = before != Some(&told);
            memory.autoscaling.standing = Some(told);
            is_news
        });
        if is_news {
            context.queue.add(key.clone(), Duration::ZERO);
        }
    }
}

/// Another scaler, in its finder's words.
fn told(conflict: &Conflict, managed_by_pagoda: bool) -> Standing {
    Standing::Told {
        reason: Conflict::REASON,
        message: conflict.message(managed_by_pagoda),
    }
}

/// What is wrong with a Prometheus explains why figures are missing; what is more than that goes before it.
fn trouble(context: &Context, service: &Key, spec: &ScaledSpec, standing: Standing) -> Standing {
    let Some(settings) = spec.scaling.prometheus.as_ref() else {
        return standing;
    };
    if matches!(
        standing,
        Standing::Told { .. } | Standing::PodsNotReady | Standing::WaitsForColdStart { .. }
    ) {
        return standing;
    }
    let trouble = context
        .prometheus
        .trouble(service, settings, Instant::now());
    trouble.map_or(standing, |trouble| Standing::Told {
        reason: trouble.reason,
        message: trouble.message,
    })
}

/// What a Prometheus says to each query of a service.
fn queries(
    context: &Context,
    service: &Key,
    spec: &ScaledSpec,
    now: Instant,
) -> Vec<Option<QueryReading>> {
    let settings = spec.scaling.prometheus.as_ref();
    settings.map_or_else(Vec::new, |settings| {
        context.prometheus.of(service, settings, now)
    })
}

/// Requests that wait for a pod; none when not every gateway tells.
fn held(gateways: &[Option<GatewayReading>]) -> Option<u64> {
    let told = gateways.iter().map(|gateway| Some(gateway.as_ref()?.held));
    told.sum::<Option<u64>>().filter(|_| !gateways.is_empty())
}

/// How long a service may take from zero.
pub(super) fn deadline(spec: &ScaledSpec) -> Duration {
    Duration::from_secs(spec.scaling.progress_deadline_seconds.into())
}

/// Figures of one service, for whoever serves them on.
fn signal(
    spec: &ScaledSpec,
    current: u32,
    seen: &Observation,
    held: Option<u64>,
    decision: Decision,
    now: Instant,
) -> ServiceSignals {
    let mut told = ServiceSignals::unknown(now, current);
    told.ready = seen.ready;
    told.pending = decision.inputs.pending;
    told.held = held;
    let of_window = decision.inputs.recommendations.iter().any(|r| r.partial);
    told.partial = of_window || !seen.demand.complete;
    for metric in Metric::ALL {
        let milli = decision.inputs.measured.get(metric);
        let figure = milli.map(|milli| Figure {
            milli,
            age_millis: 0,
        });
        told.set(metric, figure);
    }
    let queries = spec.scaling.queries().iter();
    told.queries = queries
        .zip(seen.queries.iter().copied().chain(std::iter::repeat(None)))
        .map(|(query, reading)| {
            let figure = reading.map(|reading| Figure {
                milli: reading.value_milli,
                age_millis: reading.age_millis,
            });
            (query.name.clone(), figure)
        })
        .collect();
    told.pods = pods::signals(&seen.pods);
    if spec.scaling.managed_by_pagoda {
        told.decision = Some(DecisionSignal {
            replicas: decision.replicas,
            reason: decision.reason.as_str(),
        });
        told.details = Some(Arc::new(decision));
    }
    told
}
