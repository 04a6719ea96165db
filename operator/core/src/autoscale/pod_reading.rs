//! What a pod's server counts, whichever server it is.

use crate::exposition::{ExpositionError, declares, parse};

/// Counts of one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodReading {
    /// Requests that decode or prefill.
    pub running: u64,
    /// Requests that wait for a place.
    pub waiting: u64,
    /// Requests finished; none where the server does not count them.
    pub finished: Option<u64>,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Prompt tokens looked up in the KV cache.
    pub cache_queries: u64,
    /// Of those, tokens that were found.
    pub cache_hits: u64,
}

/// The names that a server gives to what is counted. Some versions leave out `_total`.
struct Dialect {
    running: &'static str,
    waiting: &'static str,
    finished: &'static [&'static str],
    generated: &'static [&'static str],
    cache_queries: &'static [&'static str],
    cache_hits: &'static [&'static str],
}

/// Pagoda's engine speaks as vLLM does.
const VLLM: Dialect = Dialect {
    running: "vllm:num_requests_running",
    waiting: "vllm:num_requests_waiting",
    finished: &["vllm:request_success_total", "vllm:request_success"],
    generated: &["vllm:generation_tokens_total", "vllm:generation_tokens"],
    cache_queries: &[
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries",
    ],
    cache_hits: &[
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits",
    ],
};

const SGLANG: Dialect = Dialect {
    running: "sglang:num_running_reqs",
    waiting: "sglang:num_queue_reqs",
    finished: &["sglang:num_requests_total", "sglang:num_requests"],
    generated: &["sglang:generation_tokens_total", "sglang:generation_tokens"],
    cache_queries: &["sglang:prompt_tokens_total", "sglang:prompt_tokens"],
    cache_hits: &["sglang:cached_tokens_total", "sglang:cached_tokens"],
};

const LLAMA_SERVER: Dialect = Dialect {
    running: "llamacpp:requests_processing",
    waiting: "llamacpp:requests_deferred",
    finished: &[],
    generated: &["llamacpp:tokens_predicted_total"],
    cache_queries: &[],
    cache_hits: &[],
};

impl PodReading {
    /// Reads a pod's metrics, in the words of vLLM, SGLang or llama-server.
    pub fn parse(text: &str) -> Result<Self, ExpositionError> {
        let dialect = [&VLLM, &SGLANG, &LLAMA_SERVER]
            .into_iter()
            .find(|dialect| declares(text, dialect.running))
            .ok_or_else(|| ExpositionError::Malformed(VLLM.running.to_owned()))?;
        dialect.read(text)
    }
}

impl Dialect {
    fn read(&self, text: &str) -> Result<PodReading, ExpositionError> {
        let wanted: Vec<&str> = [self.running, self.waiting]
            .iter()
            .chain(self.finished)
            .chain(self.generated)
            .chain(self.cache_queries)
            .chain(self.cache_hits)
            .copied()
            .collect();
        let mut reading = PodReading {
            finished: (!self.finished.is_empty()).then_some(0),
            ..PodReading::default()
        };
        for sample in parse(text, &wanted)? {
            let count = sample.count();
            match sample.name {
                name if name == self.running => reading.running += count,
                name if name == self.waiting => reading.waiting += count,
                name if self.generated.contains(&name) => reading.generated_tokens += count,
                name if self.cache_queries.contains(&name) => reading.cache_queries += count,
                name if self.cache_hits.contains(&name) => reading.cache_hits += count,
                _ => *reading.finished.get_or_insert(0) += count,
            }
        }
        Ok(reading)
    }
}
