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
    let traces = traces(&endpoint).expect("an address");
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
