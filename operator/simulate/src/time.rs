//! Simulated time.

/// Nanoseconds since the simulation began.
pub type Nanos = u64;

/// A second.
pub const SECOND: Nanos = 1_000_000_000;
/// A millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// Seconds as nanoseconds; what is negative or not a number is nothing, what is beyond centuries stays there.
pub fn from_seconds(seconds: f64) -> Nanos {
    (seconds * SECOND as f64).round() as Nanos
}

/// Nanoseconds as seconds.
pub fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / SECOND as f64
}
