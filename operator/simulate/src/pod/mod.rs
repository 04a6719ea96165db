//! A pod: continuous batching with chunked prefill, as Pagoda's engine does it (`pagoda-engine-core`'s scheduler), over modelled
//! time.
//!
//! Each step takes, under one budget of tokens: every decode, then prompts under way in order of arrival, then waiting
//! requests for which there are blocks. A decode that finds no block takes those of the newest sequence, which waits again and
//! is computed anew. Steps in which only the same sequences decode are reckoned as one event: a pod costs the simulator a few
//! events a request, not one a token.

mod counters;
mod kv;
mod plan;
mod prefix;
mod profile;
#[cfg(test)]
mod tests;

pub use counters::{Buckets, Counters, FIRST_TOKEN_BOUNDS, INTER_TOKEN_BOUNDS};
pub use kv::KvPool;
pub use profile::{PodProfile, ProfileError};

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::requests::{RequestId, Requests};
use crate::time::Nanos;

/// Later requests that may be let in before a waiting one that does not fit yet, as in the engine.
const MAX_PASSED_OVER: u32 = 16;

/// The engine looks at the whole queue for one that fits; so far is near enough, and bounds what a step costs here.
const LOOKED_AT: usize = 64;

/// What happened to a request in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its first token came.
    FirstToken(RequestId),
    /// Its last token came; the pod knows it no more.
    Finished(RequestId),
}

/// What hears of tokens: how many came `nanos` after the one before.
pub trait Listener {
    /// `count` tokens came, each `nanos` after its sequence's last one.
    fn tokens(&mut self, nanos: Nanos, count: u64);
    /// Something happened to a request, at `now`.
    fn event(&mut self, event: Event, now: Nanos);
}

/// Steps under way, all alike.
#[derive(Clone, Copy, Debug)]
struct Steps {
    /// When the present one began.
    began: Nanos,
    /// How long each takes.
    each: Nanos,
    /// How many are left, the present one included.
    left: u64,
    /// Sequences that decode in each.
    decodes: u64,
    /// Tokens of prompts in each.
    prompt_tokens: u64,
}

impl Steps {
    fn end(self) -> Nanos {
        self.began + self.each * self.left
    }
}

/// One pod.
#[derive(Debug)]
pub struct Pod {
    profile: PodProfile,
    kv: KvPool,
    next_sequence: u64,
    /// In order of arrival.
    waiting: VecDeque<RequestId>,
    /// `(sequence, request)` of all that hold blocks, in order of arrival.
    running: Vec<(u64, RequestId)>,
    /// Those of them whose prompts are under way, in order of arrival.
    prompts: Vec<RequestId>,
    /// Those of them that decode, by the step that ends them; one whose request says otherwise counts for nothing.
    ends: BinaryHeap<Reverse<(u64, u64, RequestId)>>,
    decoding: u32,
    /// Steps done.
    done: u64,
    /// Decoding sequences by `(known tokens - steps done) mod block`, which stays the same while they decode.
    phases: Vec<u32>,
    steps: Option<Steps>,
    /// Prompts in the present step, and how many tokens of each.
    rows: Vec<(RequestId, u32)>,
    counters: Counters,
}

impl Pod {
    /// A pod with nothing to do.
    pub fn new(profile: PodProfile) -> Self {
        Self {
            kv: KvPool::new(profile.kv_blocks, profile.block_tokens),
            phases: vec![0; profile.block_tokens as usize],
            profile,
            next_sequence: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            prompts: Vec::new(),
            ends: BinaryHeap::new(),
            decoding: 0,
            done: 0,
            steps: None,
            rows: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// What it can do.
    pub fn profile(&self) -> &PodProfile {
        &self.profile
    }

    /// Requests that hold blocks.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait for blocks or a place.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Its blocks.
    pub fn kv(&self) -> &KvPool {
        &self.kv
    }

    /// What it has counted, up to the last [`Self::settle`].
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Tokens of the prompts that wait.
    pub fn waiting_tokens(&self, requests: &Requests) -> u64 {
        let tokens = self.waiting.iter().map(|id| requests[*id].known());
        tokens.map(u64::from).sum()
    }

    /// All requests in it, in order of arrival: those that run, then those that wait.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        let running = self.running.iter().map(|(_, id)| *id);
        running.chain(self.waiting.iter().copied())
    }

    /// Whether its queue has room.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < self.profile.max_waiting as usize
    }

