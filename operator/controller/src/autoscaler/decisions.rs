//! What was decided in the last hour, and from what: for whoever asks why.
//!
//! # Guarantees
//! All services together take no more than [`BUDGET`] bytes; each gets an equal share, and loses its oldest decisions beyond it.
//! A decision that says nothing new makes the last one longer.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pagoda_operator_core::{
    autoscale::{Decision, Reason, Recommendation, Unit, What},
    explain::{DecisionLog, DecisionSpan, MetricSpan},
};

use crate::key::Key;

/// Bytes for all services.
pub const BUDGET: usize = 16 << 20;
/// What is older says nothing of today.
const KEPT_SECONDS: i64 = 3600;
/// Percent by which a figure may move and still be nearly the same.
const NEAR_PERCENT: u64 = 10;
/// What the allocator adds to each piece of memory, and a map to each entry.
const OVERHEAD: usize = 16;

/// Decisions of the last hour.
#[derive(Debug, Default)]
pub struct Decisions(Mutex<Logs>);

#[derive(Debug, Default)]
struct Logs {
    of: HashMap<Key, Log>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Log {
    spans: VecDeque<Span>,
    bytes: usize,
}

#[derive(Debug)]
struct Span {
    from: i64,
    until: i64,
    held: u64,
    current: u32,
    replicas: u32,
    ready: u32,
    pending: u32,
    min_replicas: u32,
    panic: Option<u32>,
    foreseen: Option<u32>,
    limit: Option<u32>,
    winner: Option<u8>,
    reason: Reason,
    figures: Box<[Figure]>,
    /// The same for all spans of a spec.
    targets: Arc<[Target]>,
}

/// What stands in the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    what: What,
    unit: Unit,
    milli: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figure {
    /// None when nobody told.
    milli: Option<u64>,
    replicas: u32,
}

impl Decisions {
    /// Notes a decision.
    pub fn note(&self, service: &Key, decision: &Decision, unix_seconds: i64) {
        let mut logs = self.lock();
        let share = BUDGET / (logs.of.len() + 1);
        let log = match logs.of.get_mut(service) {
            Some(log) => log,
            None => logs.of.entry(service.clone()).or_default(),
        };
        let before = log.bytes;
        log.note(decision, unix_seconds);
        log.trim(share, unix_seconds);
        let after = log.bytes;
        logs.bytes = logs.bytes + after - before;
        if logs.bytes > BUDGET {
            logs.trim_all(unix_seconds);
        }
    }

    /// What was decided about a service; none when nothing was.
    pub fn of(&self, service: &Key, now: i64) -> Option<DecisionLog> {
        let logs = self.lock();
        let log = logs.of.get(service)?;
        Some(DecisionLog {
            namespace: service.namespace().to_owned(),
            name: service.name().to_owned(),
            now,
            spans: log.spans.iter().map(Span::told).collect(),
        })
    }

    /// Forgets services that are no more, and what is too old.
    pub fn retain(&self, exists: impl Fn(&Key) -> bool, unix_seconds: i64) {
        let mut logs = self.lock();
        logs.of.retain(|key, _| exists(key));
        logs.trim_all(unix_seconds);
    }

    fn lock(&self) -> MutexGuard<'_, Logs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Logs {
    fn trim_all(&mut self, now: i64) {
        let share = BUDGET / self.of.len().max(1);
        for log in self.of.values_mut() {
            log.trim(share, now);
        }
        self.bytes = self.of.values().map(|log| log.bytes).sum();
    }
}

impl Log {
    fn note(&mut self, decision: &Decision, now: i64) {
        if let Some(last) = self.spans.back_mut()
            && last.says(decision)
        {
            last.until = now;
            return;
        }
        let earlier = self.spans.back().map(|last| &last.targets);
        let span = Span::new(decision, now, earlier);
        self.bytes += span.bytes();
        // A service at rest has one, and there are thousands of those.
        if self.spans.len() == self.spans.capacity() && self.spans.len() < 4 {
            self.spans.reserve_exact(1);
        }
        self.spans.push_back(span);
    }

