//! Bounds of histograms.

use prometheus_client::metrics::histogram::Histogram;

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
pub(super) const STEP_TOKEN_BUCKETS: [f64; 12] = [
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0,
];

/// With bounds for what its name says.
pub(super) fn request_histogram() -> Histogram {
    Histogram::new(REQUEST_BUCKETS)
}

/// With bounds for what its name says.
pub(super) fn token_histogram() -> Histogram {
    Histogram::new(TOKEN_BUCKETS)
}
