use super::*;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, extract::State, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, common::v1::any_value::Value,
    trace::v1::Span as Exported,
};
use prost::Message;
use tracing_subscriber::{layer::SubscriberExt, registry};

/// Set for the process that [`reconciles_once`] is alone in: the base address that traces are to go to, if any.
const ADDRESS: &str = "PAGODA_TEST_OTLP_ENDPOINT";

type Received = Arc<Mutex<Vec<Exported>>>;

async fn take(State(received): State<Received>, body: Bytes) {
    let request = ExportTraceServiceRequest::decode(body).expect("protobuf");
    let spans = request
        .resource_spans
        .into_iter()
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans);
    received.lock().unwrap().extend(spans);
}

/// A collector on this machine, its base address, and what it received.
async fn collector() -> (String, Received) {
    let received = Received::default();
    let router = Router::new()
        .route(PATH, post(take))
        .with_state(received.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("http://{address}/"), received)
}

fn attributes(span: &Exported) -> BTreeMap<&str, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        other => format!("{other:?}"),
    };
    let pairs = span.attributes.iter();
    pairs
        .filter_map(|pair| {
            Some((
                pair.key.as_str(),
                text(pair.value.as_ref()?.value.as_ref()?),
            ))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconcile_arrives_as_one_trace_of_its_steps_and_nothing_else_does() {
    // Another test of this process may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (endpoint, received) = collector().await;
    let traces = traces(Some(&endpoint)).expect("an address").expect("on");
    let subscriber = registry().with(layer(&traces));
    tracing::subscriber::with_default(subscriber, || {
        let root = reconcile(&Key::new("team", "chat"));
        root.record("revision", "0123456789");
        root.in_scope(|| {
            step("build").in_scope(|| ());
            let applied = child("apply", "Deployment", "chat-0123456789");
            applied.record("result", "applied");
            tracing::info_span!("of another library", secret = "s3cr3t").in_scope(|| ());
        });
        root.record("result", "ok");
    });
    let ended = tokio::task::spawn_blocking(move || traces.shutdown());
    ended.await.expect("no panic").expect("everything was sent");

    let spans = received.lock().unwrap();
    let find = |name: &str| {
        spans
            .iter()
            .find(|span| span.name == name)
            .expect("arrived")
    };
    let root = find("reconcile");
    let told = attributes(root);
    assert_eq!(
        ["service.namespace", "service.name", "revision", "result"].map(|key| told[key].as_str()),
        ["team", "chat", "0123456789", "ok"]
    );
    assert!(root.parent_span_id.is_empty());
    for name in ["build", "apply"] {
        assert_eq!(find(name).parent_span_id, root.span_id);
        assert_eq!(find(name).trace_id, root.trace_id);
    }
    assert_eq!(attributes(find("apply"))["name"], "chat-0123456789");
    assert_eq!(spans.len(), 3);
}

/// What a process does that reconciles once, with traces as `PAGODA_TEST_OTLP_ENDPOINT` says.
#[test]
#[ignore = "run by the test below, in a process of its own"]
fn reconciles_once() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let endpoint = std::env::var(ADDRESS).ok();
    let traces = traces(endpoint.as_deref()).expect("an address");
    let subscriber = registry().with(traces.as_ref().map(layer));
    tracing::subscriber::with_default(subscriber, || {
        reconcile(&Key::new("team", "chat")).in_scope(|| step("build").in_scope(|| ()));
    });
    if let Some(traces) = traces {
        traces.shutdown().expect("everything was sent");
    }
}

/// Runs it where the variables of OpenTelemetry name a collector, and returns how many spans that one received.
async fn received_with(address: impl Fn(&str) -> Option<String>) -> usize {
    let (endpoint, received) = collector().await;
    let program = std::env::current_exe().expect("this program");
    let mut command = tokio::process::Command::new(program);
    command
        .args(["telemetry::tests::reconciles_once", "--exact", "--ignored"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &endpoint)
        .env("OTEL_TRACES_EXPORTER", "otlp")
        .env_remove(ADDRESS);
    if let Some(address) = address(&endpoint) {
        command.env(ADDRESS, address);
    }
    let ran = command.output().await.expect("it runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    received.lock().unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_while_tracing_is_off_whatever_the_environment_says() {
    assert_eq!(received_with(|_| None).await, 0);
    assert_eq!(received_with(|_| Some(String::new())).await, 0);
    assert_eq!(
        received_with(|collector| Some(collector.to_owned())).await,
        2
    );
}
