//! What a decision must remember of earlier moments.

use pagoda_crds::api::{CapacityStatus, Metric};

use super::{
    Measured, Millis, Moment, Observation, PodSeen,
    by_pod::ByPod,
    capacity::{Learner, RequestCost},
    forecast::Forecast,
    hpa::Pace,
    panic::{Panic, is_beyond_chance},
    recommend::kv_usage,
    schedule::InEffect,
    series::{Series, Spans},
};
use crate::validate::{ScalingSettings, TargetValue};

/// Which percentile of a latency is told where no target says.
const USUAL_PERCENTILE: u32 = 95;

/// Windows of what was measured, earlier recommendations and changes, the state of a burst, and since when the service is idle.
///
/// A new history knows nothing before its first moment, and so removes nothing until that moment has left the windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    started: Option<Millis>,
    /// Since when nothing was asked of ready pods.
    idle_since: Option<Millis>,
    /// When somebody last did not tell his part.
    last_partial: Option<Millis>,
    in_flight: Series,
    queued: Series,
    kv_usage: Series,
    gateway_arrivals: Series,
    pod_arrivals: Series,
    tokens: Series,
    /// What each pod last counted, by its name.
    counters: ByPod<Counters>,
    /// Sums of what pods counted since this history began.
    arrived: u64,
    generated: u64,
    /// The number of pods at the last look, and what was asked for then.
    current: u32,
    asked: Option<(u32, Millis)>,
    /// Since when fewer pods answer than were asked for without one more, and how many do.
    short: Option<(Millis, u32)>,
    pub(super) pace: Pace,
    pub(super) panic: Panic,
    pub(super) schedules: InEffect,
    pub(super) forecast: Forecast,
    /// None before there was a pod: thousands of services may wait at zero.
    pub(super) learner: Option<Box<Learner>>,
}

/// Counters of one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    arrived: Option<u64>,
    generated: u64,
}

impl History {
    /// A history that begins with what was learned before, as the status holds it.
    pub fn restore(capacity: &[CapacityStatus]) -> Self {
        Self {
            learner: (!capacity.is_empty()).then(|| Box::new(Learner::restore(capacity))),
            ..Self::default()
        }
    }

    /// What was learned of the pods, unrounded.
    pub fn capacity(&self) -> Vec<CapacityStatus> {
        self.learner
            .as_ref()
            .map_or_else(Vec::new, |learner| learner.entries())
    }

    /// What a request costs at present, if known.
    pub fn request_cost(&self) -> Option<RequestCost> {
        self.learner.as_ref()?.request_cost()
    }

    /// Takes in a moment before it is decided on.
    pub(super) fn observe(&mut self, settings: &ScalingSettings, seen: &Observation, at: Moment) {
        let now = at.now;
        self.note_number(settings, seen.current, now);
        self.note_shortfall(seen, now);
        if !seen.demand.complete {
            self.last_partial = Some(now);
        }
        if seen.current == 0 {
            // What was while there were no pods says nothing of how much there is once there are some.
            self.in_flight.restart();
            self.queued.restart();
        }
        let spans = spans(settings);
        self.in_flight
            .note_gauge(seen.demand.in_flight_milli(), now, spans);
        self.queued
            .note_gauge(seen.demand.queued_milli(), now, spans);
        self.kv_usage
            .note_gauge(mean_kv_usage_micro(&seen.pods), now, spans);
        if self.learner.is_some() || !seen.pods.is_empty() {
            let learner = self.learner.get_or_insert_default();
            learner.note(&seen.pods, spans.long_millis, now);
        }
        let grew = self.note_counters(&seen.pods);
        let told = seen.pods.iter().any(|pod| pod.reading.is_some());
        let came = self
            .gateway_arrivals
            .note_counter(seen.demand.gateway_arrivals, now, spans);
        self.pod_arrivals
            .note_counter(told.then_some(self.arrived), now, spans);
        self.tokens
            .note_counter(told.then_some(self.generated), now, spans);
        // A pod that still loads is not idle: it was started for someone.
        let idle = seen.demand.is_quiet() && !came && !grew && seen.ready > 0 && seen.current > 0;
        self.idle_since = idle.then(|| self.idle_since.unwrap_or(now));
    }

