//! What comes of a simulation, as it goes.

use hdrhistogram::Histogram;

use crate::pod::{Event, Listener};
use crate::requests::Request;
use crate::time::Nanos;

/// More moments than this are merged by twos.
const MOST_MOMENTS: usize = 20_000;

/// What was seen in one stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// When it began.
    pub at: Nanos,
    /// How long it is.
    pub lasts: Nanos,
    /// Pods wanted, at its end; the most where stretches were merged. So are the next four.
    pub desired: u32,
    /// Pods ready.
    pub ready: u32,
    /// Pods loading.
    pub loading: u32,
    /// Requests at pods.
    pub in_flight: u64,
    /// Requests held by the gateway.
    pub held: u64,
    /// Requests that came.
    pub arrived: u64,
    /// Requests that ended, well or not.
    pub ended: u64,
    /// Requests that were served within the SLO.
    pub met: u64,
}

/// Why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The gateway held as many as it may.
    HoldFull,
    /// The gateway held it for as long as it may.
    HoldTimeout,
    /// Its pod was removed, and the time to drain was over.
    Cut,
    /// No pod could ever run it. It counts towards nothing else.
    TooLong,
}

/// What came of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of the trace.
    pub requests: u64,
    /// Served to their last token.
    pub completed: u64,
    /// Of those, within the SLO.
    pub met: u64,
    /// Refused for want of room.
    pub hold_full: u64,
    /// Refused after the longest time.
    pub hold_timeout: u64,
    /// Cut off when their pod was removed.
    pub cut: u64,
    /// Refused as longer than a pod can run.
    pub too_long: u64,
    /// Tokens of prompts that were served.
    pub prompt_tokens: u64,
    /// Tokens that were generated for requests that were served.
    pub output_tokens: u64,
}

/// Keeps what the report needs.
#[derive(Debug)]
pub struct Recorder {
    first_token: Nanos,
    inter_token: Nanos,
    pub(crate) counts: Counts,
    pub(crate) first_token_micros: Histogram<u64>,
    pub(crate) inter_token_micros: Histogram<u64>,
    pub(crate) moments: Vec<Moment>,
    present: Moment,
    /// Events of the pods that the simulation has not looked at yet.
    pub(crate) events: Vec<Event>,
    stride: u32,
    merged: u32,
}

/// Longest time that percentiles tell apart: a day.
const LONGEST_MICROS: u64 = 86_400_000_000;

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_MICROS, 3).expect("the library offers three digits")
}

impl Listener for Recorder {
    fn tokens(&mut self, nanos: Nanos, count: u64) {
        self.inter_token_micros
            .saturating_record_n(nanos / 1000, count);
    }

    fn event(&mut self, event: Event, _now: Nanos) {
        self.events.push(event);
    }
}

impl Recorder {
    /// Records against these targets.
    pub fn new(first_token: Nanos, inter_token: Nanos) -> Self {
        Self {
            first_token,
            inter_token,
            counts: Counts::default(),
            first_token_micros: histogram(),
            inter_token_micros: histogram(),
            moments: Vec::new(),
            present: Moment::default(),
            events: Vec::new(),
            stride: 1,
            merged: 0,
        }
    }

    /// A request came.
    pub fn arrived(&mut self) {
        self.counts.requests += 1;
        self.present.arrived += 1;
    }

    /// A request was not served.
    pub fn lost(&mut self, loss: Loss) {
        self.present.ended += 1;
        match loss {
            Loss::HoldFull => self.counts.hold_full += 1,
            Loss::HoldTimeout => self.counts.hold_timeout += 1,
            Loss::Cut => self.counts.cut += 1,
            Loss::TooLong => self.counts.too_long += 1,
        }
    }

    /// A request was served.
    pub fn served(&mut self, request: &Request) {
        let asked = &request.asked;
        let first = request.first_token.unwrap_or(request.last_token);
        let waited = first - asked.at;
        let further = u64::from(asked.output_tokens.saturating_sub(1));
        let between = (request.last_token - first)
            .checked_div(further)
            .unwrap_or(0);
        let met = waited <= self.first_token && between <= self.inter_token;
        self.first_token_micros.saturating_record(waited / 1000);
        self.counts.completed += 1;
        self.counts.met += u64::from(met);
        self.counts.prompt_tokens += u64::from(asked.prompt_tokens);
        self.counts.output_tokens += u64::from(asked.output_tokens);
        self.present.ended += 1;
        self.present.met += u64::from(met);
    }

    /// A stretch of time is over, at whose end this was seen.
    pub fn moment(&mut self, seen: Moment) {
        let whole = Moment {
            arrived: self.present.arrived,
            ended: self.present.ended,
            met: self.present.met,
            ..seen
        };
        self.present = Moment::default();
        match self.moments.last_mut() {
            Some(last) if self.merged > 0 => *last = merge(*last, whole),
            _ => self.moments.push(whole),
        }
        self.merged = (self.merged + 1) % self.stride;
        if self.moments.len() > MOST_MOMENTS {
            self.moments = self
                .moments
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(merge).unwrap_or_default())
                .collect();
            self.stride *= 2;
            self.merged = 0;
        }
    }
}

pub(crate) fn merge(a: Moment, b: Moment) -> Moment {
    Moment {
        at: a.at,
        lasts: a.lasts + b.lasts,
        desired: a.desired.max(b.desired),
        ready: a.ready.max(b.ready),
        loading: a.loading.max(b.loading),
        in_flight: a.in_flight.max(b.in_flight),
        held: a.held.max(b.held),
        arrived: a.arrived + b.arrived,
        ended: a.ended + b.ended,
        met: a.met + b.met,
    }
}
