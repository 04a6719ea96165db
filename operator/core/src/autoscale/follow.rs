//! The number of pods while there are some: what is recommended, at the pace that `behavior` allows, or that a burst demands.

use super::{
    Bounds, Foreseen, History, Inputs, Moment, Observation, Reason,
    hpa::{self, Tolerances},
    recommend::{burst, load_milli},
};
use crate::validate::ScalingSettings;

/// What is decided on.
#[derive(Clone, Copy)]
pub(super) struct Follow<'a> {
    pub settings: &'a ScalingSettings,
    pub seen: &'a Observation,
    pub at: Moment,
    pub bounds: Bounds,
}

/// The numbers on the way to a decision, each made from the one before.
#[derive(Clone, Copy, Debug)]
struct Steps {
    /// What metrics ask for.
    metrics: u32,
    /// And what is foreseen.
    wanted: u32,
    /// Between the recommendations of the windows.
    stabilized: u32,
    /// As `behavior` lets it.
    limited: u32,
    /// What comes of it.
    replicas: u32,
}

impl Follow<'_> {
    pub fn decide(self, inputs: &mut Inputs, history: &mut History) -> (u32, Reason) {
        let current = self.seen.current;
        let (settings, now) = (self.settings, self.at.now);
        let blind = self.is_blind(inputs);
        // Without targets the minimum alone counts.
        let metrics = inputs.recommendations.iter().map(|r| r.replicas).max();
        let metrics = metrics.unwrap_or(self.bounds.least);
        inputs.foreseen = self.foresee(inputs, history, blind);
        let foreseen = inputs.foreseen.map_or(0, |foreseen| foreseen.replicas);
        // A moment that does not tell all counts as a wish for what there is, so that fewer must be wished for anew.
        let holds = blind || history.is_young(settings, now);
        let floor = if holds { current } else { 0 };
        let wanted = metrics.max(foreseen).max(floor);
        let stabilized = history.pace.stabilize(&settings.behavior, current, wanted, now);
        let limited = history.pace.limit(&settings.behavior, current, stabilized, now);
        let ruled = self.bounds.clamp(limited).max(floor.min(self.bounds.most));
        inputs.panic = self.panic(inputs, history);
        let urgent = inputs.panic.map_or(0, |most| most.max(current));
        let replicas = self.without_runaway(inputs, ruled.max(self.bounds.clamp(urgent)));
        let steps = Steps { metrics, wanted, stabilized, limited, replicas };
        inputs.limit = (limited != stabilized).then_some(limited);
        (replicas, self.reason(inputs, steps, ruled, blind))
    }

    /// Whether something that a target asks of is not known, or not in full.
    fn is_blind(self, inputs: &Inputs) -> bool {
        let dark = inputs.recommendations.iter().any(|r| r.partial || !r.known);
        dark || (inputs.recommendations.is_empty() && !self.seen.demand.complete)
    }

    fn foresee(self, inputs: &Inputs, history: &mut History, blind: bool) -> Option<Foreseen> {
        let settings = self.settings;
        if !settings.expects_recurrence {
            history.forecast.forget_weeks();
        }
        if blind {
            return None;
        }
        let load = load_milli(&inputs.recommendations, &inputs.measured, self.seen.ready)?;
        let window = u64::from(settings.window_seconds) * 1000;
        history.forecast.note(load, window, self.at.now);
        if settings.expects_recurrence {
            history.forecast.note_week(load, self.at.now, self.at.unix_seconds);
        }
        let ahead_millis = history.start_millis()?;
        let trend = settings.follows_trend.then(|| history.forecast.trend(ahead_millis, window));
        let recurring = history.forecast.recurring(ahead_millis, self.at.unix_seconds);
        let load = trend.flatten().max(recurring)?;
        let tolerances = Tolerances::of(&settings.behavior);
        let replicas = hpa::average_value(load, 1000, self.seen.current, tolerances);
        (replicas > self.seen.current).then_some(Foreseen { ahead_millis, replicas })
    }

    fn panic(self, inputs: &Inputs, history: &mut History) -> Option<u32> {
        let Some(settings) = self.settings.panic else {
            history.panic.end();
            return None;
        };
        let wanted = burst(self.settings, &history.measured_shortly(self.settings));
        let stable = u64::from(self.settings.window_seconds) * 1000;
        history.panic.note(settings, stable, wanted, inputs.ready, self.at.now)
    }

    /// Where pods do not get ready in time, more of them may come only as far as others do.
    fn without_runaway(self, inputs: &Inputs, replicas: u32) -> u32 {
        if inputs.overdue == 0 {
            return replicas;
        }
        let twice = inputs.ready.saturating_mul(2).saturating_add(1);
        replicas.min(self.bounds.clamp(twice).max(self.seen.current))
    }

    fn reason(self, inputs: &Inputs, steps: Steps, ruled: u32, blind: bool) -> Reason {
        let current = self.seen.current;
        let too_many = steps.wanted > self.bounds.most;
        match steps.replicas {
            fewer if fewer < current => Reason::Below,
            more if more > current && more > ruled => Reason::Panic,
            more if more > current => match () {
                () if steps.wanted > steps.metrics && steps.wanted <= more => Reason::Forecast,
                () if too_many && more == self.bounds.most => Reason::AtMaximum,
                () if steps.limited < steps.stabilized => Reason::RateLimited,
                () => Reason::Above,
            },
            _ if inputs.overdue > 0 => Reason::PodsNotReady,
            _ if too_many && current == self.bounds.most => Reason::AtMaximum,
            _ if blind => self.blindness(inputs),
            _ => self.rest(inputs, steps, ruled),
        }
    }

    /// Why nothing changes while something is not known.
    fn blindness(self, inputs: &Inputs) -> Reason {
        let dark = inputs.recommendations.iter().all(|r| !r.known);
        if dark && !(inputs.recommendations.is_empty() && self.seen.demand.known) {
            Reason::NoMetrics
        } else {
            Reason::PartialMetrics
        }
    }

    /// Why nothing changes although all is known.
    fn rest(self, inputs: &Inputs, steps: Steps, ruled: u32) -> Reason {
        let current = self.seen.current;
        let bounded = self.bounds.clamp(steps.metrics);
        if inputs.panic.is_some() && ruled < current {
            Reason::Panic
        } else if inputs.recommendations.iter().any(|r| r.least_millis.is_some()) {
            Reason::Unreachable
        } else if steps.limited != steps.stabilized {
            Reason::RateLimited
        } else if bounded != current {
            Reason::Stabilizing
        } else if steps.metrics < bounded && inputs.schedule.is_some() {
            Reason::Scheduled
        } else if steps.metrics < bounded {
            Reason::AtMinimum
        } else {
            Reason::OnTarget
        }
    }
}
