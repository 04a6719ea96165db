//! Simulates a service over a trace of requests: the operator's own `decide`, the gateway's own routing policy, and
//! pods that batch as Pagoda's engine does; days in seconds.
//!
//! Pure: a trace and a setting in, a report out, the same one every time. [`simulate()`] runs one scaler; [`scaler`] has Pagoda's
//! and those that it is compared with, [`tune`](mod@tune) finds a good HPA for a trace.

mod fleet;
mod gateway;
pub mod pod;
mod recorder;
pub mod report;
mod requests;
pub mod scaler;
mod setup;
mod simulation;
#[cfg(test)]
mod tests;
mod time;
pub mod trace;
pub mod tune;

pub use fleet::{Member, PodId, Stage};
pub use gateway::GatewayCounts;
pub use pod::PodProfile;
pub use recorder::{Counts, Loss, Moment};
pub use report::Report;
pub use requests::{Request, RequestId, Requests};
pub use setup::{Hardware, Setup, SetupError};
pub use simulation::{Progress, SimulateError, simulate};
pub use time::{MILLISECOND, Nanos, SECOND, from_seconds, seconds};
