//! Pagoda's autoscaler: the operator's own `observe` and `decide`, fed with what its scrapes would read.

use std::sync::Arc;

use pagoda_operator_core::autoscale::capacity::histogram::Histogram;
use pagoda_operator_core::autoscale::{
    GatewayReading, History, Latencies, Moment, PodReading, PodSeen, ServiceReadings, Work, decide,
    observe,
};
use pagoda_operator_core::validate::ScalingSettings;

use super::{FleetView, Scaler, Wish};
use crate::fleet::{Member, Stage};
use crate::pod::{Buckets, Counters, FIRST_TOKEN_BOUNDS, INTER_TOKEN_BOUNDS, Pod};
use crate::time::{MILLISECOND, Nanos, SECOND};

/// The one revision there is.
const REVISION: &str = "simulated";

/// See the module's text.
#[derive(Debug)]
pub struct Pagoda {
    settings: ScalingSettings,
    history: History,
    revision: Arc<str>,
    /// When to look again.
    next_look: u64,
    /// What pods last told of their latencies, for those that have nothing new to tell; by name's number.
    told: Vec<Option<Told>>,
}

#[derive(Debug)]
struct Told {
    first_token: Buckets<18>,
    inter_token: Buckets<15>,
    latencies: Arc<Latencies>,
}

impl Pagoda {
    /// Decides by these settings, knowing nothing yet.
    pub fn new(settings: ScalingSettings) -> Self {
        Self {
            settings,
            history: History::default(),
            revision: REVISION.into(),
            next_look: 0,
            told: Vec::new(),
        }
    }

    fn readings(&mut self, seen: &FleetView<'_>) -> ServiceReadings {
        let gateway = GatewayReading {
            held: seen.gateway.held,
            in_flight: seen.gateway.in_flight,
            finished: seen.gateway.ended,
            route_pods: Some(u64::from(seen.ready())),
        };
        let queries = self.settings.queries().len();
        ServiceReadings {
            gateways: vec![Some(gateway)],
            pods: seen
                .members()
                .map(|member| self.pod(seen, member))
                .collect(),
            // Nobody simulates a Prometheus: what it would say stays unknown.
            queries: vec![None; queries],
        }
    }

    fn pod(&mut self, seen: &FleetView<'_>, member: &Member) -> PodSeen {
        let ready = member.stage == Stage::Ready;
        let pod = member.pod.as_deref().filter(|_| ready);
        PodSeen {
            name: Arc::clone(&member.name),
            revision: Arc::clone(&self.revision),
            hardware: Arc::clone(&seen.setup.hardware[member.hardware].name),
            ready,
            age_millis: (seen.now - member.created) / MILLISECOND,
            ready_age_millis: member.ready_since.map(|at| (seen.now - at) / MILLISECOND),
            reading: pod.map(|pod| self.reading(member, pod)),
        }
    }

    fn reading(&mut self, member: &Member, pod: &Pod) -> PodReading {
        let counters = pod.counters();
        let kv = pod.kv();
        PodReading {
            running: pod.running() as u64,
            waiting: pod.waiting() as u64,
            finished: Some(counters.finished),
            generated_tokens: counters.generated_tokens,
            prompt_tokens: Some(counters.prompt_tokens),
            cache_queries: counters.cache_queries,
            cache_hits: counters.cache_hits,
            kv_usage_milli: Some(kv.used() * 1000 / kv.total().max(1)),
            work: Some(work(pod)),
            latencies: Some(self.latencies(member, counters)),
        }
    }

    fn latencies(&mut self, member: &Member, counters: &Counters) -> Arc<Latencies> {
        let index = member.id as usize;
        if self.told.len() <= index {
            self.told.resize_with(index + 1, || None);
        }
        let told = &mut self.told[index];
        if let Some(told) = told
            && told.first_token == counters.first_token
            && told.inter_token == counters.inter_token
        {
            return Arc::clone(&told.latencies);
        }
        let latencies = Arc::new(Latencies {
            first_token: histogram(&FIRST_TOKEN_BOUNDS, &counters.first_token),
            inter_token: histogram(&INTER_TOKEN_BOUNDS, &counters.inter_token),
        });
        *told = Some(Told {
            first_token: counters.first_token.clone(),
            inter_token: counters.inter_token.clone(),
            latencies: Arc::clone(&latencies),
        });
        latencies
    }
}

fn work(pod: &Pod) -> Work {
    let (counters, profile) = (pod.counters(), pod.profile());
    Work {
        busy_micros: counters.busy_nanos / 1000,
        prefill_tokens: counters.prefill_tokens,
        decode_steps: counters.decode_steps,
        decode_tokens: counters.decode_tokens,
        most_sequences: u64::from(profile.max_sequences),
        most_step_tokens: u64::from(profile.step_tokens),
    }
}

fn histogram<const N: usize>(bounds: &[f64; N], buckets: &Buckets<N>) -> Option<Histogram> {
    let mut upto = 0;
    let cumulative = bounds.iter().zip(&buckets.counts).map(|(bound, count)| {
        upto += count;
        ((bound * 1e6) as u32, upto)
    });
    let cumulative = cumulative.collect();
    Histogram::new(cumulative, upto + buckets.beyond, buckets.sum_nanos / 1000)
}

fn moment(now: Nanos, start_unix_seconds: i64) -> Moment {
    Moment {
        now: now / MILLISECOND,
        unix_seconds: start_unix_seconds + (now / SECOND) as i64,
    }
}

impl Scaler for Pagoda {
    fn name(&self) -> String {
        "pagoda".to_owned()
    }

    fn look(&mut self, seen: &FleetView<'_>) -> Option<Wish> {
        let at = moment(seen.now, seen.setup.start_unix_seconds);
        // A held request is seen at once: the operator's loop wakes for it.
        if at.now < self.next_look && seen.gateway.held == 0 {
            return None;
        }
        let observation = observe(seen.desired(), self.readings(seen));
        let history = std::mem::take(&mut self.history);
        let (decision, history) = decide(&self.settings, &observation, history, at);
        self.history = history;
        self.next_look = decision.next_look;
        (decision.replicas != seen.desired()).then(|| Wish {
            replicas: decision.replicas,
            reason: decision.to_string(),
        })
    }
}
