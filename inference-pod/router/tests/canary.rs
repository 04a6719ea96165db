//! A canary as a client and the operator see it: who answers, and what is counted.

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fixture::{CHAT, Pod, SSE_HEAD, TestGateway, chunk, nobody, ok_json, settings};
use pagoda_router::proxy::ProxyConfig;
use pagoda_router::server::ServerConfig;
use tokio::sync::Notify;

const REFUSES: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
const BROKEN: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops";
const MISTAKE: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\noops";

/// `chat` with an old and a new pod, which gets all requests while it lives.
async fn all_to_new(old: &Pod, new: std::net::SocketAddr) -> TestGateway {
    let gateway = TestGateway::start(&[]).await;
    gateway.set_named_pods(&[("chat-old-1", old.address), ("chat-new-1", new)]);
    gateway.set_traffic(&[("old", 0), ("new", 100)]);
    gateway
}

fn counted(gateway: &TestGateway, revision: &str) -> (u64, u64, u64) {
    let requests = |outcome: &str| {
        let labels = format!("revision=\"{revision}\",outcome=\"{outcome}\"");
        gateway
            .series("revision_requests_total", &labels)
            .expect("is counted")
    };
    let first_bytes = gateway
        .series(
            "revision_ttft_seconds_count",
            &format!("revision=\"{revision}\""),
        )
        .expect("is counted");
    (requests("ok"), requests("error"), first_bytes)
}

#[tokio::test]
async fn each_revision_gets_about_its_percent_of_real_requests_and_nobody_else_is_asked() {
    let (old, new, unready) = (
        Pod::answering("1").await,
        Pod::answering("2").await,
        Pod::answering("3").await,
    );
    let gateway = TestGateway::start(&[]).await;
    gateway.set_named_pods(&[
        ("chat-old-1", old.address),
        ("chat-new-1", new.address),
        ("chat-new-2", unready.address),
    ]);
    gateway.set_traffic(&[("old", 75), ("new", 25)]);
    gateway.set_named_pods(&[("chat-old-1", old.address), ("chat-new-1", new.address)]);
    for _ in 0..600 {
        assert_eq!(gateway.ask(CHAT).await.status, 200);
    }
    assert_eq!(
        (old.requests() + new.requests(), unready.requests()),
        (600, 0)
    );
    // 150 are expected; six standard deviations are 64.
    assert!((86..=214).contains(&new.requests()), "{}", new.requests());
    assert_eq!(
        counted(&gateway, "new"),
        (new.requests() as u64, 0, new.requests() as u64)
    );
    assert_eq!(
        counted(&gateway, "old"),
        (old.requests() as u64, 0, old.requests() as u64)
    );
}

#[tokio::test]
async fn a_request_that_its_revision_cannot_take_goes_to_the_other_and_the_error_is_counted() {
    let old = Pod::answering("\"old\"").await;
    let refusing = Pod::start(|exchange| exchange.finish_with(REFUSES.into())).await;
    let garbage = Pod::start(|exchange| exchange.finish_with("what?\r\n\r\n".into())).await;
    for new in [nobody().await, refusing.address, garbage.address] {
        let gateway = all_to_new(&old, new).await;
        let response = gateway.ask(CHAT).await;
        assert_eq!((response.status, response.body.as_str()), (200, "\"old\""));
        assert_eq!(counted(&gateway, "new"), (0, 1, 0));
        assert_eq!(counted(&gateway, "old"), (1, 0, 1));
    }
}

#[tokio::test]
async fn a_5xx_counts_against_the_revision_and_a_clients_mistake_does_not_count() {
    let old = Pod::answering("1").await;
    for (answer, status, expected) in [(BROKEN, 500, (0, 1, 0)), (MISTAKE, 404, (0, 0, 0))] {
        let new = Pod::start(move |exchange| exchange.finish_with(answer.into())).await;
        let gateway = all_to_new(&old, new.address).await;
        let response = gateway.ask(CHAT).await;
        assert_eq!((response.status, response.body.as_str()), (status, "oops"));
        assert_eq!(counted(&gateway, "new"), expected);
    }
}

