//! Held requests for a stream that are answered before there is a pod.

mod fixture;

use std::sync::Arc;
use std::time::Duration;

use fixture::{
    CHAT, Client, Exchange, Pod, Response, SSE_HEAD, TestGateway, chunk, post, settings,
};
use pagoda_router::core::routes::{ServiceKey, Settings};
use pagoda_router::proxy::ProxyConfig;
use pagoda_router::server::ServerConfig;
use tokio::sync::mpsc;

const STREAM: &str = r#"{"model":"chat","stream":true}"#;
const COMMENT: &str = ": waiting for a pod of ns/chat\n\n";
const PODS_STREAM: &str =
    ": ping\n\nevent: x\r\ndata: one\r\n\r\ndata: two\ndata: lines\n\ndata: [DONE]\n\nid: no end";

/// A gateway without pods that answers held streams after `millis`.
async fn early_after(millis: u64) -> TestGateway {
    with_hold(Settings {
        early_stream: Some(Duration::from_millis(millis)),
        ..settings()
    })
    .await
}

async fn with_hold(settings: Settings) -> TestGateway {
    let (proxy, server) = (ProxyConfig::default(), ServerConfig::default());
    TestGateway::start_with(&[], proxy, server, settings).await
}

/// A client whose request for a stream is held and has been answered.
async fn answered_early(gateway: &TestGateway) -> Client {
    let mut client = gateway.connect().await;
    client.write(&post("/v1/chat/completions", STREAM)).await;
    client.read_until(COMMENT).await;
    client
}

async fn streaming_pod() -> Pod {
    Pod::start(|mut exchange| async move {
        exchange.write(SSE_HEAD).await;
        for part in PODS_STREAM.as_bytes().chunks(7) {
            let part = std::str::from_utf8(part).expect("ASCII");
            exchange.write(&chunk(part)).await;
        }
        exchange.finish_with("0\r\n\r\n".into()).await;
    })
    .await
}

/// What follows the comments.
fn after_comments(response: &Response) -> &str {
    let mut rest = response.body.as_str();
    while let Some(after) = rest.strip_prefix(COMMENT) {
        rest = after;
    }
    assert_ne!(rest.len(), response.body.len(), "no comment: {response:?}");
    rest
}

/// The code of the one event that ends an answer.
fn error_event(response: &Response) -> serde_json::Value {
    assert!(response.whole && response.status == 200, "{response:?}");
    let event = after_comments(response).strip_prefix("data: ");
    let event = event.and_then(|event| event.strip_suffix("\n\n"));
    let event = event.unwrap_or_else(|| panic!("no event: {response:?}"));
    let mut event: serde_json::Value = serde_json::from_str(event).expect("one line of JSON");
    event["error"].take()
}

#[tokio::test]
async fn a_held_stream_begins_with_comments_and_goes_on_with_exactly_the_pods_bytes() {
    let gateway = early_after(20).await;
    let client = answered_early(&gateway).await;
    assert_eq!(gateway.metric("held_requests"), 1, "it still waits");
    let pod = streaming_pod().await;
    gateway.set_pods(&[pod.address]);
    let response = client.response().await;
    assert!(response.whole && response.status == 200);
    assert_eq!(after_comments(&response), PODS_STREAM);
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    assert!(response.header("x-request-id").is_some());
    gateway.until("in_flight_requests", 0).await;
    assert_eq!(gateway.metric("held_requests"), 0);
    assert_eq!(gateway.metric("early_streams_total"), 1);
    assert_eq!(gateway.series("requests_total", "code=\"200\""), Some(1));
}

#[tokio::test]
async fn what_asks_for_no_stream_waits_for_the_pods_own_status() {
    let gateway = early_after(1).await;
    let answer = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\nX-Why: full\r\n\r\n{}";
    let pod = Pod::start(move |exchange| exchange.finish_with(answer.into())).await;
    let bodies = [
        CHAT,
        r#"{"model":"chat","stream":false}"#,
        r#"{"model":"chat","stream":"true"}"#,
    ];
    let asking = futures::future::join_all(bodies.map(|body| gateway.ask(body)));
    let (responses, ()) = tokio::join!(asking, async {
        gateway.until("held_requests", 3).await;
        // Its time is over long before it is given a pod.
        let client = answered_early(&gateway).await;
        drop(client);
        gateway.set_pods(&[pod.address]);
    });
    for response in responses {
        assert_eq!(
            (response.status, response.header("x-why")),
            (429, Some("full"))
        );
    }
}

