//! Pure control-plane decisions: what an InferenceService means, which objects it is made of, how many
//! pods it should have, and what its status says.
//!
//! No client, no clock, no tokio: the controller observes, this crate decides (values in, values out), the
//! controller applies. The steps, in order: [`validate`](mod@validate) -> [`build`](mod@build) -> (apply) ->
//! [`status`](mod@status); and beside them [`autoscale`].

// Literals read better in tests without an ampersand.
#![cfg_attr(test, allow(clippy::needless_pass_by_value))]

pub mod autoscale;
pub mod build;
pub mod compare;
pub mod exposition;
pub mod quantity;
pub mod status;
pub mod validate;

#[cfg(test)]
mod testing;
