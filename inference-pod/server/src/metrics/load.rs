//! What says how much a pod carries and could carry: a small part of all metrics, for it is read each second.

use prometheus_client::registry::Registry;

use super::Metrics;

/// The series that autoscalers read, without labels of the whole process.
pub(super) fn registry(metrics: &Metrics) -> Registry {
    let mut load = Registry::default();
    load.register(
        "vllm:num_requests_running",
        "Running",
        metrics.running.clone(),
    );
    load.register(
        "vllm:num_requests_waiting",
        "Waiting",
        metrics.waiting.clone(),
    );
    load.register(
        "vllm:kv_cache_usage_perc",
        "KV use",
        metrics.kv_usage.clone(),
    );
    load.register(
        "vllm:prompt_tokens",
        "Of prompts",
        metrics.prompt_tokens.clone(),
    );
    load.register(
        "vllm:generation_tokens",
        "Generated",
        metrics.generation_tokens.clone(),
    );
    load.register("vllm:request_success", "Ended", metrics.finished.clone());
    load.register(
        "vllm:time_to_first_token_seconds",
        "First token",
        metrics.time_to_first_token.clone(),
    );
    load.register(
        "vllm:inter_token_latency_seconds",
        "Next token",
        metrics.inter_token_latency.clone(),
    );
    load.register(
        "vllm:prefix_cache_queries",
        "Looked up",
        metrics.prefix_queries.clone(),
    );
    load.register(
        "vllm:prefix_cache_hits",
        "Found",
        metrics.prefix_hits.clone(),
    );
    load.register(
        "pagoda_engine_prefill_tokens",
        "Prefilled",
        metrics.prefill_tokens.clone(),
    );
    load.register(
        "pagoda_engine_decode_steps",
        "Decode steps",
        metrics.decode_steps.clone(),
    );
    load.register(
        "pagoda_engine_decode_tokens",
        "Decoded",
        metrics.decode_tokens.clone(),
    );
    load.register(
        "pagoda_engine_busy_seconds",
        "In steps",
        metrics.busy_seconds.clone(),
    );
    load.register(
        "pagoda_engine_max_sequences",
        "Most running",
        metrics.max_sequences.clone(),
    );
    load.register(
        "pagoda_engine_max_step_tokens",
        "Most in a step",
        metrics.max_step_tokens.clone(),
    );
    load
}