#[tokio::test]
async fn a_stream_that_is_not_held_so_long_has_the_pods_own_head() {
    let gateway = early_after(60_000).await;
    let head = SSE_HEAD.replace("\r\n\r\n", "\r\nX-Own: yes\r\n\r\n");
    let pod = Pod::start(move |mut exchange| {
        let head = head.clone();
        async move {
            exchange.write(&head).await;
            exchange
                .finish_with(chunk("data: [DONE]\n\n") + "0\r\n\r\n")
                .await;
        }
    })
    .await;
    let (response, ()) = tokio::join!(gateway.ask(STREAM), async {
        gateway.until("held_requests", 1).await;
        gateway.set_pods(&[pod.address]);
    });
    assert_eq!(response.header("x-own"), Some("yes"));
    assert_eq!(response.body, "data: [DONE]\n\n");
    assert_eq!(
        gateway.ask(STREAM).await.header("x-own"),
        Some("yes"),
        "not held at all"
    );
}

#[tokio::test]
async fn by_default_no_held_stream_is_answered_early() {
    let gateway = TestGateway::start(&[]).await;
    let pod = Pod::answering("{}").await;
    let (response, ()) = tokio::join!(gateway.ask(STREAM), async {
        gateway.until("held_requests", 1).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        gateway.set_pods(&[pod.address]);
    });
    assert_eq!((response.status, response.body.as_str()), (200, "{}"));
}

#[tokio::test]
async fn the_deadline_of_a_stream_answered_early_ends_it_with_an_error_event() {
    let gateway = with_hold(Settings {
        early_stream: Some(Duration::from_millis(10)),
        hold_timeout: Duration::from_millis(200),
        ..settings()
    })
    .await;
    let response = gateway.ask(STREAM).await;
    let error = error_event(&response);
    assert_eq!(
        (error["code"].as_str(), error["type"].as_str()),
        (Some("no_ready_pods"), Some("server_error"))
    );
    gateway.until("held_requests", 0).await;
    assert_eq!(gateway.series("requests_total", "code=\"503\""), Some(1));
}

#[tokio::test]
async fn a_pods_error_becomes_an_event_in_the_pods_own_words() {
    let own =
        "{\n \"error\": {\"message\": \"too long\", \"code\": \"context_length_exceeded\"}\n}";
    let sized = |status: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let chunked = format!(
        "HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk(own)
    );
    let endless = format!("{{\"error\":{{\"message\":\"{}\"}}}}", "x".repeat(1 << 20));
    let cases = [
        (sized("400 Bad", own), "context_length_exceeded"),
        (chunked, "context_length_exceeded"),
        (sized("500 Oh", "<html>no</html>"), "pod_error"),
        (sized("500 Oh", &endless), "pod_error"),
        (sized("200 OK", "{\"choices\":[]}"), "pod_sent_no_stream"),
    ];
    for (answer, code) in cases {
        let gateway = early_after(5).await;
        let client = answered_early(&gateway).await;
        let pod = Pod::start(move |exchange| exchange.finish_with(answer.clone())).await;
        gateway.set_pods(&[pod.address]);
        assert_eq!(error_event(&client.response().await)["code"], code);
        gateway.until("in_flight_requests", 0).await;
    }
}

#[tokio::test]
async fn a_stream_answered_early_is_taken_to_another_pod_as_long_as_none_has_begun() {
    let gateway = early_after(5).await;
    let client = answered_early(&gateway).await;
    let broken = Pod::start(|exchange| exchange.finish_with(String::new())).await;
    gateway.set_pods(&[broken.address]);
    gateway.until("held_requests", 1).await;
    let good = streaming_pod().await;
    gateway.set_pods(&[broken.address, good.address]);
    assert_eq!(after_comments(&client.response().await), PODS_STREAM);
}

#[tokio::test]
async fn a_pod_that_breaks_off_after_an_early_answer_is_told_as_ever() {
    let gateway = early_after(5).await;
    let client = answered_early(&gateway).await;
    let pod = Pod::start(|mut exchange| async move {
        exchange.write(SSE_HEAD).await;
        exchange.finish_with(chunk("data: {\"tor")).await;
    })
    .await;
    gateway.set_pods(&[pod.address]);
    assert_eq!(error_event(&client.response().await)["code"], "pod_failed");
    assert_eq!(gateway.metric("cut_streams_total"), 1);
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_answered_early_is_forgotten() {
    let gateway = early_after(5).await;
    let client = answered_early(&gateway).await;
    drop(client);
    gateway.until("held_requests", 0).await;
    assert_eq!(gateway.gateway.budget.used_bytes(), 0);
    let pod = streaming_pod().await;
    gateway.set_pods(&[pod.address]);
    let response = gateway.ask(STREAM).await;
    assert_eq!((response.body.as_str(), pod.requests()), (PODS_STREAM, 1));
}

#[tokio::test]
async fn at_the_end_streams_answered_early_are_told_to_come_again() {
    let mut gateway = early_after(5).await;
    let client = answered_early(&gateway).await;
    gateway.stop();
    let error = error_event(&client.response().await);
    assert_eq!(error["code"], "gateway_stopping");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|told| told.contains("again"))
    );
    gateway.ended().await;
}

