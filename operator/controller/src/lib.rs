//! The operator: watches InferenceServices, applies what they are made of, scales them, and tells their status.
//!
//! A thin shell around `pagoda-operator-core`. A reconcile is a list of steps, one file each:
//! `dereference -> (validate -> build, in the core) -> apply -> update_status`. Beside it runs the `autoscaler`, once a
//! second. Everything that writes asks [`lease::Leadership`] first.

// Literals read better in tests without an ampersand.
#![cfg_attr(test, allow(clippy::needless_pass_by_value))]

pub mod apply;
pub mod autoscaler;
pub mod boot;
pub mod canary_gate;
pub mod carry_out;
pub mod context;
pub mod dereference;
pub mod endpoints;
pub mod events;
pub mod fetch_progress;
pub mod gateways;
pub mod heap;
pub mod heartbeat;
pub mod http_client;
pub mod http_server;
pub mod keda;
pub mod key;
pub mod lease;
pub mod metrics;
pub mod metrics_api;
pub mod model_facts;
pub mod pod_address;
pub mod prometheus;
pub mod queue;
pub mod reconcile;
pub mod replicas;
pub mod request;
pub mod scale_in;
pub mod scalers;
pub mod settings;
pub mod stores;
pub mod targets;
pub mod telemetry;
pub mod update_status;
pub mod watch;
pub mod workers;