    /// Takes a request in, and returns when it must be asked next ([`Self::complete`]) if that has changed.
    pub fn submit(
        &mut self,
        id: RequestId,
        requests: &mut Requests,
        now: Nanos,
        listener: &mut impl Listener,
    ) -> Option<Nanos> {
        let request = &mut requests[id];
        request.at_pod = now;
        request.in_pod = crate::requests::InPod {
            sequence: self.next_sequence,
            ..Default::default()
        };
        self.next_sequence += 1;
        self.waiting.push_back(id);
        if self.steps.is_none() {
            return self.begin(requests, now);
        }
        if self.running.len() >= self.profile.max_sequences as usize {
            return None;
        }
        self.cut(now, listener)
    }

    /// Lets the present step be the last of those planned.
    fn cut(&mut self, now: Nanos, listener: &mut impl Listener) -> Option<Nanos> {
        self.settle(now, listener);
        let steps = self.steps.as_mut()?;
        if steps.left <= 1 {
            return None;
        }
        steps.left = 1;
        Some(steps.end())
    }

    /// Brings blocks and counters up to `now`: the steps that are over, save the last of those planned, which is
    /// [`Self::complete`]'s.
    pub fn settle(&mut self, now: Nanos, listener: &mut impl Listener) {
        let Some(steps) = self.steps else {
            return;
        };
        let over = (now.saturating_sub(steps.began) / steps.each).min(steps.left - 1);
        if over == 0 {
            return;
        }
        self.advance(over, steps, listener);
        // The step that is now under way has taken its blocks when it began, as every one before it has.
        for step in self.done - over + 1..=self.done {
            self.take_for(step);
        }
        self.steps = Some(Steps {
            began: steps.began + over * steps.each,
            left: steps.left - over,
            ..steps
        });
    }

    /// The steps planned are over: tells what came of them and returns when it must be asked next, if there is more.
    pub fn complete(
        &mut self,
        requests: &mut Requests,
        now: Nanos,
        listener: &mut impl Listener,
    ) -> Option<Nanos> {
        self.settle(now, listener);
        let steps = self.steps.take()?;
        self.advance(1, steps, listener);
        self.end_decodes(requests, now, listener);
        self.end_rows(requests, now, listener);
        self.begin(requests, now)
    }

    /// So many of `steps` are over: every decoding sequence has as many more tokens.
    fn advance(&mut self, over: u64, steps: Steps, listener: &mut impl Listener) {
        self.done += over;
        let counters = &mut self.counters;
        counters.busy_nanos += over * steps.each;
        counters.prefill_tokens += over * steps.prompt_tokens;
        counters.decode_steps += if steps.decodes > 0 { over } else { 0 };
        counters.decode_tokens += over * steps.decodes;
        let tokens = over * u64::from(self.decoding);
        if tokens > 0 {
            counters.generated_tokens += tokens;
            counters
                .inter_token
                .add(&INTER_TOKEN_BOUNDS, steps.each, tokens);
            listener.tokens(steps.each, tokens);
        }
    }

    /// Takes the blocks into which decoding sequences grow in `step`.
    fn take_for(&mut self, step: u64) {
        let blocks = self.needed_in(step);
        if blocks > 0 {
            self.kv.take(blocks);
        }
    }

    /// Decoding sequences that need a block more in `step`: those with a whole number of blocks computed, which
    /// is one token fewer than is known.
    fn needed_in(&self, step: u64) -> u32 {
        let block = u64::from(self.profile.block_tokens);
        self.phases[((block + 1 - step % block) % block) as usize]
    }

    fn phase(&self, known: u32) -> usize {
        let block = u64::from(self.profile.block_tokens);
        ((u64::from(known) + block - self.done % block) % block) as usize
    }

    fn end_decodes(&mut self, requests: &mut Requests, now: Nanos, listener: &mut impl Listener) {
        while let Some(Reverse((step, sequence, id))) = self.ends.peek().copied() {
            if step > self.done {
                return;
            }
            self.ends.pop();
            if self.is_current(requests, step, sequence, id) {
                let known = requests[id].asked.prompt_tokens + requests[id].asked.output_tokens;
                self.stop_decoding(requests, id, known);
                self.release(requests, id, known - 1);
                self.finish(requests, id, now, listener);
            }
        }
    }

