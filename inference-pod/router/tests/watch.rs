//! The watches against an API server that comes late, goes away, and does not know streaming lists.

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use fixture::{Exchange, Pod, chunk};
use pagoda_router::directory::Directory;
use pagoda_router::metrics::Metrics;
use pagoda_router::watch::{follow_endpoints, follow_services};
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// How the API server behaves.
#[repr(u8)]
#[derive(Clone, Copy)]
enum Mood {
    Good,
    Down,
    WithoutStreamingLists,
}

/// An API server with the objects it is given, and a wire to send changes over.
struct ApiServer {
    server: Pod,
    mood: Arc<AtomicU8>,
    services: Arc<std::sync::Mutex<Vec<Value>>>,
    changes: broadcast::Sender<Option<String>>,
}

impl ApiServer {
    async fn start(mood: Mood, services: Vec<Value>) -> Self {
        let mood = Arc::new(AtomicU8::new(mood as u8));
        let services = Arc::new(std::sync::Mutex::new(services));
        let (changes, _) = broadcast::channel(16);
        let (its_mood, its_services, its_changes) =
            (Arc::clone(&mood), Arc::clone(&services), changes.clone());
        let server = Pod::start(move |exchange| {
            let objects = if exchange.head.contains("/inferenceservices?") {
                its_services.lock().expect("not poisoned").clone()
            } else {
                vec![slice()]
            };
            answer(
                exchange,
                its_mood.load(Ordering::SeqCst),
                objects,
                its_changes.subscribe(),
            )
        })
        .await;
        Self {
            server,
            mood,
            services,
            changes,
        }
    }

    fn feel(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
        if matches!(mood, Mood::Down) {
            // Open watches break off.
            let _ = self.changes.send(None);
        }
    }

    fn send(&self, kind: &str, object: &Value) {
        let _ = self.changes.send(Some(
            json!({"type": kind, "object": object}).to_string() + "\n",
        ));
    }

    fn follow(&self) -> (Arc<Directory>, Arc<Metrics>) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = kube::Config::new(
            format!("http://{}", self.server.address)
                .parse()
                .expect("a URI"),
        );
        let client = kube::Client::try_from(config).expect("a client");
        let metrics = Arc::new(Metrics::default());
        let directory = Arc::new(Directory::new(Arc::clone(&metrics), 1000));
        tokio::spawn(follow_services(
            client.clone(),
            Arc::clone(&directory),
            Arc::clone(&metrics),
        ));
        tokio::spawn(follow_endpoints(
            client,
            Arc::clone(&directory),
            Arc::clone(&metrics),
        ));
        (directory, metrics)
    }
}

async fn answer(
    mut exchange: Exchange,
    mood: u8,
    objects: Vec<Value>,
    mut changes: broadcast::Receiver<Option<String>>,
) {
    if mood == Mood::Down as u8 {
        return exchange
            .finish_with("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n".into())
            .await;
    }
    let streaming = exchange.head.contains("sendinitialevents=true");
    if streaming && mood == Mood::WithoutStreamingLists as u8 {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422, "reason": "Invalid", "message": "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"}).to_string();
        let head = format!(
            "HTTP/1.1 422 Unprocessable Entity\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            status.len()
        );
        return exchange.finish_with(head + &status).await;
    }
    if !exchange.head.contains("watch=true") {
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": objects}).to_string();
        return exchange.finish_with(fixture::ok_json(&list)).await;
    }
    exchange.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    if streaming {
        for object in objects {
            exchange
                .write(&chunk(
                    &(json!({"type": "ADDED", "object": object}).to_string() + "\n"),
                ))
                .await;
        }
        let end = json!({"type": "BOOKMARK", "object": {"kind": "x", "apiVersion": "v1", "metadata": {"resourceVersion": "2", "annotations": {"k8s.io/initial-events-end": "true"}}}});
        exchange.write(&chunk(&(end.to_string() + "\n"))).await;
    }
    let services = exchange.head.contains("/inferenceservices?");
    while let Ok(Some(change)) = changes.recv().await {
        if services {
            exchange.write(&chunk(&change)).await;
        }
    }
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1", "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "x"}]},
        "spec": {"model": {}},
    })
}

fn slice() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "chat-x", "namespace": "ns", "resourceVersion": "1", "labels": {"serving.pagoda.dev/service": "chat"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8000}], "endpoints": [{"addresses": ["10.0.0.1"]}],
    })
}

async fn until(mut true_now: impl FnMut() -> bool) {
    let reached = async {
        while !true_now() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reached)
        .await
        .expect("it becomes true");
}

fn has(directory: &Directory, model: &str) -> bool {
    directory.lookup(model).is_some()
}

#[tokio::test]
async fn lists_and_then_follows_changes() {
    let api = ApiServer::start(Mood::Good, vec![service("chat")]).await;
    let (directory, _) = api.follow();
    until(|| directory.is_synced()).await;
    assert_eq!(directory.lookup("chat").expect("listed").ready_pods(), 1);
    api.send("ADDED", &service("new"));
    until(|| has(&directory, "new")).await;
    api.send("DELETED", &service("chat"));
    until(|| !has(&directory, "chat")).await;
}

#[tokio::test]
async fn an_api_server_that_goes_away_leaves_the_routes_in_force_until_it_is_back() {
    let api = ApiServer::start(Mood::Good, vec![service("chat"), service("old")]).await;
    let (directory, metrics) = api.follow();
    until(|| directory.is_synced()).await;
    let errors = |metrics: &Metrics| {
        metrics
            .encode()
            .expect("encodes")
            .contains("watch_errors_total{kind=\"InferenceService\"}")
    };
    api.feel(Mood::Down);
    until(|| errors(&metrics)).await;
    assert!(directory.is_synced() && has(&directory, "old"));
    assert_eq!(
        directory.lookup("chat").expect("still known").ready_pods(),
        1
    );
    *api.services.lock().expect("not poisoned") = vec![service("chat"), service("new")];
    api.feel(Mood::Good);
    // A listing or a watch may come first: what was deleted meanwhile is only gone with a new listing, which a real API server
    // forces by refusing the outdated version.
    api.send(
        "ERROR",
        &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}),
    );
    until(|| {
        api.send(
            "ERROR",
            &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}),
        );
        has(&directory, "new") && !has(&directory, "old")
    })
    .await;
    assert!(has(&directory, "chat"));
}

#[tokio::test]
async fn starts_without_an_api_server_and_finds_it_later() {
    let api = ApiServer::start(Mood::Down, vec![service("chat")]).await;
    let (directory, metrics) = api.follow();
    until(|| {
        metrics
            .encode()
            .expect("encodes")
            .contains("watch_errors_total")
    })
    .await;
    assert!(!directory.is_synced());
    api.feel(Mood::Good);
    until(|| directory.is_synced() && has(&directory, "chat")).await;
}

#[tokio::test]
async fn an_api_server_without_streaming_lists_is_listed_and_watched() {
    let api = ApiServer::start(Mood::WithoutStreamingLists, vec![service("chat")]).await;
    let (directory, _) = api.follow();
    until(|| directory.is_synced()).await;
    assert_eq!(directory.lookup("chat").expect("listed").ready_pods(), 1);
    api.send("ADDED", &service("new"));
    until(|| {
        api.send("ADDED", &service("new"));
        has(&directory, "new")
    })
    .await;
}
