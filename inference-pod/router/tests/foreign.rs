//! Pods that run other people's servers: whatever HTTP allows reaches the client whole.

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fixture::{CHAT, Exchange, Pod, TestGateway, chunk, ok_json, post};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};

async fn answer_of(text: &'static str) -> fixture::Response {
    let pod = Pod::start(move |exchange| exchange.finish_with(text.into())).await;
    TestGateway::start(&[pod.address]).await.ask(CHAT).await
}

#[tokio::test]
async fn a_body_that_ends_with_its_connection_is_whole_for_the_client() {
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        let text = format!(
            "{version} 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{{\"a\": 1}}"
        );
        let response = answer_of(text.leak()).await;
        assert!(response.whole, "{response:?}");
        assert_eq!(
            (response.status, response.body.as_str()),
            (200, "{\"a\": 1}")
        );
        assert!(response.head.starts_with("http/1.1 200"), "{response:?}");
    }
}

#[tokio::test]
async fn an_http_1_0_server_does_not_end_the_clients_connection() {
    let pod = Pod::start(|exchange| {
        exchange.finish_with("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}".into())
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let mut client = gateway.connect().await;
    let kept = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{CHAT}",
        CHAT.len()
    );
    client.write(kept.as_bytes()).await;
    client.read_until("\r\n\r\n{}").await;
    client.write(&post("/v1/completions", CHAT)).await;
    let both = client.response().await;
    assert_eq!(pod.requests(), 2, "{both:?}");
}

#[tokio::test]
async fn events_that_end_with_their_connection_reach_the_client() {
    let text = "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\ndata: {\"x\":1}\n\ndata: [DONE]\n\n";
    let response = answer_of(text).await;
    assert!(response.whole, "{response:?}");
    assert_eq!(response.body, "data: {\"x\":1}\n\ndata: [DONE]\n\n");
}

#[tokio::test]
async fn chunks_that_are_no_events_reach_the_client_as_they_come() {
    let pod = Pod::start(|mut exchange| async move {
        exchange
            .write("HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nX-Engine-Detail: odd value\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        for part in ["first ", "second"] {
            exchange.write(&chunk(part)).await;
        }
        exchange.write("0\r\n\r\n").await;
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let response = gateway.send(&post("/v1/audio/speech", CHAT)).await;
    assert!(response.whole, "{response:?}");
    assert_eq!(response.body, "first second");
    assert_eq!(response.header("x-engine-detail"), Some("odd value"));
}

#[tokio::test]
async fn a_servers_own_refusals_reach_the_client_with_its_advice() {
    let busy =
        "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 6\r\n\r\n\"busy\"";
    let response = answer_of(busy).await;
    assert_eq!(
        (response.status, response.header("retry-after")),
        (429, Some("7"))
    );
    // Without `Retry-After` nobody promised that nothing was done: it is the server's answer.
    let loading = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 9\r\n\r\n\"loading\"";
    let response = answer_of(loading).await;
    assert_eq!(
        (response.status, response.body.as_str()),
        (503, "\"loading\"")
    );
    let unknown = "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(answer_of(unknown).await.status, 404);
}

#[tokio::test]
async fn any_form_of_retry_after_sends_a_503_elsewhere() {
    for advice in ["0", "120", "Wed, 21 Oct 2026 07:28:00 GMT", ""] {
        let text = format!(
            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: {advice}\r\nContent-Length: 0\r\n\r\n"
        );
        let refusing = Pod::start(move |exchange| exchange.finish_with(text.clone())).await;
        let good = Pod::answering("{}").await;
        let gateway = TestGateway::start(&[refusing.address, good.address]).await;
        for _ in 0..8 {
            assert_eq!(gateway.ask(CHAT).await.status, 200, "{advice:?}");
        }
    }
}

/// Answers one request, keeps its connection, and resets it under the next one.
async fn answer_then_reset(listener: TcpListener, resets: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        let resets = Arc::clone(&resets);
        tokio::spawn(async move {
            let Some(mut exchange) = Exchange::of(stream).await else {
                return;
            };
            exchange.write(&ok_json("{}")).await;
            let mut byte = [0; 1];
            if exchange
                .stream
                .read(&mut byte)
                .await
                .is_ok_and(|read| read == 1)
            {
                resets.fetch_add(1, Ordering::SeqCst);
            }
            // With bytes unread, closing resets.
        });
    }
}

#[tokio::test]
async fn a_kept_connection_that_a_vanished_pod_resets_costs_the_client_nothing() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind("127.0.0.1:0".parse().expect("an address"))
        .expect("bound");
    let listener = socket.listen(64).expect("listens");
    let address = listener.local_addr().expect("bound");
    let resets = Arc::new(AtomicUsize::new(0));
    let pod = tokio::spawn(answer_then_reset(listener, Arc::clone(&resets)));
    let gateway = TestGateway::start(&[address]).await;
    for _ in 0..20 {
        assert_eq!(gateway.ask(CHAT).await.status, 200);
    }
    assert!(
        resets.load(Ordering::SeqCst) > 0,
        "a kept connection was used and reset"
    );
    pod.abort();
}

#[tokio::test]
async fn a_pod_that_took_a_gone_pods_address_gets_its_requests() {
    let first = Pod::start(|exchange| exchange.finish_with(ok_json("\"first\""))).await;
    let address = first.address;
    let gateway = TestGateway::start(&[address]).await;
    assert_eq!(gateway.ask(CHAT).await.body, "\"first\"");
    first.end().await;
    gateway.set_pods(&[]);
    let second = Pod::start_at(address, |exchange| {
        exchange.finish_with(ok_json("\"second\""))
    })
    .await;
    gateway.set_pods(&[second.address]);
    assert_eq!(gateway.ask(CHAT).await.body, "\"second\"");
}
