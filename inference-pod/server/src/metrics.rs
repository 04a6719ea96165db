//! What the pod measures, in Prometheus' format: under the `vllm:` names that dashboards, gateways and autoscalers know,
//! and the same under `pagoda_`, which adds what only Pagoda has.

mod buckets;
mod labels;
mod load;
mod names;
mod text;

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use buckets::{STEP_TOKEN_BUCKETS, request_histogram, token_histogram};
use labels::{CacheLabels, EngineLabels, FinishLabels, HttpLabels, RefusalLabels};
use text::to_prometheus_text;

/// A gauge of a fraction or of seconds.
type FloatGauge = Gauge<f64, AtomicU64>;

/// Time of one sequence, from arrival to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceTimes {
    /// Arrival to admission.
    pub queue: Duration,
    /// Admission to the first token.
    pub prefill: Duration,
    /// First token to the last.
    pub decode: Duration,
}

/// Every metric of the process. Cheap to update from any thread.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// The few of them that an autoscaler reads each second, without labels.
    load: Registry,
    running: Gauge,
    waiting: Gauge,
    kv_usage: FloatGauge,
    preemptions: Counter,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    finished: Family<FinishLabels, Counter>,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    e2e_latency: Histogram,
    queue_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    inference_time: Histogram,
    cache_config: Family<CacheLabels, Gauge>,
    engine_info: Family<EngineLabels, Gauge>,
    refused: Family<RefusalLabels, Counter>,
    http_requests: Family<HttpLabels, Counter>,
    prefix_queries: Counter,
    prefix_hits: Counter,
    evictions: Counter,
    recomputed_tokens: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
    kv_blocks_used: Gauge,
    kv_blocks_idle: Gauge,
    kv_unfilled: FloatGauge,
    block_tokens: AtomicU64,
    kv_blocks_total: Gauge,
    steps: Counter,
    step_tokens: Histogram,
    step_seconds: Histogram,
    busy_seconds: Counter<f64, AtomicU64>,
    prefill_tokens: Counter,
    decode_steps: Counter,
    decode_tokens: Counter,
    max_sequences: Gauge,
    max_step_tokens: Gauge,
    executor_errors: Counter,
    load_seconds: FloatGauge,
}

/// What a step computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens of prompts.
    pub prefill_tokens: usize,
    /// Tokens drawn by sequences that decode: one each, and as many more as guesses came true.
    pub decode_tokens: usize,
}

