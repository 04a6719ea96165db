//! The words of the servers.

/// What a series tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Running,
    Waiting,
    Finished,
    Generated,
    Prompt,
    CacheQueries,
    CacheHits,
    KvUsage,
    FirstToken(Part),
    InterToken(Part),
    Busy,
    PrefillTokens,
    DecodeSteps,
    DecodeTokens,
    MostSequences,
    MostStepTokens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Bucket,
    Sum,
    Count,
}

/// Name after the prefix, meaning, rank: some versions tell a thing under an old name and a new one, of which the lower rank
/// counts.
type Named = (&'static str, Field, u8);

/// The names that a server gives to what is counted.
pub(super) struct Dialect {
    pub(super) running: &'static str,
    prefixes: &'static [&'static str],
    series: &'static [Named],
    /// The same of histograms of latency, which servers name alike.
    latencies: &'static [Named],
    pub(super) counts_finished: bool,
    /// Every prompt is looked up in the cache, so nothing else is counted as such.
    pub(super) looks_every_prompt_up: bool,
}

/// Time to first token, and between tokens under its new name and its old one.
const LATENCIES: &[Named] = &[
    (
        "time_to_first_token_seconds_bucket",
        Field::FirstToken(Part::Bucket),
        0,
    ),
    (
        "time_to_first_token_seconds_sum",
        Field::FirstToken(Part::Sum),
        0,
    ),
    (
        "time_to_first_token_seconds_count",
        Field::FirstToken(Part::Count),
        0,
    ),
    (
        "inter_token_latency_seconds_bucket",
        Field::InterToken(Part::Bucket),
        0,
    ),
    (
        "inter_token_latency_seconds_sum",
        Field::InterToken(Part::Sum),
        0,
    ),
    (
        "inter_token_latency_seconds_count",
        Field::InterToken(Part::Count),
        0,
    ),
    (
        "time_per_output_token_seconds_bucket",
        Field::InterToken(Part::Bucket),
        1,
    ),
    (
        "time_per_output_token_seconds_sum",
        Field::InterToken(Part::Sum),
        1,
    ),
    (
        "time_per_output_token_seconds_count",
        Field::InterToken(Part::Count),
        1,
    ),
];

/// Pagoda's engine speaks as vLLM does, and of its work besides.
const VLLM: Dialect = Dialect {
    running: "vllm:num_requests_running",
    prefixes: &["vllm:", "pagoda_engine_"],
    series: &[
        ("num_requests_running", Field::Running, 0),
        ("num_requests_waiting", Field::Waiting, 0),
        ("request_success_total", Field::Finished, 0),
        ("request_success", Field::Finished, 1),
        ("generation_tokens_total", Field::Generated, 0),
        ("generation_tokens", Field::Generated, 1),
        ("prompt_tokens_total", Field::Prompt, 0),
        ("prompt_tokens", Field::Prompt, 1),
        ("prefix_cache_queries_total", Field::CacheQueries, 0),
        ("prefix_cache_queries", Field::CacheQueries, 1),
        ("gpu_prefix_cache_queries_total", Field::CacheQueries, 2),
        ("gpu_prefix_cache_queries", Field::CacheQueries, 3),
        ("prefix_cache_hits_total", Field::CacheHits, 0),
        ("prefix_cache_hits", Field::CacheHits, 1),
        ("gpu_prefix_cache_hits_total", Field::CacheHits, 2),
        ("gpu_prefix_cache_hits", Field::CacheHits, 3),
        ("kv_cache_usage_perc", Field::KvUsage, 0),
        ("gpu_cache_usage_perc", Field::KvUsage, 1),
        ("busy_seconds_total", Field::Busy, 0),
        ("prefill_tokens_total", Field::PrefillTokens, 0),
        ("decode_steps_total", Field::DecodeSteps, 0),
        ("decode_tokens_total", Field::DecodeTokens, 0),
        ("max_sequences", Field::MostSequences, 0),
        ("max_step_tokens", Field::MostStepTokens, 0),
    ],
    latencies: LATENCIES,
    counts_finished: true,
    looks_every_prompt_up: false,
};

const SGLANG: Dialect = Dialect {
    running: "sglang:num_running_reqs",
    prefixes: &["sglang:"],
    series: &[
        ("num_running_reqs", Field::Running, 0),
        ("num_queue_reqs", Field::Waiting, 0),
        ("num_requests_total", Field::Finished, 0),
        ("num_requests", Field::Finished, 1),
        ("generation_tokens_total", Field::Generated, 0),
        ("generation_tokens", Field::Generated, 1),
        ("prompt_tokens_total", Field::Prompt, 0),
        ("prompt_tokens", Field::Prompt, 1),
        ("cached_tokens_total", Field::CacheHits, 0),
        ("cached_tokens", Field::CacheHits, 1),
        ("token_usage", Field::KvUsage, 0),
    ],
    latencies: LATENCIES,
    counts_finished: true,
    looks_every_prompt_up: true,
};

const LLAMA_SERVER: Dialect = Dialect {
    running: "llamacpp:requests_processing",
    prefixes: &["llamacpp:"],
    series: &[
        ("requests_processing", Field::Running, 0),
        ("requests_deferred", Field::Waiting, 0),
        ("tokens_predicted_total", Field::Generated, 0),
        ("prompt_tokens_total", Field::Prompt, 0),
        ("kv_cache_usage_ratio", Field::KvUsage, 0),
    ],
    latencies: &[],
    counts_finished: false,
    looks_every_prompt_up: false,
};

/// All of them.
pub(super) const DIALECTS: [&Dialect; 3] = [&VLLM, &SGLANG, &LLAMA_SERVER];

impl Dialect {
    /// What a series means, and the rank of its name.
    pub(super) fn field(&self, name: &str) -> Option<(Field, u8)> {
        let known = self.prefixes.iter().find_map(|p| name.strip_prefix(p))?;
        let mut named = self.series.iter().chain(self.latencies);
        let (_, field, rank) = named.find(|(series, ..)| *series == known)?;
        Some((*field, *rank))
    }
}