    /// What was measured, averaged over the window of the rule.
    pub(super) fn measured(&self, settings: &ScalingSettings) -> Measured {
        let mut measured = self.over(spans(settings).long_millis);
        for metric in [Metric::TimeToFirstToken, Metric::InterTokenLatency] {
            let learner = self.learner.as_ref();
            let millis = learner
                .and_then(|learner| learner.measured_millis(metric, percentile(settings, metric)));
            measured.set(metric, millis.map(u64::from));
        }
        measured
    }

    /// The same, averaged over the panic window.
    pub(super) fn measured_shortly(&self, settings: &ScalingSettings) -> Measured {
        self.over(spans(settings).short_millis)
    }

    /// What the last two looks both saw at least, of figures that a look tells by itself.
    pub(super) fn lasting(&self, settings: &ScalingSettings) -> Measured {
        let window = spans(settings).short_millis;
        let mut measured = Measured::default();
        measured.set(Metric::InFlightRequests, self.in_flight.lasting(window));
        measured.set(Metric::QueuedRequests, self.queued.lasting(window));
        measured
    }

    /// What the last look alone saw, of the same figures; none of them while that may be chance.
    pub(super) fn sudden(&self, settings: &ScalingSettings) -> Measured {
        let mut measured = Measured::default();
        let mean = self.in_flight.mean(spans(settings).long_millis);
        let (latest, queued) = (self.in_flight.latest(), self.queued.latest());
        if let (Some(latest), Some(mean)) = (latest, mean)
            && is_beyond_chance(latest, mean)
        {
            measured.set(Metric::InFlightRequests, Some(latest));
            measured.set(Metric::QueuedRequests, queued);
        }
        measured
    }

    fn over(&self, window: Millis) -> Measured {
        let mut measured = Measured::default();
        measured.set(Metric::InFlightRequests, self.in_flight.mean(window));
        measured.set(Metric::QueuedRequests, self.queued.mean(window));
        // Pods alone do not say how many arrive: they count no held request.
        let at_pods = self.pod_arrivals.rate_milli(window).unwrap_or(0);
        let at_gateways = self.gateway_arrivals.rate_milli(window);
        measured.set(
            Metric::RequestsPerSecond,
            at_gateways.map(|rate| rate.max(at_pods)),
        );
        measured.set(Metric::TokensPerSecond, self.tokens.rate_milli(window));
        let kv_usage = self.kv_usage.mean(window);
        measured.set(
            Metric::KvCacheUtilization,
            kv_usage.map(|micro| micro / 1000),
        );
        measured
    }

    /// Time from the creation of a pod until it answers, if known.
    pub(super) fn start_millis(&self) -> Option<Millis> {
        self.learner.as_ref()?.start_millis()
    }

    /// Millionths of their KV caches that pods use on average over the window of the rule.
    pub(super) fn kv_usage_micro(&self, settings: &ScalingSettings) -> Option<u64> {
        self.kv_usage.mean(spans(settings).long_millis)
    }

    /// Records what is asked for from now on.
    pub(super) fn ask(&mut self, replicas: u32, now: Millis) {
        self.asked = Some((replicas, now));
    }

    /// For how long nothing was asked.
    pub(super) fn idle_millis(&self, now: Millis) -> Option<Millis> {
        self.idle_since.map(|since| now.saturating_sub(since))
    }

    /// Whether somebody did not tell his part at some moment of the window of the rule.
    pub(super) fn is_partial(&self, settings: &ScalingSettings, now: Millis) -> bool {
        let window = spans(settings).long_millis;
        self.last_partial
            .is_some_and(|last| last == now || last.saturating_add(window) > now)
    }

    /// Whether less was seen than a whole window of the rule.
    pub(super) fn is_young(&self, settings: &ScalingSettings, now: Millis) -> bool {
        let window = spans(settings).long_millis;
        self.started
            .is_none_or(|started| started.saturating_add(window) > now)
    }