    fn trim(&mut self, share: usize, now: i64) {
        let is_over = |log: &Self| {
            let first = log.spans.front();
            first.is_some_and(|first| log.bytes > share || now - first.until > KEPT_SECONDS)
        };
        while is_over(self) {
            let gone = self.spans.pop_front();
            self.bytes -= gone.map_or(0, |span| span.bytes());
        }
        if self.spans.capacity() > 4 * self.spans.len() + 16 {
            self.spans.shrink_to(2 * self.spans.len());
        }
    }
}

impl Span {
    fn new(decision: &Decision, now: i64, earlier: Option<&Arc<[Target]>>) -> Self {
        let inputs = &decision.inputs;
        let targets = inputs.recommendations.iter();
        let same = earlier.filter(|earlier| is_of(earlier, &inputs.recommendations));
        Self {
            from: now,
            until: now,
            held: inputs.demand.held,
            current: inputs.current,
            replicas: decision.replicas,
            ready: inputs.ready,
            pending: inputs.pending,
            min_replicas: inputs.min_replicas,
            panic: inputs.panic,
            foreseen: inputs.foreseen.map(|foreseen| foreseen.replicas),
            limit: inputs.limit,
            winner: inputs.winner,
            reason: decision.reason,
            figures: targets.clone().map(Figure::of).collect(),
            targets: same
                .cloned()
                .unwrap_or_else(|| targets.map(Target::of).collect()),
        }
    }

    /// Whether it speaks of a decision too.
    fn says(&self, decision: &Decision) -> bool {
        let inputs = &decision.inputs;
        let numbers = (
            self.current,
            self.replicas,
            self.ready,
            self.pending,
            self.min_replicas,
            self.panic.is_some(),
            self.limit,
            self.winner,
            self.reason,
        );
        let theirs = (
            inputs.current,
            decision.replicas,
            inputs.ready,
            inputs.pending,
            inputs.min_replicas,
            inputs.panic.is_some(),
            inputs.limit,
            inputs.winner,
            decision.reason,
        );
        numbers == theirs
            && is_near(self.held, inputs.demand.held, 0)
            && is_of(&self.targets, &inputs.recommendations)
            && self
                .figures
                .iter()
                .zip(&inputs.recommendations)
                .all(|(figure, now)| figure.says(now))
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + OVERHEAD + size_of_val(&*self.figures)
    }

    fn told(&self) -> DecisionSpan {
        let figures = self.targets.iter().zip(&*self.figures);
        DecisionSpan {
            from: self.from,
            until: self.until,
            current: self.current,
            replicas: self.replicas,
            ready: self.ready,
            pending: self.pending,
            held: self.held,
            reason: self.reason.as_str().to_owned(),
            min_replicas: self.min_replicas,
            panic: self.panic,
            foreseen: self.foreseen,
            limit: self.limit,
            metrics: figures
                .map(|(target, figure)| told(target, *figure))
                .collect(),
            winner: self.winner.map(usize::from),
        }
    }
}

fn is_of(targets: &[Target], recommendations: &[Recommendation]) -> bool {
    let same = |(target, now): (&Target, &Recommendation)| {
        target.what == now.what && target.unit == now.unit && target.milli == now.target_milli
    };
    targets.len() == recommendations.len() && targets.iter().zip(recommendations).all(same)
}

/// Whether two figures are nearly the same, beside something of that size.
fn is_near(a: u64, b: u64, beside: u64) -> bool {
    let size = u128::from(a.max(b).max(beside));
    u128::from(a.abs_diff(b)) * 100 <= size * u128::from(NEAR_PERCENT)
}

impl Target {
    fn of(recommendation: &Recommendation) -> Self {
        Self {
            what: recommendation.what.clone(),
            unit: recommendation.unit,
            milli: recommendation.target_milli,
        }
    }
}

impl Figure {
    fn of(recommendation: &Recommendation) -> Self {
        Self {
            milli: recommendation.demand_milli,
            replicas: recommendation.replicas,
        }
    }

