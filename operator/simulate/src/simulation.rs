//! The loop: requests come, pods compute, a scaler looks once a second.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::fleet::{Fleet, PodId, Stage};
use crate::gateway::Gateway;
use crate::pod::Event;
use crate::recorder::{Loss, Moment, Recorder};
use crate::report::{Report, ScaleEvent};
use crate::requests::{RequestId, Requests};
use crate::scaler::{FleetView, Scaler, Wish};
use crate::setup::{Setup, SetupError};
use crate::time::{Nanos, SECOND};
use crate::trace::{Arrival, TraceError};

/// A scaler looks this often.
const LOOK: Nanos = SECOND;
/// Pods that a request is offered to before it is held: all that the gateway's own retries would try.
const OFFERS: usize = 3;
/// Progress is told this often.
const PROGRESS: Nanos = 300 * SECOND;
/// A simulation whose requests never end is given up so long after the last one came.
const LONGEST_TAIL: Nanos = 86_400 * SECOND;

/// Why a simulation ended early.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The setting cannot be simulated.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// How far a simulation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Simulated time.
    pub now: Nanos,
    /// Requests that came.
    pub requests: u64,
    /// Pods that live.
    pub pods: usize,
}

/// What happens at a moment, in the order in which it does at the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Ready { pod: PodId },
    Steps { pod: PodId, plan: u32 },
    DrainEnds { pod: PodId },
    Scale,
}

/// Runs a trace against a scaler.
///
/// The same arguments give the same report, bit for bit.
pub fn simulate(
    setup: &Setup,
    trace: impl Iterator<Item = Result<Arrival, TraceError>>,
    scaler: &mut dyn Scaler,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, SimulateError> {
    setup.check()?;
    let mut simulation = Simulation::new(setup);
    simulation.start();
    let end = simulation.run(trace, scaler, progress)?;
    Ok(simulation.report(scaler.name(), end))
}

struct Simulation<'a> {
    setup: &'a Setup,
    random: SmallRng,
    happenings: BinaryHeap<Reverse<(Nanos, Happening)>>,
    requests: Requests,
    fleet: Fleet,
    gateway: Gateway,
    recorder: Recorder,
    /// Changes decided and not yet written.
    wishes: VecDeque<Wish>,
    scale_events: Vec<ScaleEvent>,
    reversals: u32,
    replica_nanos: u128,
    most_replicas: u32,
    prefix_tokens: (u64, u64),
    preemptions: u64,
}

impl<'a> Simulation<'a> {
    fn new(setup: &'a Setup) -> Self {
        Self {
            setup,
            random: SmallRng::seed_from_u64(setup.seed),
            happenings: BinaryHeap::new(),
            requests: Requests::default(),
            fleet: Fleet::new(setup),
            gateway: Gateway::default(),
            recorder: Recorder::new(setup.slo_first_token, setup.slo_inter_token),
            wishes: VecDeque::new(),
            scale_events: Vec::new(),
            reversals: 0,
            replica_nanos: 0,
            most_replicas: 0,
            prefix_tokens: (0, 0),
            preemptions: 0,
        }
    }

    /// The first pods are ready already.
    fn start(&mut self) {
        let bounds = self.setup.min_replicas..=self.setup.max_replicas;
        let replicas = self.setup.initial_replicas;
        let replicas = replicas.clamp(*bounds.start(), *bounds.end());
        let change = self
            .fleet
            .scale(replicas, 0, self.setup, &mut self.random, |_| 0);
        for pod in change.created {
            self.ready(pod, 0);
        }
        self.most_replicas = replicas;
    }

