//! Local cluster, load generator, end-to-end tests and benchmarks.

fn main() {}
