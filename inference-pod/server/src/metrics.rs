//! What the pod measures, in Prometheus' format: under the `vllm:` names that dashboards, gateways and autoscalers know,
//! and the same under `pagoda_`, which adds what only Pagoda has.

mod load;
mod text;

use std::borrow::Cow;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use text::to_prometheus_text;

/// A gauge of a fraction or of seconds.
type FloatGauge = Gauge<f64, AtomicU64>;

/// Why a sequence ended: label of `request_success`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FinishLabels {
    finished_reason: &'static str,
}

/// Label of `pagoda_requests_refused`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// Labels of `pagoda_http_requests`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HttpLabels {
    endpoint: &'static str,
    code: u16,
}

/// Labels of the gauge that describes the KV cache.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CacheLabels {
    block_size: u64,
    num_gpu_blocks: u64,
}

/// Labels of the gauge that describes the engine.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EngineLabels {
    version: &'static str,
    executor: String,
    simulated: &'static str,
}

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
    kv_blocks_used: Gauge,
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
    /// Sequences that got one token more.
    pub decode_tokens: usize,
}

/// Upper bounds in seconds for what a person waits for: first token, queue, whole answers.
const REQUEST_BUCKETS: [f64; 18] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0,
    80.0, 160.0,
];

/// Upper bounds in seconds for the time between tokens and of a step.
const TOKEN_BUCKETS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
];

/// Upper bounds in tokens of a step.
const STEP_TOKEN_BUCKETS: [f64; 12] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0,
];

fn request_histogram() -> Histogram {
    Histogram::new(REQUEST_BUCKETS)
}