impl Metrics {
    /// All metrics at zero, each labelled with the model's (first) name.
    pub fn new(model_name: &str) -> Self {
        let labels = [(
            Cow::Borrowed("model_name"),
            Cow::Owned(model_name.to_owned()),
        )];
        let mut metrics = Self {
            registry: Registry::with_labels(labels.into_iter()),
            load: Registry::default(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            kv_usage: FloatGauge::default(),
            preemptions: Counter::default(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            finished: Family::default(),
            time_to_first_token: request_histogram(),
            inter_token_latency: token_histogram(),
            e2e_latency: request_histogram(),
            queue_time: request_histogram(),
            prefill_time: request_histogram(),
            decode_time: request_histogram(),
            inference_time: request_histogram(),
            cache_config: Family::default(),
            engine_info: Family::default(),
            refused: Family::default(),
            http_requests: Family::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            evictions: Counter::default(),
            recomputed_tokens: Counter::default(),
            drafted_tokens: Counter::default(),
            accepted_tokens: Counter::default(),
            kv_blocks_used: Gauge::default(),
            kv_blocks_idle: Gauge::default(),
            kv_unfilled: FloatGauge::default(),
            block_tokens: AtomicU64::new(1),
            kv_blocks_total: Gauge::default(),
            steps: Counter::default(),
            step_tokens: Histogram::new(STEP_TOKEN_BUCKETS),
            step_seconds: token_histogram(),
            busy_seconds: Counter::default(),
            prefill_tokens: Counter::default(),
            decode_steps: Counter::default(),
            decode_tokens: Counter::default(),
            max_sequences: Gauge::default(),
            max_step_tokens: Gauge::default(),
            executor_errors: Counter::default(),
            load_seconds: FloatGauge::default(),
        };
        metrics.register_shared();
        metrics.register_own();
        metrics.register_blocks();
        metrics.load = load::registry(&metrics);
        metrics
    }

    /// How full the engine is.
    pub fn set_load(&self, load: pagoda_engine_core::Load) {
        self.running.set(load.running as i64);
        self.waiting.set(load.waiting as i64);
        self.kv_usage
            .set(load.used_blocks as f64 / load.total_blocks.max(1) as f64);
        self.kv_blocks_used.set(load.used_blocks as i64);
        self.kv_blocks_total.set(load.total_blocks as i64);
        self.kv_blocks_idle.set(load.idle_blocks as i64);
        let places = load.used_blocks as u64 * self.block_tokens.load(Ordering::Relaxed);
        self.kv_unfilled
            .set(load.unfilled_tokens as f64 / places.max(1) as f64);
    }

    /// What has happened in the scheduler, ever. Told by one thread.
    pub fn set_counters(&self, counters: &pagoda_engine_core::Counters) {
        let pairs = [
            (&self.prefix_queries, counters.prefix_queries),
            (&self.prefix_hits, counters.prefix_hits),
            (&self.evictions, counters.evictions),
            (&self.recomputed_tokens, counters.recomputed_tokens),
            (&self.drafted_tokens, counters.drafted_tokens),
            (&self.accepted_tokens, counters.accepted_tokens),
        ];
        for (counter, value) in pairs {
            counter.inc_by(value.saturating_sub(counter.get()));
        }
    }

    /// The loaded engine.
    pub fn set_engine(
        &self,
        executor: &str,
        simulated: bool,
        block_tokens: usize,
        block_count: u32,
        load: Duration,
    ) {
        let simulated = if simulated { "true" } else { "false" };
        let labels = EngineLabels {
            version: env!("CARGO_PKG_VERSION"),
            executor: executor.to_owned(),
            simulated,
        };
        self.engine_info.get_or_create(&labels).set(1);
        let labels = CacheLabels {
            block_size: block_tokens as u64,
            num_gpu_blocks: u64::from(block_count),
        };
        self.cache_config.get_or_create(&labels).set(1);
        self.block_tokens
            .store(block_tokens as u64, Ordering::Relaxed);
        self.kv_blocks_total.set(i64::from(block_count));
        self.load_seconds.set(load.as_secs_f64());
    }

    /// A request was not accepted.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&RefusalLabels { reason }).inc();
    }

    /// A sequence left the queue for the first time.
    pub fn admitted(&self, queue: Duration) {
        self.queue_time.observe(queue.as_secs_f64());
    }

    /// Sequences lost their blocks.
    pub fn preempted(&self, sequences: usize) {
        self.preemptions.inc_by(sequences as u64);
    }

    /// The first token of a sequence, this long after its arrival. Its prompt is counted with it, as vLLM does, so that
    /// prompt tokens and first tokens are of the same sequences.
    pub fn first_token(&self, prompt_tokens: usize, since_arrival: Duration) {
        self.prompt_tokens.inc_by(prompt_tokens as u64);
        self.generation_tokens.inc();
        self.time_to_first_token
            .observe(since_arrival.as_secs_f64());
    }

    /// A prompt's embedding, this long after its arrival: for whoever waits for it what a first token is.
    pub fn embedded(&self, prompt_tokens: usize, since_arrival: Duration) {
        self.prompt_tokens.inc_by(prompt_tokens as u64);
        self.time_to_first_token
            .observe(since_arrival.as_secs_f64());
    }

    /// A further token, this long after the one before.
    pub fn next_token(&self, since_last: Duration) {
        self.generation_tokens.inc();
        self.inter_token_latency.observe(since_last.as_secs_f64());
    }

    /// A sequence ended for `reason` (`stop`, `length`, `abort`, `deadline` or `error`); times only where it was not cut short.
    pub fn finished(&self, reason: &'static str, times: Option<SequenceTimes>) {
        self.finished
            .get_or_create(&FinishLabels {
                finished_reason: reason,
            })
            .inc();
        if let Some(times) = times {
            let inference = times.prefill + times.decode;
            self.prefill_time.observe(times.prefill.as_secs_f64());
            self.decode_time.observe(times.decode.as_secs_f64());
            self.inference_time.observe(inference.as_secs_f64());
            self.e2e_latency
                .observe((times.queue + inference).as_secs_f64());
        }
    }

    /// What the scheduler may use at once.
    pub fn set_limits(&self, limits: &pagoda_engine_core::Limits) {
        self.max_sequences.set(limits.max_sequences as i64);
        self.max_step_tokens.set(limits.step_tokens as i64);
    }

    /// A step was made.
    pub fn step(&self, step: StepShape, took: Duration) {
        self.steps.inc();
        self.step_tokens
            .observe((step.prefill_tokens + step.decode_tokens) as f64);
        self.step_seconds.observe(took.as_secs_f64());
        self.prefill_tokens.inc_by(step.prefill_tokens as u64);
        self.decode_steps.inc_by(u64::from(step.decode_tokens > 0));
        self.decode_tokens.inc_by(step.decode_tokens as u64);
        self.busy_seconds.inc_by(took.as_secs_f64());
    }

    /// A forward pass failed.
    pub fn executor_error(&self) {
        self.executor_errors.inc();
    }

    /// An HTTP response went out.
    pub fn http_response(&self, endpoint: &'static str, code: u16) {
        self.http_requests
            .get_or_create(&HttpLabels { endpoint, code })
            .inc();
    }

    /// What an autoscaler reads each second, in the text format 0.0.4.
    pub fn load_text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::with_capacity(4096);
        encode(&mut text, &self.load)?;
        Ok(to_prometheus_text(&text))
    }

    /// Everything in the OpenMetrics text format.
    pub fn open_metrics(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Everything in the older Prometheus text format (0.0.4), where a counter's type line names it in full.
    pub fn prometheus_text(&self) -> Result<String, std::fmt::Error> {
        Ok(to_prometheus_text(&self.open_metrics()?))
    }
}

#[cfg(test)]
mod tests;
