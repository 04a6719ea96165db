//! The watches against an API server that comes late, goes away, and does not know streaming lists.

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use fixture::{Exchange, Pod, chunk};
use pagoda_router::directory::Directory;
use pagoda_router::metrics::Metrics;
use pagoda_router::watch::{
    LONGEST_SILENCE, follow_endpoints, follow_services, give_up_silent_connections, scopes,
};
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// A line for the watches of InferenceServices (true) or EndpointSlices.
type Change = (bool, String);

/// How the API server behaves.
#[repr(u8)]
#[derive(Clone, Copy)]
enum Mood {
    Good,
    Down,
    WithoutStreamingLists,
    /// Accepts requests and never answers.
    Silent,
}

/// An API server with the objects it is given and the slice of `ns/chat`, and a wire to send changes over.
struct ApiServer {
    server: Pod,
    mood: Arc<AtomicU8>,
    objects: Arc<std::sync::Mutex<Vec<Value>>>,
    changes: broadcast::Sender<Option<Change>>,
}

impl ApiServer {
    async fn start(mood: Mood, mut objects: Vec<Value>) -> Self {
        objects.push(slice("10.0.0.1", 8000));
        let mood = Arc::new(AtomicU8::new(mood as u8));
        let objects = Arc::new(std::sync::Mutex::new(objects));
        let (changes, _) = broadcast::channel(16);
        let (its_mood, its_objects, its_changes) =
            (Arc::clone(&mood), Arc::clone(&objects), changes.clone());
        let server = Pod::start(move |exchange| {
            let mut objects = its_objects.lock().expect("not poisoned").clone();
            let services = exchange.head.contains("/inferenceservices?");
            objects.retain(|object| (object["kind"] == "InferenceService") == services);
            let path = exchange
                .head
                .split(' ')
                .nth(1)
                .unwrap_or_default()
                .to_owned();
            if let Some((_, rest)) = path.split_once("/namespaces/") {
                let namespace = rest.split('/').next().unwrap_or_default().to_owned();
                objects.retain(|object| object["metadata"]["namespace"] == namespace.as_str());
            }
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
            objects,
            changes,
        }
    }

    fn has(&self, objects: Vec<Value>) {
        *self.objects.lock().expect("not poisoned") = objects;
    }

    fn feel(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
        if matches!(mood, Mood::Down | Mood::Silent) {
            // Open watches break off.
            let _ = self.changes.send(None);
        }
    }

    fn send(&self, kind: &str, object: &Value) {
        let line = json!({"type": kind, "object": object}).to_string() + "\n";
        let _ = self.changes.send(Some((true, line)));
    }

    fn send_to_slices(&self, kind: &str, object: &Value) {
        let line = json!({"type": kind, "object": object}).to_string() + "\n";
        let _ = self.changes.send(Some((false, line)));
    }

    fn follow(&self) -> (Arc<Directory>, Arc<Metrics>) {
        self.follow_in(&[], LONGEST_SILENCE)
    }

    fn follow_in(
        &self,
        namespaces: &[String],
        silence: Duration,
    ) -> (Arc<Directory>, Arc<Metrics>) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = kube::Config::new(
            format!("http://{}", self.server.address)
                .parse()
                .expect("a URI"),
        );
        give_up_silent_connections(&mut config, silence);
        let client = kube::Client::try_from(config).expect("a client");
        let metrics = Arc::new(Metrics::default());
        let directory = Arc::new(Directory::new(Arc::clone(&metrics), 1000));
        let scopes = scopes(namespaces);
        tokio::spawn(follow_services(
            client.clone(),
            scopes.clone(),
            Arc::clone(&directory),
            Arc::clone(&metrics),
        ));
        tokio::spawn(follow_endpoints(
            client,
            scopes,
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
    mut changes: broadcast::Receiver<Option<Change>>,
) {
    if mood == Mood::Down as u8 {
        return exchange
            .finish_with("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n".into())
            .await;
    }
    if mood == Mood::Silent as u8 {
        return exchange.until_closed().await;
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
    while let Ok(Some((to_services, change))) = changes.recv().await {
        if services == to_services {
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

fn slice(address: &str, port: u16) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "chat-x", "namespace": "ns", "resourceVersion": "1", "labels": {"serving.pagoda.dev/service": "chat"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": port}], "endpoints": [{"addresses": [address]}],
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

fn errors(metrics: &Metrics, kind: &str) -> u64 {
    let text = metrics.encode().expect("encodes");
    let start = format!("pagoda_gateway_watch_errors_total{{kind=\"{kind}\"}} ");
    text.lines()
        .find_map(|line| line.strip_prefix(&start)?.parse().ok())
        .unwrap_or(0)
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
    api.has(vec![
        service("chat"),
        service("new"),
        slice("10.0.0.1", 8000),
    ]);
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

fn elsewhere(mut object: Value, namespace: &str) -> Value {
    object["metadata"]["namespace"] = namespace.into();
    object
}

#[tokio::test]
async fn only_the_namespaces_asked_for_are_watched_and_each_is_listed_before_it_is_synced() {
    let objects = vec![
        service("chat"),
        elsewhere(service("two"), "team"),
        elsewhere(service("hidden"), "other"),
    ];
    let api = ApiServer::start(Mood::Good, objects).await;
    let namespaces = ["team".into(), "ns".into()];
    let (directory, _) = api.follow_in(&namespaces, LONGEST_SILENCE);
    until(|| directory.is_synced()).await;
    assert_eq!(directory.lookup("chat").expect("listed").ready_pods(), 1);
    assert!(has(&directory, "two") && !has(&directory, "hidden"));
    // The next listing of one namespace takes nothing away from the other.
    api.has(vec![service("chat"), slice("10.0.0.1", 8000)]);
    let expired = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    until(|| {
        api.send("ERROR", &expired);
        !has(&directory, "two")
    })
    .await;
    assert!(has(&directory, "chat"));
}

#[tokio::test]
async fn an_api_server_that_accepts_and_stays_silent_is_given_up_and_asked_again() {
    let api = ApiServer::start(Mood::Good, vec![service("chat")]).await;
    let (directory, metrics) = api.follow_in(&[], Duration::from_millis(200));
    until(|| directory.is_synced()).await;
    api.feel(Mood::Silent);
    // Watches are accepted, hear nothing, end as errors and are begun again, of both kinds and repeatedly.
    let before = ["InferenceService", "EndpointSlice"].map(|kind| (kind, errors(&metrics, kind)));
    until(|| {
        before
            .iter()
            .all(|(kind, before)| errors(&metrics, kind) >= before + 3)
    })
    .await;
    assert!(has(&directory, "chat"), "what was learnt stays in force");
    api.feel(Mood::Good);
    until(|| {
        api.send("ADDED", &service("new"));
        has(&directory, "new")
    })
    .await;
}

#[tokio::test]
async fn requests_go_on_while_the_api_server_is_gone_and_new_pods_are_learnt_after() {
    let (old, new) = (
        Pod::answering("\"old\"").await,
        Pod::answering("\"new\"").await,
    );
    let api = ApiServer::start(Mood::Good, Vec::new()).await;
    let at = |pod: &Pod| slice("127.0.0.1", pod.address.port());
    api.has(vec![service("chat"), at(&old)]);
    let (directory, metrics) = api.follow();
    until(|| directory.is_synced()).await;
    let gateway = fixture::TestGateway::over(Arc::clone(&directory), metrics).await;
    assert_eq!(gateway.ask(fixture::CHAT).await.body, "\"old\"");
    api.feel(Mood::Down);
    api.has(vec![service("chat"), at(&new)]);
    for _ in 0..20 {
        assert_eq!(gateway.ask(fixture::CHAT).await.body, "\"old\"");
    }
    api.feel(Mood::Good);
    let expired = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    let learnt = async {
        loop {
            api.send_to_slices("ERROR", &expired);
            if gateway.ask(fixture::CHAT).await.body == "\"new\"" {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), learnt)
        .await
        .expect("the new pod is learnt");
}
