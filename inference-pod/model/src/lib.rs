//! Weights, forward pass and executors.
