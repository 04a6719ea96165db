//! The InferenceService API: types, rules, names and wire types shared by operator and pods.
//!
//! Without the default feature `api` this crate is [`names`] and [`wire`] alone: what a pod needs
//! of the control plane, and no Kubernetes library.

#[cfg(feature = "api")]
pub mod api;
pub mod names;
#[cfg(feature = "api")]
pub mod schema;
pub mod wire;

#[cfg(feature = "api")]
pub use api::{InferenceService, InferenceServiceSpec, InferenceServiceStatus};
