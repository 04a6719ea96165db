//! How many pods keep a latency target.

use pagoda_crds::api::Metric;

use super::{
    Learner,
    correction::{Correction, Standing},
    entry::Entry,
    queueing::{Limit, Mix, deviations},
    supply::{Kind, needed, typical},
    tuning::{BLIND_GROWTH, DRAIN_SECONDS, DRAIN_START_SHARE, HEADROOM_SHARE, REACHABLE_FACTOR},
};
use crate::{
    autoscale::{Millis, PodSeen},
    validate::{TargetSetting, TargetValue},
};

/// What is asked of the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Thousandths of a request that come per second.
    pub rate_milli: u64,
    /// Requests that wait beyond what is usual under such a rate: at gateways and in pods.
    pub queued: u64,
}

/// How many pods keep a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Pods; at least 1.
    pub replicas: u32,
    /// The percentile over the window in milliseconds, if anything was observed.
    pub measured_millis: Option<u32>,
    /// Thousandths of a request per second that a typical pod carries within the target, if known.
    pub each_milli: Option<u64>,
    /// Where the number comes from.
    pub basis: Basis,
}

/// Where a number of pods comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// From what pods carry.
    Capacity,
    /// From the measured percentile alone, for what pods carry is not known yet.
    Measured,
    /// Even an idle pod of the fastest kind takes so many milliseconds, which is more than the target: the number keeps waiting
    /// short beside it.
    Unreachable {
        /// What an idle pod takes.
        least_millis: u32,
    },
    /// Nobody asks for anything.
    Idle,
}

impl Learner {
    /// Pods that keep a latency target under what is asked; none for another kind of target, or while nothing is known. To be
    /// called after [`Learner::note`] of the same moment. `pods` are all that live; those that do not answer yet count as
    /// supply on its way.
    pub fn recommend(
        &mut self,
        target: &TargetSetting,
        asked: Asked,
        pods: &[PodSeen],
        now: Millis,
    ) -> Option<Advice> {
        let limit = limit(target)?;
        let percentile = percentile(limit);
        let window = self.latencies(target.metric)?;
        let measured_millis = window.percentile_millis(percentile);
        let firm = measured_millis.filter(|_| window.is_firm(percentile));
        let advice = |replicas: u32, each_milli, basis| Advice {
            replicas: replicas.max(1),
            measured_millis,
            each_milli,
            basis,
        };
        let start = self.start_millis().unwrap_or(0) as f64 / 1000.0;
        let drain = DRAIN_SECONDS + DRAIN_START_SHARE * start;
        let rate = asked.rate_milli as f64 / 1000.0 + asked.queued as f64 / drain;
        if rate <= 0.0 {
            return Some(advice(1, None, Basis::Idle));
        }
        let room = self.headroom(asked, percentile, now);
        let Some(plan) = self.plan(limit, rate * room, pods, target.metric) else {
            let replicas = self.without_model(firm?, limit, now)?;
            return Some(advice(replicas, None, Basis::Measured));
        };
        self.remember(&plan, now);
        let standing = Standing {
            miss: firm.map(|millis| f64::from(millis) / 1000.0 / plan.aim),
            load: rate / plan.ready.max(1e-9),
            backlog: asked.queued > u64::from(self.ready),
            window: self.window,
        };
        self.correction(target.metric).note(&standing, now);
        let each = (plan.typical * 1000.0).min(1e15).round() as u64;
        Some(advice(plan.replicas, Some(each), plan.basis))
    }

    /// By what the rate may have been multiplied when a pod that is started now answers.
    fn headroom(&mut self, asked: Asked, percentile: u32, now: Millis) -> f64 {
        let start = self.start_millis().unwrap_or(0);
        let rate = asked.rate_milli as f64 / 1000.0;
        self.headroom.note(rate, start, self.window, now);
        self.headroom
            .factor(HEADROOM_SHARE * deviations(percentile))
    }

