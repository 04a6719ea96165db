//! Faults of the API server on demand: a proxy between the operator and the API server that does to requests, watches and
//! connections what a script says, and counts what passes.
//!
//! [`request`] says what a request is about, [`script`] which fault it meets, [`counts`] what has passed; these are values and
//! functions of values. [`proxy`] is the shell.

mod counts;
mod proxy;
mod request;
mod script;

pub use counts::{CountKey, Counts};
pub use proxy::FaultProxy;
pub use request::{ApiRequest, Verb};
pub use script::{Fault, Match, RuleId, WatchFault};
