//! What the end-to-end tests, the demo and the benchmarks stand on: a real local Kubernetes, images without a
//! builder or a registry, the charts, and a small handle on kubectl.
//!
//! Everything built, downloaded or started lives under [`cache::Cache`]; nothing is written into the clone.

pub mod cache;
pub mod charts;
pub mod cluster;
pub mod demo;
pub mod eventually;
pub mod faults;
pub mod images;
pub mod installed_operator;
pub mod kubectl;
pub mod loadgen;
pub mod openai;
pub mod operator_process;
pub mod process;
pub mod progress;
pub mod rendered;
pub mod replicas_seen;
pub mod sandbox;
pub mod sources;
