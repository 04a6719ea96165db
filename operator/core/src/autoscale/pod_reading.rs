//! What a pod's server counts, whichever server it is.
//!
//! Load is required: a text without it is worthless, and one that says nonsense about it as well, for half of the numbers
//! would look like less load. What only helps to know how much a pod can carry (latencies, KV use, the engine's own
//! account of its work) is absent when it makes no sense, and the rest stands.

mod dialect;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::dialect::{DIALECTS, Dialect, Field, Part};
use super::capacity::histogram::{Histogram, MOST_BUCKETS, SharedBounds};
use crate::exposition::{ExpositionError, Sample, declares, parse_number, scan};

/// Counts of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodReading {
    /// Requests that decode or prefill.
    pub running: u64,
    /// Requests that wait for a place.
    pub waiting: u64,
    /// Requests finished; none where the server does not count them.
    pub finished: Option<u64>,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Prompt tokens of requests that got their first token, found in the KV cache or not; none where the server does not
    /// count them.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens looked up in the KV cache.
    pub cache_queries: u64,
    /// Of those, tokens that were found.
    pub cache_hits: u64,
    /// Thousandths of the KV cache that are in use, 0 to 1000; none where the server does not tell.
    pub kv_usage_milli: Option<u32>,
    /// What the engine has computed; Pagoda's alone tells.
    pub work: Option<Work>,
    /// What clients felt; none where the server does not tell.
    pub latencies: Option<Arc<Latencies>>,
}

/// What an engine has computed since it started, and what it may compute at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Microseconds in steps.
    pub busy_micros: u64,
    /// Prompt tokens computed; those found in the KV cache are not.
    pub prefill_tokens: u64,
    /// Steps in which any sequence decoded.
    pub decode_steps: u64,
    /// Tokens decoded in them.
    pub decode_tokens: u64,
    /// Sequences that run at once at most; 0 where not told.
    pub most_sequences: u64,
    /// Tokens of a step at most; 0 where not told.
    pub most_step_tokens: u64,
}

/// Latencies since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Arrival to first token.
    pub first_token: Option<Histogram>,
    /// Between two tokens of a sequence.
    pub inter_token: Option<Histogram>,
}

/// Reads the texts of many pods, one after the other. What they have in common is kept once, and memory is used again.
#[derive(Debug, Default)]
pub struct PodReader {
    shared: SharedBounds,
    first_token: Vec<(u32, u64)>,
    inter_token: Vec<(u32, u64)>,
}

impl PodReader {
    /// Reads a pod's metrics, in the words of vLLM, SGLang or llama-server.
    pub fn read(&mut self, text: &str) -> Result<PodReading, ExpositionError> {
        let dialect = DIALECTS
            .into_iter()
            .find(|dialect| declares(text, dialect.running))
            .ok_or_else(|| ExpositionError::Malformed(DIALECTS[0].running.to_owned()))?;
        let mut draft = Draft {
            first_token: DraftHistogram::within(&mut self.first_token),
            inter_token: DraftHistogram::within(&mut self.inter_token),
            ..Draft::default()
        };
        // Buckets of a histogram follow each other under one name.
        let mut last = ("", None);
        let field = |name| {
            if name != last.0 {
                last = (name, dialect.field(name));
            }
            last.1
        };
        for ((field, rank), sample) in scan(text, field) {
            draft.take(field, rank, sample)?;
        }
        let reading = draft.finish(dialect, &mut self.shared);
        self.first_token = draft.first_token.buckets;
        self.inter_token = draft.inter_token.buckets;
        Ok(reading)
    }
}

impl PodReading {
    /// Reads the metrics of one pod; see [`PodReader`] for many.
    pub fn parse(text: &str) -> Result<Self, ExpositionError> {
        PodReader::default().read(text)
    }

    /// Requests in the pod.
    pub fn in_flight(&self) -> u64 {
        self.running.saturating_add(self.waiting)
    }
}

/// Counts as they come in.
#[derive(Default)]
struct Draft {
    running: u64,
    waiting: u64,
    finished: Ranked,
    generated: Ranked,
    prompt: Ranked,
    cache_queries: Ranked,
    cache_hits: Ranked,
    kv_usage: Usage,
    first_token: DraftHistogram,
    inter_token: DraftHistogram,
    work: Option<Work>,
}

impl Draft {
    fn take(
        &mut self,
        field: Field,
        rank: u8,
        sample: Result<Sample<'_>, ExpositionError>,
    ) -> Result<(), ExpositionError> {
        match field {
            Field::FirstToken(part) => self.first_token.take(part, rank, sample.ok()),
            Field::InterToken(part) => self.inter_token.take(part, rank, sample.ok()),
            Field::KvUsage => self.kv_usage.take(rank, sample.ok().map(|s| s.value)),
            _ => self.count(field, rank, &sample?),
        }
        Ok(())
    }

    fn count(&mut self, field: Field, rank: u8, sample: &Sample<'_>) {
        let count = sample.count();
        match field {
            Field::Running => self.running = self.running.saturating_add(count),
            Field::Waiting => self.waiting = self.waiting.saturating_add(count),
            Field::Finished => self.finished.add(rank, count),
            Field::Generated => self.generated.add(rank, count),
            Field::Prompt => self.prompt.add(rank, count),
            Field::CacheQueries => self.cache_queries.add(rank, count),
            Field::CacheHits => self.cache_hits.add(rank, count),
            _ => {
                let work = self.work.get_or_insert_default();
                match field {
                    Field::Busy => work.busy_micros = micros(sample.value),
                    Field::PrefillTokens => work.prefill_tokens = count,
                    Field::DecodeSteps => work.decode_steps = count,
                    Field::DecodeTokens => work.decode_tokens = count,
                    Field::MostSequences => work.most_sequences = count,
                    _ => work.most_step_tokens = count,
                }
            }
        }
    }

