//! Simulates a service over a trace of requests: the operator's own `decide`, the gateway's own routing policy, and
//! pods that batch as Pagoda's engine does; days in seconds.
//!
//! Pure: a trace and a setting in, a report out, the same one every time. [`simulate`] runs one scaler; [`scaler`] has Pagoda's
//! and those that it is compared with.

mod time;

pub use time::{MILLISECOND, Nanos, SECOND, from_seconds, seconds};
