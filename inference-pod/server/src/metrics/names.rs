//! Which metric has which name.

use prometheus_client::registry::Metric;

use super::Metrics;

impl Metrics {
    pub(super) fn register_shared(&mut self) {
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
            "prefix_cache_queries",
            "Tokens of prompts that were looked for in the KV cache",
            self.prefix_queries.clone(),
        );
        self.both(
            "prefix_cache_hits",
            "Tokens of prompts that were found there",
            self.prefix_hits.clone(),
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

    pub(super) fn register_own(&mut self) {
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

    /// What only Pagoda tells of its KV blocks.
    pub(super) fn register_blocks(&mut self) {
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
        self.own(
            "kv_blocks_idle",
            "KV blocks that no sequence owns and whose content could still be found",
            self.kv_blocks_idle.clone(),
        );
        self.own(
            "kv_unfilled_perc",
            "Places in KV blocks in use that hold no token yet, 1 is all of them",
            self.kv_unfilled.clone(),
        );
        self.own(
            "prefix_cache_evictions",
            "KV blocks whose content was given up for another's",
            self.evictions.clone(),
        );
        self.own(
            "recomputed_tokens",
            "Tokens computed again because their sequence was preempted",
            self.recomputed_tokens.clone(),
        );
        self.own(
            "draft_tokens",
            "Tokens guessed ahead and computed",
            self.drafted_tokens.clone(),
        );
        self.own(
            "draft_accepted_tokens",
            "Those of them that came true",
            self.accepted_tokens.clone(),
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
}