    /// Whether an entry of `ends` still holds: the sequence was not preempted since.
    fn is_current(&self, requests: &Requests, step: u64, sequence: u64, id: RequestId) -> bool {
        let place = self.running.binary_search_by_key(&sequence, |(s, _)| *s);
        place.is_ok_and(|place| self.running[place].1 == id)
            && requests[id].in_pod.ends_with == Some(step)
    }

    fn stop_decoding(&mut self, requests: &mut Requests, id: RequestId, known: u32) {
        let phase = self.phase(known);
        self.phases[phase] -= 1;
        self.decoding -= 1;
        let request = &mut requests[id];
        request.in_pod.ends_with = None;
        request.in_pod.generated = known - request.asked.prompt_tokens;
    }

    /// Gives back the blocks of a sequence, of whose tokens `computed` are in them or have a place there.
    fn release(&mut self, requests: &Requests, id: RequestId, computed: u32) {
        let request = &requests[id];
        let shared = &request.asked.prefix[..request.in_pod.shared as usize];
        self.kv
            .give_back(computed.div_ceil(self.profile.block_tokens), shared);
    }

    fn finish(
        &mut self,
        requests: &mut Requests,
        id: RequestId,
        now: Nanos,
        listener: &mut impl Listener,
    ) {
        let sequence = requests[id].in_pod.sequence;
        if let Ok(place) = self.running.binary_search_by_key(&sequence, |(s, _)| *s) {
            self.running.remove(place);
        }
        requests[id].last_token = now;
        self.counters.finished += 1;
        listener.event(Event::Finished(id), now);
    }

    /// Prompts are computed so far; those that are complete yield a token.
    fn end_rows(&mut self, requests: &mut Requests, now: Nanos, listener: &mut impl Listener) {
        let mut rows = std::mem::take(&mut self.rows);
        for (id, tokens) in rows.drain(..) {
            requests[id].in_pod.computed += tokens;
            if requests[id].in_pod.computed == requests[id].known() {
                self.prompts.retain(|other| *other != id);
                self.share(requests, id);
                self.first_token(requests, id, now, listener);
            }
        }
        self.rows = rows;
    }

    fn share(&mut self, requests: &mut Requests, id: RequestId) {
        if self.profile.prefix_cache {
            let request = &mut requests[id];
            let new = &request.asked.prefix[request.in_pod.shared as usize..];
            request.in_pod.shared += self.kv.share(new);
        }
    }

    fn first_token(
        &mut self,
        requests: &mut Requests,
        id: RequestId,
        now: Nanos,
        listener: &mut impl Listener,
    ) {
        let request = &mut requests[id];
        self.counters.generated_tokens += 1;
        let came = request.last_token;
        if request.first_token.is_none() {
            request.first_token = Some(now);
            let took = now - request.at_pod;
            self.counters.prompt_tokens += u64::from(request.asked.prompt_tokens);
            self.counters.first_token.add(&FIRST_TOKEN_BOUNDS, took, 1);
            listener.event(Event::FirstToken(id), now);
        } else {
            let gap = now - came;
            self.counters.inter_token.add(&INTER_TOKEN_BOUNDS, gap, 1);
            listener.tokens(gap, 1);
        }
        let request = &mut requests[id];
        request.last_token = now;
        request.in_pod.generated += 1;
        let left = request.asked.output_tokens - request.in_pod.generated;
        if left == 0 {
            let computed = requests[id].known() - 1;
            self.release(requests, id, computed);
            self.finish(requests, id, now, listener);
        } else {
            let ends_with = self.done + u64::from(left);
            request.in_pod.ends_with = Some(ends_with);
            let (sequence, known) = (request.in_pod.sequence, request.known());
            self.ends.push(Reverse((ends_with, sequence, id)));
            self.decoding += 1;
            let phase = self.phase(known);
            self.phases[phase] += 1;
        }
    }
}

fn pending(requests: &Requests, id: RequestId) -> u32 {
    requests[id].known() - requests[id].in_pod.computed
}
