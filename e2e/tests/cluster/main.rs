//! End-to-end tests: the images, charts and programs that ship, on the real local cluster.
//!
//! Run by `./test e2e [FILTER]`, which brings the cluster up first. One namespace a test, deleted afterwards; a test that
//! fails prints what the cluster says about its service. No test asserts how long something took: limits on waiting are
//! there to end a hung run, and are several times what an idle machine needs.

mod bed;
mod file_server;
mod load;
mod manifests;
mod model_server;
mod node;
mod own_gateway;
mod processes;

mod any_engine;
mod autoscaling;
mod chart_objects;
mod faults;
mod gitops;
mod hardware;
mod http_input;
mod lifecycle;
mod metrics_api;
mod model_sources;
mod refused_manifests;
mod rollouts;
mod scaling;
mod schema_bounds;
mod sources;
mod zero;