    fn run(
        &mut self,
        mut trace: impl Iterator<Item = Result<Arrival, TraceError>>,
        scaler: &mut dyn Scaler,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Nanos, SimulateError> {
        let mut next = trace.next().transpose()?;
        let (mut look, mut told, mut last) = (0, 0, 0);
        let mut now = 0;
        while next.is_some() || (!self.requests.is_empty() && now < last + LONGEST_TAIL) {
            let happens = self.happenings.peek().map(|Reverse((at, _))| *at);
            let arrives = next.as_ref().map(|arrival| arrival.at);
            if happens.is_some_and(|at| at <= look && arrives.is_none_or(|next| at <= next)) {
                if let Some(Reverse((at, happening))) = self.happenings.pop() {
                    now = at;
                    self.happen(happening, now);
                }
            } else if arrives.is_some_and(|at| at <= look) {
                if let Some(arrival) = next.take() {
                    now = arrival.at;
                    last = now;
                    self.arrive(arrival, now);
                }
                next = trace.next().transpose()?;
            } else {
                now = look;
                self.look(scaler, now);
                look += LOOK;
                if now >= told {
                    told = now + PROGRESS;
                    progress(self.progress(now));
                }
            }
        }
        Ok(now)
    }

    fn progress(&self, now: Nanos) -> Progress {
        Progress {
            now,
            requests: self.recorder.counts.requests,
            pods: self.fleet.living_ids().len(),
        }
    }

    fn happen(&mut self, happening: Happening, now: Nanos) {
        match happening {
            Happening::Steps { pod, plan } => self.steps_end(pod, plan, now),
            Happening::Ready { pod } => {
                if matches!(self.fleet.member(pod).stage, Stage::Loading(_)) {
                    self.ready(pod, now);
                }
            }
            Happening::DrainEnds { pod } => self.cut_off(pod, now),
            Happening::Scale => {
                if let Some(wish) = self.wishes.pop_front() {
                    self.scale(&wish, now);
                }
            }
        }
    }

    fn ready(&mut self, pod: PodId, now: Nanos) {
        let route = self.gateway.add(pod);
        let member = self.fleet.member_mut(pod);
        member.stage = Stage::Ready;
        member.ready_since = Some(now);
        member.route = Some(route);
        self.let_go(now);
    }

    fn arrive(&mut self, mut arrival: Arrival, now: Nanos) {
        let longest = self.setup.longest_sequence();
        self.recorder.arrived();
        if u64::from(arrival.prompt_tokens) >= longest {
            self.recorder.lost(Loss::TooLong);
            return;
        }
        // As the engine does: an answer ends where the context or the KV cache does.
        let room = longest - u64::from(arrival.prompt_tokens);
        arrival.output_tokens = u64::from(arrival.output_tokens).min(room) as u32;
        self.gateway.arrive();
        let id = self.requests.insert(arrival);
        if self.gateway.holds() || !self.forward(id, now) {
            self.hold(id, now);
        }
    }

    /// Gives a request to a pod that has room, if one is found.
    fn forward(&mut self, id: RequestId, now: Nanos) -> bool {
        let mut tried = Vec::new();
        while tried.len() < OFFERS {
            let Some(place) = self.gateway.choose(&tried, now, &mut self.random) else {
                return false;
            };
            let pod = self.gateway.routes()[place].pod;
            let member = self.fleet.member_mut(pod);
            if let Some(server) = member.pod.as_mut().filter(|pod| pod.has_room()) {
                self.gateway.forward(place);
                self.requests[id].pod = Some(pod);
                let wake = server.submit(id, &mut self.requests, now, &mut self.recorder);
                self.plan(pod, wake);
                return true;
            }
            tried.push(place);
        }
        false
    }

    fn hold(&mut self, id: RequestId, now: Nanos) {
        let deadline = now + self.setup.hold_timeout;
        if !self.gateway.hold(id, deadline, self.setup.hold_requests) {
            self.refuse(id, Loss::HoldFull);
        }
    }

    fn refuse(&mut self, id: RequestId, loss: Loss) {
        self.gateway.refuse();
        self.recorder.lost(loss);
        self.requests.remove(id);
    }

    /// Held requests go, as many as the pods have places.
    fn let_go(&mut self, now: Nanos) {
        let most = self.setup.hardware.iter();
        let places = most.map(|hardware| hardware.profile.max_sequences).max();
        while let Some((deadline, id)) = self.gateway.release(places.unwrap_or(1) as usize) {
            if !self.forward(id, now) {
                self.gateway.hold_again((deadline, id));
                return;
            }
        }
    }

    /// A pod is to be asked again then.
    fn plan(&mut self, pod: PodId, wake: Option<Nanos>) {
        if let Some(at) = wake {
            let member = self.fleet.member_mut(pod);
            member.plan += 1;
            let plan = member.plan;
            self.happenings
                .push(Reverse((at, Happening::Steps { pod, plan })));
        }
    }

    fn steps_end(&mut self, pod: PodId, plan: u32, now: Nanos) {
        let member = self.fleet.member_mut(pod);
        if member.plan != plan {
            return;
        }
        let Some(server) = member.pod.as_mut() else {
            return;
        };
        let wake = server.complete(&mut self.requests, now, &mut self.recorder);
        self.plan(pod, wake);
        self.take_events(pod);
        if self.gateway.holds() {
            self.let_go(now);
        }
        self.end_if_drained(pod, now);
    }

    fn take_events(&mut self, pod: PodId) {
        let route = self.fleet.member(pod).route;
        let mut events = std::mem::take(&mut self.recorder.events);
        for event in events.drain(..) {
            if let Event::Finished(id) = event {
                self.gateway.end(route);
                let request = self.requests.remove(id);
                self.recorder.served(&request);
            }
        }
        self.recorder.events = events;
    }

    fn end_if_drained(&mut self, pod: PodId, now: Nanos) {
        let member = self.fleet.member(pod);
        let idle = member.pod.as_ref().is_none_or(|pod| pod.is_idle());
        if member.stage == Stage::Draining && idle {
            self.end(pod, now);
        }
    }

    fn end(&mut self, pod: PodId, now: Nanos) {
        if let Some(server) = &self.fleet.member(pod).pod {
            let counters = server.counters();
            self.prefix_tokens.0 += counters.cache_queries;
            self.prefix_tokens.1 += counters.cache_hits;
            self.preemptions += counters.preemptions;
        }
        self.fleet.end(pod, now);
    }

    /// The time to drain is over: what still runs is lost.
    fn cut_off(&mut self, pod: PodId, now: Nanos) {
        if self.fleet.member(pod).stage != Stage::Draining {
            return;
        }
        let open: Vec<RequestId> = match &self.fleet.member(pod).pod {
            Some(server) => server.requests().collect(),
            None => Vec::new(),
        };
        for id in open {
            self.gateway.end(None);
            self.recorder.lost(Loss::Cut);
            self.requests.remove(id);
        }
        self.end(pod, now);
    }

    fn look(&mut self, scaler: &mut dyn Scaler, now: Nanos) {
        while let Some(id) = self.gateway.expire(now) {
            self.refuse(id, Loss::HoldTimeout);
        }
        for index in 0..self.fleet.living_ids().len() {
            let pod = self.fleet.living_ids()[index];
            if let Some(server) = self.fleet.member_mut(pod).pod.as_mut() {
                server.settle(now, &mut self.recorder);
            }
        }
        self.note(now);
        let view = FleetView::new(
            now,
            self.setup,
            &self.fleet,
            self.gateway.counts(),
            &self.requests,
        );
        if let Some(wish) = scaler.look(&view) {
            self.wishes.push_back(wish);
            let at = now + self.setup.decision_delay;
            self.happenings.push(Reverse((at, Happening::Scale)));
        }
    }

    fn note(&mut self, now: Nanos) {
        let (ready, loading, _) = self.fleet.count();
        let counts = self.gateway.counts();
        self.replica_nanos += u128::from(self.fleet.desired()) * u128::from(LOOK);
        self.recorder.moment(Moment {
            at: now.saturating_sub(LOOK),
            lasts: LOOK.min(now.max(1)),
            desired: self.fleet.desired(),
            ready,
            loading,
            in_flight: counts.in_flight,
            held: counts.held,
            ..Moment::default()
        });
    }

    fn scale(&mut self, wish: &Wish, now: Nanos) {
        let replicas = wish
            .replicas
            .clamp(self.setup.min_replicas, self.setup.max_replicas);
        let before = self.fleet.desired();
        if replicas == before {
            return;
        }
        let gateway = &self.gateway;
        let in_flight =
            |m: &crate::fleet::Member| m.route.map_or(0, |place| gateway.in_flight_at(place));
        let change = self
            .fleet
            .scale(replicas, now, self.setup, &mut self.random, in_flight);
        for pod in change.created {
            if let Stage::Loading(at) = self.fleet.member(pod).stage {
                self.happenings
                    .push(Reverse((at, Happening::Ready { pod })));
            }
        }
        for pod in change.leaving {
            self.leave(pod, now);
        }
        self.most_replicas = self.most_replicas.max(replicas);
        self.keep_event(now, before, replicas, &wish.reason);
    }

    fn leave(&mut self, pod: PodId, now: Nanos) {
        if let Some(place) = self.fleet.member_mut(pod).route.take()
            && let Some(moved) = self.gateway.remove(place)
        {
            self.fleet.member_mut(moved).route = Some(place);
        }
        let at = now + self.setup.drain;
        self.happenings
            .push(Reverse((at, Happening::DrainEnds { pod })));
        self.end_if_drained(pod, now);
    }

    fn keep_event(&mut self, at: Nanos, from: u32, to: u32, reason: &str) {
        let turned = self
            .scale_events
            .last()
            .is_some_and(|last| (last.to > last.from) != (to > from));
        self.reversals += u32::from(turned);
        self.scale_events.push(ScaleEvent {
            at,
            from,
            to,
            reason: reason.to_owned(),
        });
    }

    fn report(mut self, scaler: String, end: Nanos) -> Report {
        for pod in self.fleet.living_ids().to_vec() {
            self.end(pod, end);
        }
        Report::new(
            self.setup,
            scaler,
            end,
            self.recorder,
            crate::report::Totals {
                pod_nanos: self.fleet.pod_nanos(end),
                replica_nanos: self.replica_nanos,
                most_replicas: self.most_replicas,
                prompt_tokens: self.prefix_tokens.0,
                cached_tokens: self.prefix_tokens.1,
                preemptions: self.preemptions,
                unfinished: self.requests.len() as u64,
                reversals: self.reversals,
            },
            self.scale_events,
        )
    }
}
