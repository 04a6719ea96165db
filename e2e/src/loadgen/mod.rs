//! The load generator: sends chats when they are due, whether or not earlier ones have been answered (an open loop, as
//! real clients are), and tells apart every way that one can fail.
//!
//! [`run`] is what the program and the tests share; it returns counts and percentiles.

mod arrivals;
mod chat;
mod cli;
mod display;
mod events;
mod prompt;
mod replicas;
mod report;
mod run;
mod target;
mod trace;

pub use arrivals::{Arrival, Prefix, Spacing, paced};
pub use chat::{Ending, Outcome};
pub use cli::{LoadgenArgs, main};
pub use events::{ChatEvent, Events};
pub use replicas::{Replicas, ServiceName, watch_replicas};
pub use report::{Failures, Report, Snapshot};
pub use run::{Plan, run};
pub use target::{Target, TargetError};
pub use trace::{TraceError, TraceOptions, read_trace};
