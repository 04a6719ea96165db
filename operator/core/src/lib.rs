//! Pure control-plane decisions: what an InferenceService means, which objects it is made of, how many
//! pods it should have, and what its status says.
//!
//! No client, no clock, no tokio: the controller observes, this crate decides (values in, values out), the
//! controller applies. The steps, in order: [`validate`](mod@validate) -> [`build`](mod@build) -> (apply) ->
//! [`status`](mod@status); between build and apply [`rollout`] says how many pods each revision has, and [`placement`]
//! whether a node could hold them; beside them [`autoscale`], and [`scale_in`] when pods have to go.

// Literals read better in tests without an ampersand.
#![cfg_attr(test, allow(clippy::needless_pass_by_value))]

pub mod autoscale;
pub mod build;
pub mod compare;
pub mod explain;
pub mod exposition;
pub mod placement;
mod pods;
pub mod quantity;
pub mod rollout;
pub mod scale_in;
pub mod status;
pub mod validate;

#[cfg(test)]
mod testing;
