//! Labels of series.

use prometheus_client::encoding::EncodeLabelSet;

/// Why a sequence ended: label of `request_success`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct FinishLabels {
    pub(super) finished_reason: &'static str,
}

/// Label of `pagoda_requests_refused`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct RefusalLabels {
    pub(super) reason: &'static str,
}

/// Labels of `pagoda_http_requests`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct HttpLabels {
    pub(super) endpoint: &'static str,
    pub(super) code: u16,
}

/// Labels of the gauge that describes the KV cache.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct CacheLabels {
    pub(super) block_size: u64,
    pub(super) num_gpu_blocks: u64,
}

/// Labels of the gauge that describes the engine.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct EngineLabels {
    pub(super) version: &'static str,
    pub(super) executor: String,
    pub(super) simulated: &'static str,
}
