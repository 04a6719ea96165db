//! Pure control-plane decisions: what an InferenceService means, which objects it is made of, how many
//! pods it should have, and what its status says.
//!
//! No client, no clock, no tokio: the controller observes, this crate decides (values in, values out), the
//! controller applies. The steps, in order: [`validate`](mod@validate) -> [`build`](mod@build) -> (apply) ->
//! [`status`](mod@status); between build and apply [`rollout`] says how many pods each revision has, and [`placement`]
//! whether a node could hold them; beside them [`autoscale`].

// Literals read better in tests without an ampersand.
#![cfg_attr(test, allow(clippy::needless_pass_by_value))]

pub mod autoscale;
pub mod build;
pub mod compare;
pub mod exposition;
pub mod placement;
mod pods;
pub mod quantity;
pub mod rollout;
pub mod status;
pub mod validate;

#[cfg(test)]
mod testing;