    /// The number out of what pods carry; none while that is not known.
    fn plan(&mut self, limit: Limit, rate: f64, pods: &[PodSeen], metric: Metric) -> Option<Plan> {
        let mix = self.mix()?;
        let models = self.models(pods);
        let floors: Vec<f64> = models.iter().map(|k| k.model.floor(&mix, limit)).collect();
        let aim = |floor: f64| {
            if floor > limit.seconds() {
                floor * REACHABLE_FACTOR
            } else {
                limit.seconds()
            }
        };
        let factor = self.correction(metric).factor();
        let kinds = |shares: bool| -> Vec<Kind> {
            let kind = |(k, floor): (&KindModel, &f64)| Kind {
                rate: factor * k.model.rate_within(&mix, limit.of(aim(*floor)), shares),
                pods: k.pods,
            };
            models.iter().zip(&floors).map(kind).collect()
        };
        let alone = kinds(false);
        let shares = needed(rate, &alone)? > 1;
        let all = if shares { kinds(true) } else { alone };
        let replicas = if shares {
            needed(rate, &all)?.max(2)
        } else {
            1
        };
        let least = floors.iter().copied().fold(f64::INFINITY, f64::min);
        Some(Plan {
            replicas,
            aim: aim(floors.iter().copied().fold(0.0, f64::max)),
            basis: if least > limit.seconds() {
                let least_millis = (least * 1000.0).ceil().min(f64::from(u32::MAX)) as u32;
                Basis::Unreachable { least_millis }
            } else {
                Basis::Capacity
            },
            mix,
            typical: typical(&all)?,
            ready: models
                .iter()
                .zip(&all)
                .map(|(k, kind)| kind.rate * f64::from(k.ready))
                .sum(),
            of: models.iter().map(|k| k.entry).zip(all).collect(),
        })
    }

    /// Kinds of pods of which something is known; pods of others are counted to the largest of them. All kinds that are
    /// remembered when there is no pod.
    fn models(&self, pods: &[PodSeen]) -> Vec<KindModel> {
        let mut kinds: Vec<KindModel> = Vec::new();
        let mut unknown = (0, 0);
        for (at, entry) in self.entries.iter().enumerate() {
            let of =
                |pod: &&PodSeen| pod.revision == entry.revision && pod.hardware == entry.hardware;
            let count = pods.iter().filter(of).count() as u32;
            let ready = pods.iter().filter(of).filter(|pod| pod.ready).count() as u32;
            if count == 0 && !pods.is_empty() {
                continue;
            }
            match self.model_of(&entry.revision, &entry.hardware) {
                Some(model) => kinds.push(KindModel {
                    entry: at,
                    model,
                    pods: count,
                    ready,
                }),
                None => unknown = (unknown.0 + count, unknown.1 + ready),
            }
        }
        if let Some(kind) = kinds.iter_mut().max_by_key(|kind| kind.pods) {
            kind.pods += unknown.0;
            kind.ready += unknown.1;
        }
        kinds
    }

    fn remember(&mut self, plan: &Plan, now: Millis) {
        for (entry, kind) in &plan.of {
            let tokens = plan.mix.generated_tokens;
            if let Some(entry) = self.entries.get_mut(*entry) {
                Entry::set_carries(entry, now, kind.rate, tokens);
            }
        }
    }

    fn correction(&mut self, metric: Metric) -> &mut Correction {
        if metric == Metric::InterTokenLatency {
            &mut self.inter_token_correction
        } else {
            &mut self.first_token_correction
        }
    }

    /// What the measurement alone asks for: in proportion, at most doubled, and not again before the pods that were asked for
    /// have been there for a window. One fewer at a time when it is far below.
    fn without_model(&self, measured_millis: u32, limit: Limit, now: Millis) -> Option<u32> {
        let settled = now.saturating_sub(self.ready_changed) >= self.window;
        let miss = f64::from(measured_millis) / 1000.0 / limit.seconds();
        if self.ready == 0 || !settled {
            return None;
        }
        let ready = f64::from(self.ready);
        Some(if miss > 1.0 {
            (ready * miss.min(BLIND_GROWTH)).ceil() as u32
        } else if miss < 0.5 {
            self.ready.saturating_sub(1).max(1)
        } else {
            self.ready
        })
    }
}

/// Pods of a kind and what their steps take.
#[derive(Clone, Copy, Debug)]
struct KindModel {
    entry: usize,
    model: super::PodModel,
    pods: u32,
    ready: u32,
}

/// A number of pods with what it was reckoned from.
struct Plan {
    replicas: u32,
    /// Seconds that are aimed at, by the slowest kind.
    aim: f64,
    basis: Basis,
    mix: Mix,
    typical: f64,
    /// Requests per second that those that answer carry.
    ready: f64,
    /// Entry and what its pods carry.
    of: Vec<(usize, Kind)>,
}

fn limit(target: &TargetSetting) -> Option<Limit> {
    let TargetValue::Latency {
        percentile,
        milliseconds,
    } = target.value
    else {
        return None;
    };
    let seconds = f64::from(milliseconds) / 1000.0;
    match target.metric {
        Metric::TimeToFirstToken => Some(Limit::FirstToken {
            percentile,
            seconds,
        }),
        Metric::InterTokenLatency => Some(Limit::InterToken {
            percentile,
            seconds,
        }),
        _ => None,
    }
}

fn percentile(limit: Limit) -> u32 {
    match limit {
        Limit::FirstToken { percentile, .. } | Limit::InterToken { percentile, .. } => percentile,
    }
}
