//! Traces of reconciles.

/// Target of the spans that make up a trace: a reconcile and its steps. They name services, children and results, and carry
/// nothing that stands in an object.
pub const TRACE: &str = "pagoda_operator::trace";