fn token_histogram() -> Histogram {
    Histogram::new(TOKEN_BUCKETS)
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
            kv_blocks_used: Gauge::default(),
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
        metrics.load = load::registry(&metrics);
        metrics
    }

    fn register_shared(&mut self) {
        self.both(
            "num_requests_running",
            "Sequences that hold KV blocks",
            self.running.clone(),
        );
        self.both(
            "num_requests_waiting",
            "Sequences that wait to run",
            self.waiting.clone(),
        );
        self.both(
            "kv_cache_usage_perc",
            "KV blocks in use, 1 is all of them",
            self.kv_usage.clone(),
        );
        self.both(
            "num_preemptions",
            "Sequences that lost their KV blocks and were computed again",
            self.preemptions.clone(),
        );
        self.both(
            "prompt_tokens",
            "Prompt tokens of sequences that got their first token",
            self.prompt_tokens.clone(),
        );
        self.both(
            "generation_tokens",
            "Tokens generated",
            self.generation_tokens.clone(),
        );
        self.both(
            "request_success",
            "Sequences that ended, by reason",
            self.finished.clone(),
        );
        self.both(
            "time_to_first_token_seconds",
            "Arrival to first token",
            self.time_to_first_token.clone(),
        );
        self.both(
            "inter_token_latency_seconds",
            "Time between tokens of a sequence",
            self.inter_token_latency.clone(),
        );
        self.both(
            "e2e_request_latency_seconds",
            "Arrival to last token",
            self.e2e_latency.clone(),
        );
        self.both(
            "request_queue_time_seconds",
            "Arrival to admission",
            self.queue_time.clone(),
        );
        self.both(
            "request_prefill_time_seconds",
            "Admission to first token",
            self.prefill_time.clone(),
        );
        self.both(
            "request_decode_time_seconds",
            "First to last token",
            self.decode_time.clone(),
        );
        self.both(
            "request_inference_time_seconds",
            "Admission to last token",
            self.inference_time.clone(),
        );
        self.both(
            "cache_config_info",
            "Shape of the KV cache, in labels",
            self.cache_config.clone(),
        );
    }

    fn register_own(&mut self) {
        self.own(
            "engine_info",
            "Version and executor, in labels",
            self.engine_info.clone(),
        );
        self.own(
            "requests_refused",
            "Requests that were not accepted, by reason",
            self.refused.clone(),
        );
        self.own(
            "http_requests",
            "HTTP responses, by endpoint and status",
            self.http_requests.clone(),
        );
        self.own(
            "kv_blocks_used",
            "KV blocks that sequences own",
            self.kv_blocks_used.clone(),
        );
        self.own(
            "kv_blocks_total",
            "KV blocks in the pool",
            self.kv_blocks_total.clone(),
        );
        self.own("engine_steps", "Forward passes", self.steps.clone());
        self.own(
            "engine_step_tokens",
            "Tokens computed in a forward pass",
            self.step_tokens.clone(),
        );
        self.own(
            "engine_step_seconds",
            "Time of a step: forward pass, sampling and text",
            self.step_seconds.clone(),
        );
        self.own(
            "engine_busy_seconds",
            "Time in steps",
            self.busy_seconds.clone(),
        );
        self.own(
            "engine_prefill_tokens",
            "Prompt tokens computed; found in the KV cache is not computed",
            self.prefill_tokens.clone(),
        );
        self.own(
            "engine_decode_steps",
            "Forward passes in which a sequence decoded",
            self.decode_steps.clone(),
        );
        self.own(
            "engine_decode_tokens",
            "Tokens decoded in them",
            self.decode_tokens.clone(),
        );
        self.own(
            "engine_max_sequences",
            "Sequences that run at once at most",
            self.max_sequences.clone(),
        );
        self.own(
            "engine_max_step_tokens",
            "Tokens computed in a forward pass at most",
            self.max_step_tokens.clone(),
        );
        self.own(
            "engine_executor_errors",
            "Forward passes that failed",
            self.executor_errors.clone(),
        );
        self.own(
            "model_load_seconds",
            "Time from start until ready",
            self.load_seconds.clone(),
        );
    }

    fn both(&mut self, name: &str, help: &str, metric: impl Metric + Clone) {
        self.registry
            .register(format!("vllm:{name}"), help, metric.clone());
        self.registry
            .register(format!("pagoda_{name}"), help, metric);
    }

    fn own(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.registry
            .register(format!("pagoda_{name}"), help, metric);
    }

    /// How full the engine is.
    pub fn set_load(&self, load: pagoda_engine_core::Load) {
        self.running.set(load.running as i64);
        self.waiting.set(load.waiting as i64);
        self.kv_usage
            .set(load.used_blocks as f64 / load.total_blocks.max(1) as f64);
        self.kv_blocks_used.set(load.used_blocks as i64);
        self.kv_blocks_total.set(load.total_blocks as i64);
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

    /// A further token, this long after the one before.
    pub fn next_token(&self, since_last: Duration) {
        self.generation_tokens.inc();
        self.inter_token_latency.observe(since_last.as_secs_f64());
    }

    /// A sequence ended for `reason` (`stop`, `length`, `abort` or `error`); times only where it was not cut short.
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
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        let metrics = Metrics::new("m");
        metrics.finished("stop", None);
        metrics.first_token(7, Duration::from_millis(3));
        metrics.set_load(pagoda_engine_core::Load {
            running: 2,
            waiting: 1,
            used_blocks: 5,
            total_blocks: 10,
            ..Default::default()
        });
        metrics
    }

    #[test]
    fn carries_the_names_that_dashboards_and_autoscalers_read() {
        let text = metrics().prometheus_text().unwrap();
        for line in [
            "# TYPE vllm:request_success_total counter",
            "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1",
            "vllm:num_requests_running{model_name=\"m\"} 2",
            "vllm:num_requests_waiting{model_name=\"m\"} 1",
            "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.5",
            "vllm:prompt_tokens_total{model_name=\"m\"} 7",
            "pagoda_prompt_tokens_total{model_name=\"m\"} 7",
            "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.005\"} 1",
        ] {
            assert!(
                text.lines().any(|other| other == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(!text.contains("# EOF"));
    }

    #[test]
    fn the_load_is_told_in_a_text_short_enough_for_every_second() {
        let metrics = metrics();
        let step = StepShape {
            prefill_tokens: 500,
            decode_tokens: 3,
        };
        metrics.step(step, Duration::from_millis(250));
        let text = metrics.load_text().unwrap();
        for line in [
            "vllm:num_requests_running 2",
            "vllm:request_success_total{finished_reason=\"stop\"} 1",
            "vllm:time_to_first_token_seconds_bucket{le=\"0.005\"} 1",
            "pagoda_engine_prefill_tokens_total 500",
            "pagoda_engine_decode_steps_total 1",
            "pagoda_engine_decode_tokens_total 3",
            "pagoda_engine_busy_seconds_total 0.25",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        let whole = metrics.prometheus_text().unwrap();
        assert!(
            text.len() * 4 < whole.len(),
            "{} of {}",
            text.len(),
            whole.len()
        );
    }

    #[test]
    fn every_sample_of_the_older_format_belongs_to_the_type_line_above_it() {
        let text = metrics().prometheus_text().unwrap();
        let mut current = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                current = rest.split(' ').next().unwrap();
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let suffix = name
                    .strip_prefix(current)
                    .unwrap_or_else(|| panic!("{name} under {current}"));
                assert!(
                    ["", "_bucket", "_sum", "_count"].contains(&suffix),
                    "{name} under {current}"
                );
            }
        }
    }
}
