mod differential;
mod hand;
mod kv;

use super::*;
use crate::time::{MILLISECOND, SECOND};
use crate::trace::Arrival;

/// A pod whose figures are easy to reckon with: a second for 1,000 tokens of a prompt, 10 ms a step.
pub(super) fn profile() -> PodProfile {
    PodProfile {
        prefill_tokens_per_second: 1000.0,
        step_nanos: 10 * MILLISECOND,
        sequence_nanos: 0,
        step_tokens: 256,
        max_sequences: 8,
        max_waiting: 1000,
        block_tokens: 16,
        kv_blocks: 1000,
        context_tokens: 16_000,
        prefix_cache: false,
    }
}

pub(super) fn request(at: Nanos, prompt_tokens: u32, output_tokens: u32) -> Arrival {
    Arrival {
        at,
        prompt_tokens,
        output_tokens,
        prefix: Box::default(),
    }
}

/// What a pod was heard to do.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) events: Vec<(Event, Nanos)>,
    pub(super) tokens: u64,
}

impl Listener for Heard {
    fn tokens(&mut self, _nanos: Nanos, count: u64) {
        self.tokens += count;
    }

    fn event(&mut self, event: Event, now: Nanos) {
        self.events.push((event, now));
    }
}

/// A pod with what it needs around it.
pub(super) struct Bench {
    pub(super) pod: Pod,
    pub(super) requests: Requests,
    pub(super) heard: Heard,
    wake: Option<Nanos>,
}

impl Bench {
    pub(super) fn new(profile: PodProfile) -> Self {
        Self {
            pod: Pod::new(profile),
            requests: Requests::default(),
            heard: Heard::default(),
            wake: None,
        }
    }

    /// Runs up to `now`, the moment itself included.
    pub(super) fn until(&mut self, now: Nanos) {
        while let Some(at) = self.wake.filter(|at| *at <= now) {
            self.wake = self.pod.complete(&mut self.requests, at, &mut self.heard);
            self.check();
        }
    }

    pub(super) fn submit(&mut self, arrival: Arrival) -> RequestId {
        let at = arrival.at;
        self.until(at);
        let id = self.requests.insert(arrival);
        let wake = self.pod.submit(id, &mut self.requests, at, &mut self.heard);
        self.wake = wake.or(self.wake);
        self.check();
        id
    }

    pub(super) fn settle(&mut self, now: Nanos) {
        self.until(now);
        self.pod.settle(now, &mut self.heard);
        self.check();
    }

    fn check(&self) {
        let kv = self.pod.kv();
        assert!(kv.occupied() <= kv.total(), "{kv:?}");
        assert!(self.pod.running() <= self.pod.profile().max_sequences as usize);
    }

    /// When each request's first and last token came, in the order in which they were submitted.
    pub(super) fn times(&self, ids: &[RequestId]) -> Vec<(Nanos, Nanos)> {
        let at = |event: Event| {
            let mut times = self.heard.events.iter().filter(|(e, _)| *e == event);
            let (_, at) = times.next().expect("happened");
            assert!(times.next().is_none(), "{event:?} twice");
            *at
        };
        ids.iter()
            .map(|id| (at(Event::FirstToken(*id)), at(Event::Finished(*id))))
            .collect()
    }
}

/// Runs all and returns when the first and last token of each came. `look` has the pod settled that often.
pub(super) fn run(
    profile: PodProfile,
    arrivals: &[Arrival],
    look: Option<Nanos>,
) -> (Bench, Vec<(Nanos, Nanos)>) {
    let mut bench = Bench::new(profile);
    let mut ids = Vec::new();
    let mut looked = 0;
    for arrival in arrivals {
        while let Some(next) = look
            .map(|look| looked + look)
            .filter(|next| *next < arrival.at)
        {
            bench.settle(next);
            looked = next;
        }
        ids.push(bench.submit(arrival.clone()));
    }
    bench.until(1_000_000 * SECOND);
    assert!(bench.pod.is_idle());
    assert_eq!(bench.pod.kv().used(), 0, "all blocks were given back");
    let times = bench.times(&ids);
    (bench, times)
}
