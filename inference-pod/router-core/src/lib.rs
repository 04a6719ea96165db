//! Pure routing decisions: value in, value out.
//!
//! No client, no clock, no tokio: the gateway asks with what it knows now, the simulator with what its pods
//! would say, and both get the answer of the same code.

pub mod choose;