    /// Pods for which it takes longer than the deadline to get ready, or to be made at all.
    pub(super) fn overdue(
        &self,
        settings: &ScalingSettings,
        seen: &Observation,
        now: Millis,
    ) -> u32 {
        let deadline = Millis::from(settings.progress_deadline_seconds) * 1000;
        let late = self
            .short
            .is_some_and(|(since, _)| since.saturating_add(deadline) <= now);
        // One that answered before and starts again has as long again.
        let counts = |pod: &&PodSeen| {
            !pod.ready
                && pod.age_millis >= deadline
                && (late || self.counters.get(&pod.name).is_none())
        };
        let unready = seen.pods.iter().filter(counts).count() as u32;
        let missing = seen.current.saturating_sub(seen.pods.len() as u32);
        unready + if late { missing } else { 0 }
    }

    /// The number of pods may have changed since the last look, by our own hand or another's.
    fn note_number(&mut self, settings: &ScalingSettings, current: u32, now: Millis) {
        if self.started.is_none() {
            self.started = Some(now);
            self.pace.note(current, now);
        } else if current != self.current {
            let when = match self.asked {
                Some((asked, when)) if asked == current => when,
                _ => now,
            };
            self.pace
                .note_change(&settings.behavior, self.current, current, when);
        }
        self.current = current;
    }

    fn note_shortfall(&mut self, seen: &Observation, now: Millis) {
        self.short = match self.short {
            _ if seen.ready >= seen.current => None,
            Some((since, ready)) if seen.ready <= ready => Some((since, seen.ready)),
            _ => Some((now, seen.ready)),
        };
    }

    /// Adds up what each pod counted since it was last seen, and says whether somebody came. A count that went back began
    /// anew, from zero.
    fn note_counters(&mut self, pods: &[PodSeen]) -> bool {
        let mut grew = false;
        for (pod, reading) in pods
            .iter()
            .filter_map(|pod| Some((pod, pod.reading.as_ref()?)))
        {
            let open = reading.running.saturating_add(reading.waiting);
            let now = Counters {
                arrived: reading
                    .finished
                    .map(|finished| finished.saturating_add(open)),
                generated: reading.generated_tokens,
            };
            let Some(known) = self.counters.get_mut(&pod.name) else {
                self.counters.add(pod.name.clone(), now);
                continue;
            };
            let before = std::mem::replace(known, now);
            let came = match (before.arrived, now.arrived) {
                (Some(before), Some(now)) => grown(before, now),
                _ => 0,
            };
            grew |= before.arrived != now.arrived;
            self.arrived = self.arrived.wrapping_add(came);
            self.generated = self
                .generated
                .wrapping_add(grown(before.generated, now.generated));
        }
        self.counters.settle(pods.iter().map(|pod| &pod.name));
        grew
    }
}

/// The percentile that a target is about, or the usual one.
fn percentile(settings: &ScalingSettings, metric: Metric) -> u32 {
    let of = settings
        .targets
        .iter()
        .find(|target| target.metric == metric);
    match of.map(|target| target.value) {
        Some(TargetValue::Latency { percentile, .. }) => percentile,
        _ => USUAL_PERCENTILE,
    }
}

/// Over the pods that tell, in millionths: fine enough that the sum can be had back from it.
fn mean_kv_usage_micro(pods: &[PodSeen]) -> Option<u64> {
    let (mut sum, mut told) = (0_u64, 0_u64);
    for usage in pods.iter().filter_map(kv_usage) {
        (sum, told) = (sum + usage, told + 1);
    }
    u64::checked_div(sum * 1000, told)
}

fn grown(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn spans(settings: &ScalingSettings) -> Spans {
    let long_millis = Millis::from(settings.window_seconds.max(1)) * 1000;
    let short = settings
        .panic
        .map_or(settings.window_seconds, |panic| panic.window_seconds);
    Spans {
        short_millis: (Millis::from(short.max(1)) * 1000).min(long_millis),
        long_millis,
    }
}
