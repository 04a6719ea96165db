//! Traces of reconciles, over OTLP. Off unless an endpoint is set.
//!
//! A reconcile is one trace: its steps, and the request of each child. Spans name services, children, revisions and results,
//! and carry nothing that stands in an object.

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use rustls::{ClientConfig, RootCertStore};
use tracing::{Span, Subscriber, field, info_span};
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

use crate::key::Key;

/// Target of the spans that make up a trace.
const TRACE: &str = "pagoda_operator::trace";
const SERVICE: &str = "pagoda-operator";
/// Where a collector takes traces, below its base address.
const PATH: &str = "/v1/traces";
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("failed to set up traces to {endpoint}: {reason}")]
pub struct TelemetryError {
    endpoint: String,
    reason: String,
}

/// Sends traces to a collector at this base address; without one, or with an empty one, nothing is sent whatever the
/// environment says. What the collector does not take is dropped: traces never hold up a reconcile. A TLS provider must be
/// installed.
pub fn traces(endpoint: Option<&str>) -> Result<Option<SdkTracerProvider>, TelemetryError> {
    let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty());
    endpoint.map(exporter).transpose()
}

fn exporter(endpoint: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let failed = |reason: String| TelemetryError {
        endpoint: endpoint.to_owned(),
        reason,
    };
    let base = endpoint.trim_end_matches('/');
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client().map_err(failed)?)
        .with_endpoint(format!("{}{PATH}", base.trim_end_matches(PATH)))
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(|error| failed(error.to_string()))?;
    let resource = Resource::builder().with_service_name(SERVICE).build();
    Ok(SdkTracerProvider::builder()
        .with_resource(resource)
        .with_batch_exporter(exporter)
        .build())
}

/// Trusts the public web's roots that the program carries: the image has no certificates of a system's.
fn client() -> Result<reqwest::blocking::Client, String> {
    let roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    let tls = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let build = || {
        reqwest::blocking::Client::builder()
            .tls_backend_preconfigured(tls)
            .timeout(EXPORT_TIMEOUT)
            .build()
    };
    // A blocking client has a runtime of its own, which may not be made within another.
    let built = std::thread::scope(|scope| scope.spawn(build).join());
    let built = built.map_err(|_| "the thread that builds the client panicked".to_owned())?;
    built.map_err(|error| error.to_string())
}

/// Passes the spans of reconciles on, and no others.
pub fn layer<S>(traces: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    tracing_opentelemetry::layer()
        .with_tracer(traces.tracer(SERVICE))
        .with_location(false)
        .with_threads(false)
        .with_filter(filter_fn(|metadata| {
            metadata.is_span() && metadata.target() == TRACE
        }))
}

/// A reconcile: the root of a trace. Records `revision` and `result` when they are known.
pub fn reconcile(key: &Key) -> Span {
    info_span!(
        target: TRACE, parent: None, "reconcile",
        service.namespace = key.namespace(), service.name = key.name(), revision = field::Empty, result = field::Empty
    )
}

/// A step of it.
pub fn step(name: &'static str) -> Span {
    info_span!(target: TRACE, "step", otel.name = name)
}

/// What is done to one child: `apply`, `scale` or `delete`. Records `result` when it is known.
pub fn child(action: &'static str, kind: &'static str, name: &str) -> Span {
    info_span!(target: TRACE, "child", otel.name = action, kind, name, result = field::Empty)
}

#[cfg(test)]
mod tests;
