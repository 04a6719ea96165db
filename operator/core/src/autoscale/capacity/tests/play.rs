//! A pod that is played through: continuous batching with a budget of tokens a step, decodes first.

use std::{collections::VecDeque, sync::Arc};

use crate::autoscale::{
    PodReading, PodSeen,
    capacity::histogram::Histogram,
    pod_reading::{Latencies, Work},
};

/// A small generator of numbers (xorshift), so that a run repeats.
pub struct Dice(pub u64);

impl Dice {
    pub fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A whole number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.uniform() * end as f64) as usize
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }
}

/// What steps take, and how exactly.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub prompt_rate: f64,
    pub step: f64,
    pub sequence: f64,
    /// Each step takes up to so much more or less, as a share.
    pub noise: f64,
}

/// Requests to come.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    pub rate: f64,
    pub prompt: f64,
    pub generated: f64,
    /// Share of a prompt that the cache has.
    pub hit: f64,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub arrived: f64,
    pub prompt: f64,
    pub computed: f64,
    pub generated: f64,
}

impl Request {
    /// One like these.
    pub fn draw(dice: &mut Dice, requests: &Requests, arrived: f64) -> Self {
        let prompt = dice.exponential(requests.prompt).ceil().max(2.0);
        let computed = (prompt * (1.0 - requests.hit)).ceil().max(1.0);
        let generated = dice.exponential(requests.generated).ceil().max(1.0);
        Self {
            arrived,
            prompt,
            computed,
            generated,
        }
    }
}

/// Whose metrics the pod speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Pagoda,
    Vllm,
}

const MOST_STEP_TOKENS: f64 = 2048.0;

pub struct Pod {
    pub name: Arc<str>,
    pub hardware: Arc<str>,
    pub revision: Arc<str>,
    speed: Speed,
    dice: Dice,
    now: f64,
    next: f64,
    /// Arrival, tokens to compute, tokens of the whole prompt, tokens to generate.
    prompts: VecDeque<(f64, f64, f64, f64)>,
    /// Tokens left, time of the last one.
    decoding: Vec<(f64, f64)>,
    counts: PodReading,
    busy: f64,
    hides: bool,
    first: Buckets,
    between: Buckets,
    pub first_token_seconds: Vec<f64>,
}

struct Buckets {
    bounds: &'static [f64],
    counts: Vec<u64>,
    all: u64,
    sum: f64,
}

impl Buckets {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len()],
            all: 0,
            sum: 0.0,
        }
    }

    fn observe(&mut self, seconds: f64) {
        for (bound, count) in self.bounds.iter().zip(&mut self.counts) {
            *count += u64::from(seconds <= *bound);
        }
        self.all += 1;
        self.sum += seconds;
    }

    fn histogram(&self) -> Option<Histogram> {
        let micros = |bound: &f64| (bound * 1e6).round() as u32;
        let buckets = self
            .bounds
            .iter()
            .map(micros)
            .zip(self.counts.iter().copied());
        Histogram::new(buckets.collect(), self.all, (self.sum * 1e6) as u64)
    }
}

const FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0,
    80.0, 160.0,
];
const BETWEEN: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
];

impl Pod {
    pub fn new(name: &str, speed: Speed, engine: Engine, seed: u64) -> Self {
        Self {
            name: name.into(),
            hardware: "gpu".into(),
            revision: "one".into(),
            speed,
            dice: Dice(seed | 1),
            now: 0.0,
            next: 0.0,
            prompts: VecDeque::new(),
            decoding: Vec::new(),
            counts: PodReading {
                finished: Some(0),
                prompt_tokens: Some(0),
                work: (engine == Engine::Pagoda).then(|| Work {
                    most_sequences: 256,
                    most_step_tokens: MOST_STEP_TOKENS as u64,
                    ..Work::default()
                }),
                ..PodReading::default()
            },
            busy: 0.0,
            hides: false,
            first: Buckets::new(FIRST),
            between: Buckets::new(BETWEEN),
            first_token_seconds: Vec::new(),
        }
    }