#[tokio::test]
async fn a_cut_stream_counts_against_the_revision() {
    let old = Pod::answering("1").await;
    let new = Pod::start(|mut exchange| async move {
        exchange.write(SSE_HEAD).await;
        exchange.write(&chunk("data: one\n\n")).await;
    })
    .await;
    let gateway = all_to_new(&old, new.address).await;
    let response = gateway.ask(CHAT).await;
    assert!(response.body.contains("data: one"), "{response:?}");
    assert_eq!(counted(&gateway, "new"), (0, 1, 1));
}

#[tokio::test]
async fn a_silent_pod_counts_against_the_revision() {
    let old = Pod::answering("1").await;
    let new = Pod::start(fixture::Exchange::until_closed).await;
    let mut proxy = ProxyConfig::default();
    proxy.upstream.head_timeout = Duration::from_millis(50);
    let gateway = TestGateway::start_with(&[], proxy, ServerConfig::default(), settings()).await;
    gateway.set_named_pods(&[("chat-old-1", old.address), ("chat-new-1", new.address)]);
    gateway.set_traffic(&[("new", 100)]);
    assert_eq!(gateway.ask(CHAT).await.status, 504);
    assert_eq!(counted(&gateway, "new"), (0, 1, 0));
}

#[tokio::test]
async fn the_first_byte_is_the_first_data_and_not_a_comment_that_keeps_the_stream_open() {
    let old = Pod::answering("1").await;
    let go_on = Arc::new(Notify::new());
    let told = Arc::clone(&go_on);
    let new = Pod::start(move |mut exchange| {
        let told = Arc::clone(&told);
        async move {
            exchange.write(SSE_HEAD).await;
            exchange.write(&chunk(": still thinking\n\n")).await;
            told.notified().await;
            exchange.write(&chunk("data: one\n\n")).await;
            told.notified().await;
            exchange.write(&chunk("data: [DONE]\n\n")).await;
            exchange.write("0\r\n\r\n").await;
        }
    })
    .await;
    let gateway = all_to_new(&old, new.address).await;
    let mut client = gateway.connect().await;
    client
        .write(&fixture::post("/v1/chat/completions", CHAT))
        .await;
    client.read_until("still thinking").await;
    assert_eq!(counted(&gateway, "new"), (0, 0, 0));
    go_on.notify_one();
    client.read_until("data: one").await;
    assert_eq!(counted(&gateway, "new"), (0, 0, 1));
    go_on.notify_one();
    assert!(client.response().await.whole);
    assert_eq!(counted(&gateway, "new"), (1, 0, 1));
}

#[tokio::test]
async fn a_client_that_hangs_up_is_no_error_of_the_revision() {
    let old = Pod::answering("1").await;
    let closed = Arc::new(Notify::new());
    let tell = Arc::clone(&closed);
    let new = Pod::start(move |mut exchange| {
        let tell = Arc::clone(&tell);
        async move {
            exchange.write(SSE_HEAD).await;
            exchange.write(&chunk("data: one\n\n")).await;
            exchange.until_closed().await;
            tell.notify_one();
        }
    })
    .await;
    let gateway = all_to_new(&old, new.address).await;
    let mut client = gateway.connect().await;
    client
        .write(&fixture::post("/v1/chat/completions", CHAT))
        .await;
    client.read_until("data: one").await;
    drop(client);
    closed.notified().await;
    gateway.until("in_flight_requests", 0).await;
    assert_eq!(counted(&gateway, "new"), (0, 0, 1));
}

#[tokio::test]
async fn an_answer_that_began_before_the_canary_ended_leaves_no_series_behind() {
    let (old, finish) = (Pod::answering("1").await, Arc::new(Notify::new()));
    let (told, begun) = (Arc::clone(&finish), Arc::new(AtomicBool::new(false)));
    let tell = Arc::clone(&begun);
    let new = Pod::start(move |exchange| {
        let (told, tell) = (Arc::clone(&told), Arc::clone(&tell));
        async move {
            tell.store(true, Ordering::SeqCst);
            told.notified().await;
            exchange.finish_with(ok_json("2")).await;
        }
    })
    .await;
    let gateway = all_to_new(&old, new.address).await;
    let (response, ()) = tokio::join!(gateway.ask(CHAT), async {
        while !begun.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        gateway.set_traffic(&[]);
        finish.notify_one();
    });
    assert_eq!(response.status, 200);
    let text = gateway.gateway.metrics.encode().expect("encodes");
    assert!(!text.contains("revision="), "{text}");
}