#[tokio::test]
async fn a_deleted_service_ends_its_streams_answered_early() {
    let gateway = early_after(5).await;
    let client = answered_early(&gateway).await;
    let key = ServiceKey::new("ns", "chat");
    gateway
        .gateway
        .directory
        .update(|routes| routes.remove_service(&key));
    assert_eq!(
        error_event(&client.response().await)["code"],
        "model_not_found"
    );
}

#[tokio::test]
async fn streams_answered_early_count_towards_the_bound_on_held_requests() {
    let gateway = with_hold(Settings {
        early_stream: Some(Duration::from_millis(1)),
        hold_max_requests: 1,
        ..settings()
    })
    .await;
    let client = answered_early(&gateway).await;
    let refused = gateway.ask(STREAM).await;
    assert_eq!(
        (refused.status, refused.error_code().as_str()),
        (503, "too_many_held_requests")
    );
    assert!(refused.header("retry-after").is_some());
    drop(client);
}

#[tokio::test]
async fn after_an_early_answer_the_pod_is_asked_for_no_encoding_that_can_no_longer_be_told() {
    let (seen, mut heads) = mpsc::unbounded_channel();
    let pod = Pod::start(move |exchange: Exchange| {
        let _ = seen.send(exchange.head.clone());
        exchange.finish_with(format!("{SSE_HEAD}{}0\r\n\r\n", chunk("data: [DONE]\n\n")))
    })
    .await;
    let gateway = early_after(5).await;
    let request = || {
        let request = String::from_utf8(post("/v1/chat/completions", STREAM)).expect("text");
        request.replacen("\r\n", "\r\nAccept-Encoding: gzip\r\n", 1)
    };
    let mut client = gateway.connect().await;
    client.write(request().as_bytes()).await;
    client.read_until(COMMENT).await;
    gateway.set_pods(&[pod.address]);
    client.response().await;
    let head = heads.recv().await.expect("a request");
    assert!(!head.contains("accept-encoding"), "{head}");
    gateway.send(request().as_bytes()).await;
    let head = heads.recv().await.expect("a request");
    assert!(head.contains("accept-encoding: gzip"), "{head}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_does_not_keep_its_request_from_the_pod() {
    let gateway = early_after(5).await;
    let stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .expect("connected");
    let (mut sender, connection) =
        hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
            .initial_stream_window_size(0)
            .handshake(hyper_util::rt::TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    let body = http_body_util::Full::new(bytes::Bytes::from_static(STREAM.as_bytes()));
    let request =
        http::Request::post(format!("http://{}/v1/completions", gateway.address)).body(body);
    let response = sender.send_request(request.expect("valid")).await;
    let _unread = response.expect("answered early");
    let pod = streaming_pod().await;
    gateway.set_pods(&[pod.address]);
    gateway.until("held_requests", 0).await;
    let given = async {
        while pod.requests() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let given = tokio::time::timeout(Duration::from_secs(30), given).await;
    given.expect("the pod has it");
}

#[tokio::test]
async fn two_gateways_hold_each_their_own_and_lose_none() {
    let gateways = Arc::new([early_after(5).await, early_after(5).await]);
    let pod = streaming_pod().await;
    let asking = futures::future::join_all((0..20).map(|nth| gateways[nth % 2].ask(STREAM)));
    let (responses, ()) = tokio::join!(asking, async {
        for gateway in gateways.iter() {
            gateway.until("held_requests", 10).await;
        }
        gateways[0].set_pods(&[pod.address]);
        gateways[0].until("held_requests", 0).await;
        assert_eq!(gateways[1].metric("held_requests"), 10);
        gateways[1].set_pods(&[pod.address]);
    });
    for response in responses {
        assert!(
            response.whole && response.body.ends_with(PODS_STREAM),
            "{response:?}"
        );
    }
}