    /// Plays on until then.
    pub fn play(&mut self, until: f64, requests: &Requests) {
        while self.now < until {
            while self.next <= self.now {
                self.arrive(requests);
            }
            if self.prompts.is_empty() && self.decoding.is_empty() {
                self.now = self.next.min(until);
                if self.next > until {
                    return;
                }
            } else {
                self.step();
            }
        }
    }

    fn arrive(&mut self, requests: &Requests) {
        if requests.rate <= 0.0 {
            self.next = self.now + 1.0;
            return;
        }
        let request = Request::draw(&mut self.dice, requests, self.next);
        self.offer(request);
        self.next += self.dice.exponential(1.0 / requests.rate);
    }

    /// A request comes.
    pub fn offer(&mut self, request: Request) {
        self.counts.cache_queries += request.prompt as u64;
        self.counts.cache_hits += (request.prompt - request.computed) as u64;
        self.prompts.push_back((
            request.arrived,
            request.computed,
            request.prompt,
            request.generated,
        ));
    }

    /// Requests in it.
    pub fn in_flight(&self) -> usize {
        self.prompts.len() + self.decoding.len()
    }

    fn step(&mut self) {
        let (began, batch) = (self.now, self.decoding.len());
        let (done, computed) = self.prefill(MOST_STEP_TOKENS - batch as f64);
        let noise = 1.0 + self.speed.noise * (2.0 * self.dice.uniform() - 1.0);
        let decode = if batch == 0 {
            0.0
        } else {
            self.speed.step + self.speed.sequence * batch as f64
        };
        self.now += (decode + computed / self.speed.prompt_rate) * noise;
        self.busy += self.now - began;
        for (left, last) in &mut self.decoding {
            self.between.observe(self.now - *last);
            (*left, *last) = (*left - 1.0, self.now);
        }
        self.counts.generated_tokens += (batch + done.len()) as u64;
        for (arrived, prompt, generated) in done {
            self.first.observe(self.now - arrived);
            self.first_token_seconds.push(self.now - arrived);
            *self.counts.prompt_tokens.get_or_insert(0) += prompt as u64;
            self.decoding.push((generated - 1.0, self.now));
        }
        let before = self.decoding.len();
        self.decoding.retain(|(left, _)| *left >= 1.0);
        *self.counts.finished.get_or_insert(0) += (before - self.decoding.len()) as u64;
        if let Some(work) = &mut self.counts.work {
            work.busy_micros = (self.busy * 1e6) as u64;
            work.prefill_tokens += computed as u64;
            work.decode_steps += u64::from(batch > 0);
            work.decode_tokens += batch as u64;
        }
    }

    fn prefill(&mut self, mut budget: f64) -> (Vec<(f64, f64, f64)>, f64) {
        let (mut done, mut computed) = (Vec::new(), 0.0);
        while let Some((arrived, left, prompt, generated)) = self.prompts.front_mut() {
            let piece = left.min(budget);
            (*left, budget, computed) = (*left - piece, budget - piece, computed + piece);
            if *left > 0.0 {
                break;
            }
            done.push((*arrived, *prompt, *generated));
            self.prompts.pop_front();
        }
        (done, computed)
    }

    /// From now on its server counts no prompt tokens, without which nothing can be learned.
    pub fn hide_what_teaches(&mut self) {
        self.hides = true;
    }

    /// As an operator sees it.
    pub fn seen(&self) -> PodSeen {
        let latencies = Latencies {
            first_token: self.first.histogram(),
            inter_token: self.between.histogram(),
        };
        let reading = PodReading {
            running: self.decoding.len() as u64,
            waiting: self.prompts.len() as u64,
            latencies: Some(Arc::new(latencies)),
            prompt_tokens: self.counts.prompt_tokens.filter(|_| !self.hides),
            ..self.counts.clone()
        };
        PodSeen {
            name: Arc::clone(&self.name),
            revision: Arc::clone(&self.revision),
            hardware: Arc::clone(&self.hardware),
            ready: true,
            age_millis: 100_000,
            ready_age_millis: Some(40_000),
            reading: Some(reading),
        }
    }
}
