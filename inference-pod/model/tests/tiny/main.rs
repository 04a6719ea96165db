//! Tiny random models: that what is computed is right, depends on the sequence alone, and that the rest is refused.

mod agreement;
mod model;
mod refusals;
