//! The number of pods while there are some: what is recommended, at the pace that `behavior` allows, or that a burst demands.

use super::{
    Bounds, Foreseen, History, Inputs, Measured, Moment, Observation, Reason, Recommendation, Unit,
    What,
    hpa::{self, Tolerances},
    panic,
    recommend::{load_milli, pods_milli},
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
    /// Whether something that a target is about is not known, or not in full.
    blind: bool,
    /// Whether less was seen than a whole window.
    young: bool,
    /// What metrics ask for.
    metrics: u32,
    /// And what is foreseen.
    wanted: u32,
    /// Between the recommendations of the windows.
    stabilized: u32,
    /// As `behavior` lets it.
    limited: u32,
    /// Within the bounds, and never fewer for want of knowledge.
    ruled: u32,
}

impl Follow<'_> {
    pub fn decide(self, inputs: &mut Inputs, history: &mut History) -> (u32, Reason) {
        let steps = self.follow_rule(inputs, history);
        inputs.limit = (steps.limited != steps.stabilized).then_some(steps.limited);
        inputs.panic = self.panic(inputs, history);
        let urgent = inputs.panic.map_or(0, |most| most.max(self.seen.current));
        let urgent = self.bounds.clamp(urgent);
        let replicas = self.without_runaway(inputs, steps.ruled.max(urgent));
        (replicas, self.reason(inputs, steps, replicas))
    }

    /// HPA's rule, and what is foreseen.
    fn follow_rule(self, inputs: &mut Inputs, history: &mut History) -> Steps {
        let (settings, current, now) = (self.settings, self.seen.current, self.at.now);
        let blind = self.is_blind(inputs);
        let young = history.is_young(settings, now);
        // Without targets the minimum alone counts.
        let most = inputs.recommendations.iter().map(|r| r.replicas).max();
        let metrics = most.unwrap_or(self.bounds.least);
        inputs.foreseen = self.foresee(inputs, history, blind);
        let foreseen = inputs.foreseen.map_or(0, |foreseen| foreseen.replicas);
        // A moment that does not tell all counts as a wish for what there is, so that fewer must be wished for anew.
        let floor = if blind || young { current } else { 0 };
        let wanted = metrics.max(foreseen).max(floor);
        let behavior = &settings.behavior;
        // As for an HPA, a moment that asks for nothing for want of knowledge is no recommendation against more pods.
        let known = inputs.recommendations.iter().filter(|r| r.known);
        let asks_nothing = blind
            && known
                .map(|r| r.replicas)
                .max()
                .is_none_or(|most| most < current);
        let stabilized = if asks_nothing {
            history.pace.hold(behavior, current, now)
        } else {
            history.pace.stabilize(behavior, current, wanted, now)
        };
        let limited = history.pace.limit(behavior, current, stabilized, now);
        let ruled = self.bounds.clamp(limited.max(floor));
        Steps {
            blind,
            young,
            metrics,
            wanted,
            stabilized,
            limited,
            ruled,
        }
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
            history
                .forecast
                .note_week(load, self.at.now, self.at.unix_seconds);
        }
        let ahead_millis = history.start_millis()?;
        let trend = settings
            .follows_trend
            .then(|| history.forecast.trend(ahead_millis, window));
        let recurring = history
            .forecast
            .recurring(ahead_millis, self.at.unix_seconds);
        let load = trend.flatten().max(recurring)?;
        let tolerances = Tolerances::of(&settings.behavior);
        let replicas = hpa::average_value(load, 1000, self.seen.current, tolerances);
        (replicas > self.seen.current).then_some(Foreseen {
            ahead_millis,
            replicas,
        })
    }

    fn panic(self, inputs: &Inputs, history: &mut History) -> Option<u32> {
        let Some(settings) = self.settings.panic else {
            history.panic.end();
            return None;
        };
        let pods = |measured: Measured| pods_milli(&inputs.recommendations, &measured);
        let shortly = pods(history.measured_shortly(self.settings));
        let lasting = pods(history.lasting(self.settings));
        let asked = panic::burst_milli(settings, shortly, lasting, inputs.ready);
        let stable = u64::from(self.settings.window_seconds) * 1000;
        let burst = history
            .panic
            .note(settings, stable, asked, inputs.ready, self.at.now);
        let sudden = pods(history.sudden(self.settings));
        let seen = panic::is_steep(settings, sudden, inputs.ready);
        history.panic.suspect(seen);
        burst
    }

    /// Where pods do not get ready in time, more of them may come only as far as others do.
    fn without_runaway(self, inputs: &Inputs, replicas: u32) -> u32 {
        if inputs.overdue == 0 {
            return replicas;
        }
        let twice = inputs.ready.saturating_mul(2).saturating_add(1);
        replicas.min(self.bounds.clamp(twice).max(self.seen.current))
    }

    fn reason(self, inputs: &Inputs, steps: Steps, replicas: u32) -> Reason {
        let current = self.seen.current;
        let too_many = steps.wanted > self.bounds.most;
        match replicas {
            fewer if fewer < current => Reason::Below,
            more if more > current => self.growth(steps, more),
            _ if inputs.overdue > 0 => Reason::PodsNotReady,
            _ if too_many && current == self.bounds.most => Reason::AtMaximum,
            _ if steps.blind => self.blindness(inputs, steps.young),
            _ => self.rest(inputs, steps),
        }
    }

    fn growth(self, steps: Steps, replicas: u32) -> Reason {
        if replicas > steps.ruled {
            Reason::Panic
        } else if steps.wanted > steps.metrics && replicas >= steps.wanted {
            Reason::Forecast
        } else if replicas == self.bounds.most && steps.wanted > replicas {
            Reason::AtMaximum
        } else if steps.limited < steps.stabilized {
            Reason::RateLimited
        } else {
            Reason::Above
        }
    }

    /// Why nothing changes while something is not known.
    fn blindness(self, inputs: &Inputs, young: bool) -> Reason {
        let all = &inputs.recommendations;
        if self.seen.demand.complete && all.iter().all(|r| self.will_be_known(r, young)) {
            Reason::Stabilizing
        } else if all.iter().any(|r| r.known) || (all.is_empty() && self.seen.demand.known) {
            Reason::PartialMetrics
        } else {
            Reason::NoMetrics
        }
    }

    /// Whether somebody tells what a target is about, or surely will: rates take a moment, pods load, and what pods carry is learned.
    fn will_be_known(self, recommendation: &Recommendation, young: bool) -> bool {
        let told = self.seen.pods.iter().filter_map(|pod| pod.reading.as_ref());
        match (&recommendation.what, recommendation.unit) {
            _ if recommendation.known => !recommendation.partial || young,
            (What::Query(_), _) => false,
            (_, Unit::Percentile(_)) if told.clone().any(|r| r.latencies.is_some()) => true,
            _ => young || self.seen.ready == 0,
        }
    }

    /// Why nothing changes although all is known.
    fn rest(self, inputs: &Inputs, steps: Steps) -> Reason {
        let current = self.seen.current;
        let bounded = self.bounds.clamp(steps.metrics);
        if inputs.panic.is_some() && steps.ruled < current {
            Reason::Panic
        } else if inputs
            .recommendations
            .iter()
            .any(|r| r.least_millis.is_some())
        {
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
