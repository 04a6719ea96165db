//! The gateway as a library: a pure core that decides, and a thin shell that moves bytes.
//!
//! [`core`] has no I/O, no clock and no runtime in it: routes, the choice of a pod, holding and
//! retrying are functions of values, so that tests and simulators run the code that ships.
//! The shell (everything else) watches the cluster, proxies requests and reports.

pub mod access_log;
pub mod admin;
pub mod attempt;
pub mod body;
pub mod budget;
pub mod cli;
pub mod core;
pub mod directory;
pub mod early;
pub mod errors;
pub mod forward;
pub mod gather;
pub mod headers;
pub mod lifecycle;
pub mod metrics;
pub mod models;
pub mod proxy;
pub mod relay;
pub mod server;
pub mod service;
pub mod sse;
pub mod static_routes;
pub mod upstream;
pub mod watch;
