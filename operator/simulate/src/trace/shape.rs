//! A trace made faster, heavier or lighter.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Arrival, TraceError};
use crate::time::Nanos;

/// What a trace becomes before it is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Time goes so many times as fast: the same requests come in less time.
    pub speed_up: f64,
    /// So many requests come for each one of the trace, at about its time. Copies share no prefix with each other, as other
    /// people's requests would not; below 1 requests are left out at random.
    pub scale_load: f64,
    /// Each request comes later by up to this much, at random: copies do not come at the same instant, and a trace whose
    /// times were rounded does not come in lumps.
    pub jitter: Nanos,
    /// Of that randomness.
    pub seed: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            speed_up: 1.0,
            scale_load: 1.0,
            jitter: 0,
            seed: 0,
        }
    }
}

/// A shaped trace, in order of time. Holds no more of it than comes within the jitter.
#[derive(Debug)]
pub struct Shaped<I> {
    rows: I,
    shape: Shape,
    random: SmallRng,
    /// `(when, serial)` of what was read and may not go yet.
    waiting: BinaryHeap<Reverse<(Nanos, u64)>>,
    held: std::collections::HashMap<u64, Arrival, foldhash::fast::FixedState>,
    serial: u64,
    /// Nothing that comes later can be earlier than this.
    read_up_to: Nanos,
    ended: bool,
}

impl<I: Iterator<Item = Result<Arrival, TraceError>>> Shaped<I> {
    /// Shapes `rows`, which are in order of time.
    pub fn new(rows: I, shape: Shape) -> Self {
        Self {
            rows,
            random: SmallRng::seed_from_u64(shape.seed ^ 0x7261_6365),
            shape,
            waiting: BinaryHeap::new(),
            held: std::collections::HashMap::default(),
            serial: 0,
            read_up_to: 0,
            ended: false,
        }
    }

    fn spread(&mut self, arrival: &Arrival) {
        let at = (arrival.at as f64 / self.shape.speed_up) as Nanos;
        self.read_up_to = at;
        let whole = self.shape.scale_load.floor();
        let extra = self
            .random
            .random_bool((self.shape.scale_load - whole).clamp(0.0, 1.0));
        for copy in 0..whole as u64 + u64::from(extra) {
            let late = match self.shape.jitter {
                0 => 0,
                jitter => self.random.random_range(0..jitter),
            };
            let mut arrival = arrival.clone();
            arrival.at = at + late;
            for id in &mut arrival.prefix {
                *id ^= copy << 48;
            }
            self.waiting.push(Reverse((arrival.at, self.serial)));
            self.held.insert(self.serial, arrival);
            self.serial += 1;
        }
    }
}

impl<I: Iterator<Item = Result<Arrival, TraceError>>> Iterator for Shaped<I> {
    type Item = Result<Arrival, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended
            && self
                .waiting
                .peek()
                .is_none_or(|Reverse((at, _))| *at > self.read_up_to)
        {
            match self.rows.next() {
                None => self.ended = true,
                Some(Ok(arrival)) => self.spread(&arrival),
                Some(Err(error)) => {
                    self.ended = true;
                    self.waiting.clear();
                    return Some(Err(error));
                }
            }
        }
        let Reverse((_, serial)) = self.waiting.pop()?;
        self.held.remove(&serial).map(Ok)
    }
}