    fn finish(&mut self, dialect: &Dialect, shared: &mut SharedBounds) -> PodReading {
        let latencies = Latencies {
            first_token: self.first_token.finish(shared),
            inter_token: self.inter_token.finish(shared),
        };
        let queries = if dialect.looks_every_prompt_up {
            &self.prompt
        } else {
            &self.cache_queries
        };
        PodReading {
            running: self.running,
            waiting: self.waiting,
            finished: dialect
                .counts_finished
                .then_some(self.finished.count.unwrap_or(0)),
            generated_tokens: self.generated.count.unwrap_or(0),
            prompt_tokens: self.prompt.count,
            cache_queries: queries.count.unwrap_or(0),
            cache_hits: self.cache_hits.count.unwrap_or(0),
            kv_usage_milli: self.kv_usage.finish(),
            work: self.work,
            latencies: (latencies != Latencies::default()).then(|| Arc::new(latencies)),
        }
    }
}

/// A sum over the series of the best name.
#[derive(Default)]
struct Ranked {
    rank: u8,
    count: Option<u64>,
}

impl Ranked {
    fn add(&mut self, rank: u8, count: u64) {
        if self.count.is_none() || rank < self.rank {
            (self.rank, self.count) = (rank, Some(count));
        } else if rank == self.rank {
            self.count = self.count.map(|sum| sum.saturating_add(count));
        }
    }
}

/// A mean over the engines of a pod.
#[derive(Default)]
struct Usage {
    rank: u8,
    sum: f64,
    engines: u32,
    nonsense: bool,
}

impl Usage {
    fn take(&mut self, rank: u8, value: Option<f64>) {
        let Some(value) = value else {
            self.nonsense = true;
            return;
        };
        if self.engines == 0 || rank < self.rank {
            (self.rank, self.sum, self.engines) = (rank, value, 1);
        } else if rank == self.rank {
            self.sum += value;
            self.engines += 1;
        }
    }

    /// A share; what lies above 1 is another unit, and no share.
    fn finish(&self) -> Option<u32> {
        let mean = self.sum / f64::from(self.engines.max(1));
        let makes_sense = self.engines > 0 && !self.nonsense && mean <= 1.001;
        makes_sense.then(|| ((mean * 1000.0).round() as u32).min(1000))
    }
}

/// Buckets as they come in, summed over the engines of a pod.
#[derive(Default)]
struct DraftHistogram {
    /// Rank of the name that is read; none before the first sample.
    rank: Option<u8>,
    buckets: Vec<(u32, u64)>,
    /// Where the next bucket is likely to be.
    next: usize,
    count: u64,
    sum: f64,
    nonsense: bool,
}

impl DraftHistogram {
    /// An empty one, in memory that was used before.
    fn within(memory: &mut Vec<(u32, u64)>) -> Self {
        let mut buckets = std::mem::take(memory);
        buckets.clear();
        Self {
            buckets,
            ..Self::default()
        }
    }

    fn take(&mut self, part: Part, rank: u8, sample: Option<Sample<'_>>) {
        if self.rank.is_none_or(|best| rank < best) {
            *self = Self {
                rank: Some(rank),
                ..Self::within(&mut self.buckets)
            };
        } else if self.rank.is_some_and(|best| rank > best) {
            return;
        }
        match (part, sample) {
            (_, None) => self.nonsense = true,
            (Part::Sum, Some(sample)) => self.sum += sample.value,
            (Part::Count, Some(sample)) => self.count = self.count.saturating_add(sample.count()),
            (Part::Bucket, Some(sample)) => self.bucket(&sample),
        }
    }

    fn bucket(&mut self, sample: &Sample<'_>) {
        let bound = sample.label("le").and_then(parse_number);
        match bound {
            // All of them are counted by `_count`.
            Some(bound) if bound == f64::INFINITY => {}
            Some(bound) if (0.0..4000.0).contains(&bound) => {
                self.add((bound * 1e6).round() as u32, sample.count());
            }
            // Nobody waits for an hour; what lies there is above the last bound that counts.
            Some(bound) if bound >= 4000.0 => {}
            _ => self.nonsense = true,
        }
    }

    fn add(&mut self, bound: u32, count: u64) {
        let same = |bucket: Option<&(u32, u64)>| bucket.is_some_and(|(b, _)| *b == bound);
        let at = if same(self.buckets.get(self.next)) {
            Some(self.next)
        } else {
            self.buckets.iter().position(|(b, _)| *b == bound)
        };
        match at {
            Some(at) => {
                self.buckets[at].1 = self.buckets[at].1.saturating_add(count);
                self.next = at + 1;
            }
            None if self.buckets.len() < MOST_BUCKETS => {
                self.buckets.push((bound, count));
                self.next = 0;
            }
            None => self.nonsense = true,
        }
    }

    fn finish(&mut self, shared: &mut SharedBounds) -> Option<Histogram> {
        if self.nonsense || self.buckets.is_empty() {
            return None;
        }
        Histogram::with_bounds_of(shared, &mut self.buckets, self.count, micros(self.sum))
    }
}

/// Microseconds; more than a century of them is cut.
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).min(4e15).round() as u64
}