    fn says(&self, now: &Recommendation) -> bool {
        let near = match (self.milli, now.demand_milli) {
            (Some(a), Some(b)) => is_near(a, b, now.target_milli),
            (a, b) => a == b,
        };
        near && self.replicas == now.replicas
    }
}

fn told(target: &Target, figure: Figure) -> MetricSpan {
    let whole = |milli: u64| milli as f64 / 1000.0;
    MetricSpan {
        metric: target.what.as_str().to_owned(),
        unit: match target.unit {
            Unit::EachPod => "pods".to_owned(),
            Unit::Whole => "whole".to_owned(),
            Unit::Share => "share".to_owned(),
            Unit::Percentile(percentile) => format!("p{percentile}"),
        },
        value: figure.milli.map(whole),
        target: whole(target.milli),
        replicas: figure.replicas,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagoda_crds::api::Metric;
    use pagoda_operator_core::autoscale::Inputs;
    use proptest::prelude::*;

    fn decision(replicas: u32, demand_milli: u64) -> Decision {
        let recommendation = Recommendation {
            what: What::Metric(Metric::InFlightRequests),
            unit: Unit::EachPod,
            demand_milli: Some(demand_milli),
            target_milli: 8000,
            replicas,
            known: true,
            partial: false,
            carries_milli: None,
            least_millis: None,
        };
        Decision {
            replicas,
            reason: Reason::OnTarget,
            inputs: Inputs {
                current: replicas,
                recommendations: vec![recommendation],
                ..Inputs::default()
            },
            next_look: 0,
        }
    }

    fn key(name: &str) -> Key {
        Key::new("n", name)
    }

    fn spans(decisions: &Decisions, name: &str) -> Vec<(i64, i64, u32)> {
        let log = decisions.of(&key(name), 0).expect("noted");
        let spans = log.spans.iter();
        spans.map(|s| (s.from, s.until, s.replicas)).collect()
    }

    #[test]
    fn what_stays_nearly_the_same_is_one_span() {
        let decisions = Decisions::default();
        for second in 0..60 {
            decisions.note(
                &key("a"),
                &decision(2, 16_000 + second % 3 * 500),
                second as i64,
            );
        }
        decisions.note(&key("a"), &decision(3, 24_000), 60);
        assert_eq!(spans(&decisions, "a"), [(0, 59, 2), (60, 60, 3)]);
    }

    #[test]
    fn a_slow_rise_is_not_swallowed() {
        let decisions = Decisions::default();
        for second in 0..100_i64 {
            decisions.note(
                &key("a"),
                &decision(2, 10_000 + second as u64 * 200),
                second,
            );
        }
        assert!(spans(&decisions, "a").len() >= 8);
    }

    #[test]
    fn an_hour_is_kept() {
        let decisions = Decisions::default();
        for minute in 0..100_i64 {
            decisions.note(&key("a"), &decision(minute as u32, 0), minute * 60);
        }
        let spans = spans(&decisions, "a");
        assert_eq!((spans.len(), spans[0].0), (61, 39 * 60));
        decisions.retain(|_| true, 99 * 60 + 2 * KEPT_SECONDS);
        assert_eq!(
            decisions.of(&key("a"), 0).map(|log| log.spans.len()),
            Some(0)
        );
        decisions.retain(|_| false, 0);
        assert_eq!(decisions.of(&key("a"), 0), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn all_services_together_stay_within_the_budget_and_what_is_kept_is_the_newest(
            services in 1_usize..60, rounds in 1_i64..3000
        ) {
            let decisions = Decisions::default();
            for round in 0..rounds {
                for service in 0..services {
                    decisions.note(&key(&service.to_string()), &decision(round as u32 % 1000, 0), round);
                }
            }
            let logs = decisions.lock();
            prop_assert!(logs.bytes <= BUDGET);
            prop_assert_eq!(logs.bytes, logs.of.values().map(|log| log.spans.iter().map(Span::bytes).sum::<usize>()).sum::<usize>());
            for log in logs.of.values() {
                prop_assert_eq!(log.spans.back().map(|s| s.until), Some(rounds - 1));
                prop_assert!(log.spans.len() as i64 >= rounds.min(900));
            }
        }
    }
}
