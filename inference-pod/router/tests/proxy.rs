//! The gateway against pods and clients that behave well and badly, on loopback.

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fixture::{CHAT, Pod, SSE_HEAD, TestGateway, chunk, key, nobody, ok_json, post, settings};
use pagoda_router::proxy::ProxyConfig;
use pagoda_router::server::ServerConfig;
use pagoda_router::upstream::UpstreamConfig;
use tokio::io::AsyncReadExt;
use tokio::sync::{Mutex, Notify, mpsc};

const DRAINING: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";

#[tokio::test]
async fn a_request_reaches_the_pod_byte_by_byte_and_so_does_the_answer_the_client() {
    let (seen, mut requests) = mpsc::unbounded_channel();
    let pod = Pod::start(move |exchange| {
        let _ = seen.send((exchange.head.clone(), exchange.body.clone()));
        exchange.finish_with(ok_json("{ \"odd\" :\t1 }"))
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let body = "{ \"x\" : [1e400, \"\\u00e9\"],\n \"model\":\"ns/chat\", \"unknown_field\": {} }";
    let response = gateway.send(&post("/v1/completions?a=%20b", body)).await;
    assert_eq!(
        (response.status, response.body.as_str()),
        (200, "{ \"odd\" :\t1 }")
    );
    assert!(
        response
            .header("x-request-id")
            .is_some_and(|id| id.len() == 32)
    );
    let (head, seen_body) = requests.recv().await.expect("a request");
    assert!(
        head.starts_with("post /v1/completions?a=%20b http/1.1"),
        "{head}"
    );
    assert!(
        head.contains("x-forwarded-for: 127.0.0.1")
            && head.contains(&format!("host: {}", pod.address)),
        "{head}"
    );
    assert_eq!(seen_body, body.as_bytes());
}

#[tokio::test]
async fn each_event_reaches_the_client_before_the_next_one_exists() {
    let told = Arc::new(Notify::new());
    let tell = Arc::clone(&told);
    let pod = Pod::start(move |mut exchange| {
        let told = Arc::clone(&told);
        async move {
            exchange.write(SSE_HEAD).await;
            for event in ["data: one\n\n", "data: two\n\n", "data: [DONE]\n\n"] {
                exchange.write(&chunk(event)).await;
                told.notified().await;
            }
            exchange.finish_with("0\r\n\r\n".into()).await;
        }
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let mut client = gateway.connect().await;
    client.write(&post("/v1/chat/completions", CHAT)).await;
    for event in ["data: one", "data: two", "data: [DONE]"] {
        client.read_until(event).await;
        tell.notify_one();
    }
    let response = client.response().await;
    assert!(response.whole);
    assert_eq!(response.body, "data: one\n\ndata: two\n\ndata: [DONE]\n\n");
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
}

#[tokio::test]
async fn a_stream_broken_off_by_its_pod_ends_with_an_error_event_and_no_torn_line() {
    let pod = Pod::start(|mut exchange| async move {
        exchange.write(SSE_HEAD).await;
        exchange
            .finish_with(chunk("data: one\n\ndata: {\"tor"))
            .await;
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let response = gateway.ask(CHAT).await;
    assert!(response.whole, "the error event is the stream's proper end");
    let rest = response
        .body
        .strip_prefix("data: one\n\ndata: ")
        .unwrap_or_else(|| panic!("{response:?}"));
    let event: serde_json::Value = serde_json::from_str(rest).expect("JSON");
    assert_eq!(event["error"]["code"], "pod_failed");
    gateway.until("in_flight_requests", 0).await;
    assert_eq!(gateway.metric("cut_streams_total"), 1);
}

#[tokio::test]
async fn a_pod_silent_in_the_middle_of_a_stream_counts_as_gone() {
    let pod = Pod::start(|mut exchange| async move {
        exchange.write(SSE_HEAD).await;
        exchange.write(&chunk("data: one\n\n")).await;
        exchange.until_closed().await;
    })
    .await;
    let proxy = ProxyConfig {
        stall_timeout: Duration::from_millis(50),
        ..ProxyConfig::default()
    };
    let gateway =
        TestGateway::start_with(&[pod.address], proxy, ServerConfig::default(), settings()).await;
    let response = gateway.ask(CHAT).await;
    assert!(
        response.whole && response.body.contains("pod_stalled"),
        "{response:?}"
    );
}

#[tokio::test]
async fn an_answer_torn_before_anything_was_sent_is_retried_and_then_a_clean_502() {
    let pod = Pod::start(|exchange| {
        exchange.finish_with("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\"".into())
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let response = gateway.ask(CHAT).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (502, "pod_failed")
    );
    assert_eq!(pod.requests(), 3, "bounded");
}

#[tokio::test]
async fn garbage_and_connections_closed_without_an_answer_are_clean_502s() {
    for answer in ["\u{0}\u{1}garbage\r\n\r\n", ""] {
        let pod = Pod::start(move |exchange| exchange.finish_with(answer.into())).await;
        let gateway = TestGateway::start(&[pod.address]).await;
        let response = gateway.ask(CHAT).await;
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (502, "pod_failed")
        );
        assert_eq!(gateway.metric("in_flight_requests"), 0);
    }
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    let pod = Pod::start(|mut exchange| async move {
        exchange.write("HTTP/1.1 200 OK\r\n").await;
        exchange
            .finish_with(format!("X: {}\r\n", "y".repeat(4096)).repeat(100))
            .await;
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    assert_eq!(gateway.ask(CHAT).await.status, 502);
}

#[tokio::test]
async fn a_pod_that_accepts_and_never_answers_is_a_504_and_not_asked_twice() {
    let pod = Pod::start(fixture::Exchange::until_closed).await;
    let upstream = UpstreamConfig {
        head_timeout: Duration::from_millis(50),
        ..UpstreamConfig::default()
    };
    let proxy = ProxyConfig {
        upstream,
        ..ProxyConfig::default()
    };
    let gateway =
        TestGateway::start_with(&[pod.address], proxy, ServerConfig::default(), settings()).await;
    let response = gateway.ask(CHAT).await;
    assert_eq!(
        (
            response.status,
            response.error_code().as_str(),
            pod.requests()
        ),
        (504, "pod_timed_out", 1)
    );
}

#[tokio::test]
async fn pods_that_never_took_the_request_are_passed_over() {
    let draining = Pod::start(|exchange| exchange.finish_with(DRAINING.into())).await;
    let good = Pod::answering("{}").await;
    let gateway = TestGateway::start(&[draining.address, nobody().await, good.address]).await;
    for _ in 0..20 {
        assert_eq!(gateway.ask(CHAT).await.status, 200);
    }
    assert_eq!(good.requests(), 20);
}

#[tokio::test]
async fn a_request_that_kills_its_pods_does_not_walk_through_all_of_them() {
    let begun = Arc::new(AtomicUsize::new(0));
    let mut pods = Vec::new();
    for _ in 0..6 {
        let begun = Arc::clone(&begun);
        pods.push(
            Pod::start(move |exchange| {
                begun.fetch_add(1, Ordering::SeqCst);
                exchange.finish_with(String::new())
            })
            .await,
        );
    }
    let addresses: Vec<_> = pods.iter().map(|pod| pod.address).collect();
    let gateway = TestGateway::start(&addresses).await;
    assert_eq!(gateway.ask(CHAT).await.status, 502);
    assert_eq!(begun.load(Ordering::SeqCst), 3);
    assert!(
        pods.iter().all(|pod| pod.requests() <= 1),
        "each attempt at another pod"
    );
}

#[tokio::test]
async fn a_request_refused_by_the_only_pod_waits_for_another_one() {
    let draining = Pod::start(|exchange| exchange.finish_with(DRAINING.into())).await;
    let good = Pod::answering("{}").await;
    let gateway = TestGateway::start(&[draining.address]).await;
    let (response, ()) = tokio::join!(gateway.ask(CHAT), async {
        gateway.until("held_requests", 1).await;
        gateway.set_pods(&[good.address]);
    });
    assert_eq!(response.status, 200);
    gateway.until("held_requests", 0).await;
}

#[tokio::test]
async fn an_unreachable_pod_is_given_up_when_the_hold_is_over() {
    let brief = pagoda_router::core::routes::Settings {
        hold_timeout: Duration::from_millis(120),
        ..settings()
    };
    let gateway = TestGateway::start_with(
        &[nobody().await],
        ProxyConfig::default(),
        ServerConfig::default(),
        brief,
    )
    .await;
    let response = gateway.ask(CHAT).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (502, "pods_unreachable")
    );
    assert!(response.header("retry-after").is_some());
}

#[tokio::test]
async fn other_errors_of_a_pod_pass_through_untouched() {
    let answer =
        "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 9\r\nX-Why: full\r\n\r\n{\"own\":1}";
    let pod = Pod::start(move |exchange| exchange.finish_with(answer.into())).await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let response = gateway.ask(CHAT).await;
    assert_eq!(
        (
            response.status,
            response.body.as_str(),
            response.header("x-why")
        ),
        (429, "{\"own\":1}", Some("full"))
    );
    assert_eq!(pod.requests(), 1);
}

/// A pod that tells when a request has come and when its connection was closed.
async fn watched_pod(before: &'static str) -> (Pod, Arc<Notify>, Arc<Notify>) {
    let (come, closed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell_come, tell_closed) = (Arc::clone(&come), Arc::clone(&closed));
    let pod = Pod::start(move |mut exchange| {
        let (tell_come, tell_closed) = (Arc::clone(&tell_come), Arc::clone(&tell_closed));
        async move {
            exchange.write(before).await;
            tell_come.notify_one();
            exchange.until_closed().await;
            tell_closed.notify_one();
        }
    })
    .await;
    (pod, come, closed)
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_ends_its_request_at_the_pod() {
    let (pod, come, closed) = watched_pod("").await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let mut client = gateway.connect().await;
    client.write(&post("/v1/chat/completions", CHAT)).await;
    come.notified().await;
    assert_eq!(gateway.metric("in_flight_requests"), 1);
    drop(client);
    closed.notified().await;
    gateway.until("in_flight_requests", 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_stream_ends_its_request_at_the_pod() {
    let (pod, _come, closed) = watched_pod("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n").await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let mut client = gateway.connect().await;
    client.write(&post("/v1/chat/completions", CHAT)).await;
    client.read_until("data: 1").await;
    drop(client);
    closed.notified().await;
    gateway.until("in_flight_requests", 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_while_held_is_forgotten() {
    let gateway = TestGateway::start(&[]).await;
    let mut client = gateway.connect().await;
    client.write(&post("/v1/chat/completions", CHAT)).await;
    gateway.until("held_requests", 1).await;
    drop(client);
    gateway.until("held_requests", 0).await;
    assert_eq!(gateway.gateway.budget.used_bytes(), 0);
}

#[tokio::test]
async fn fifty_requests_at_zero_pods_are_all_answered_when_pods_come() {
    let pods = [
        Pod::answering("{}").await,
        Pod::answering("{}").await,
        Pod::answering("{}").await,
    ];
    let gateway = TestGateway::start(&[]).await;
    let asking = futures::future::join_all((0..50).map(|_| gateway.ask(CHAT)));
    let (responses, ()) = tokio::join!(asking, async {
        gateway.until("held_requests", 50).await;
        gateway.set_pods(&[pods[0].address, pods[1].address, pods[2].address]);
    });
    assert!(responses.iter().all(|response| response.status == 200));
    assert!(
        pods.iter().all(|pod| pod.requests() >= 5),
        "spread: {:?}",
        pods.each_ref().map(Pod::requests)
    );
    assert_eq!(
        (
            gateway.metric("held_requests"),
            gateway.metric("in_flight_requests")
        ),
        (0, 0)
    );
}

#[tokio::test]
async fn a_request_held_to_its_deadline_is_told_what_to_do() {
    let brief = pagoda_router::core::routes::Settings {
        hold_timeout: Duration::from_millis(20),
        ..settings()
    };
    let gateway =
        TestGateway::start_with(&[], ProxyConfig::default(), ServerConfig::default(), brief).await;
    let response = gateway.ask(CHAT).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (503, "no_ready_pods")
    );
    assert!(response.header("retry-after").is_some() && response.body.contains("kubectl describe"));
}

#[tokio::test]
async fn holding_is_bounded() {
    let tight = pagoda_router::core::routes::Settings {
        hold_max_requests: 1,
        ..settings()
    };
    let gateway =
        TestGateway::start_with(&[], ProxyConfig::default(), ServerConfig::default(), tight).await;
    let mut first = gateway.connect().await;
    first.write(&post("/v1/chat/completions", CHAT)).await;
    gateway.until("held_requests", 1).await;
    let response = gateway.ask(CHAT).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (503, "too_many_held_requests")
    );
}

#[tokio::test]
async fn a_held_request_whose_service_is_deleted_gets_404() {
    let gateway = TestGateway::start(&[]).await;
    let (response, ()) = tokio::join!(gateway.ask(CHAT), async {
        gateway.until("held_requests", 1).await;
        gateway
            .gateway
            .directory
            .update(|routes| routes.remove_service(&key()));
    });
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (404, "model_not_found")
    );
}

#[tokio::test]
async fn a_stream_outlives_its_pods_removal_and_new_requests_go_elsewhere() {
    let go_on = Arc::new(Notify::new());
    let told = Arc::clone(&go_on);
    let leaving = Pod::start(move |mut exchange| {
        let told = Arc::clone(&told);
        async move {
            exchange.write(SSE_HEAD).await;
            exchange.write(&chunk("data: one\n\n")).await;
            told.notified().await;
            exchange
                .finish_with(chunk("data: [DONE]\n\n") + "0\r\n\r\n")
                .await;
        }
    })
    .await;
    let staying = Pod::answering("{}").await;
    let gateway = TestGateway::start(&[leaving.address]).await;
    let mut client = gateway.connect().await;
    client.write(&post("/v1/chat/completions", CHAT)).await;
    client.read_until("data: one").await;
    gateway.set_pods(&[staying.address]);
    for _ in 0..5 {
        assert_eq!(gateway.ask(CHAT).await.status, 200);
    }
    go_on.notify_one();
    let response = client.response().await;
    assert!(response.whole && response.body.ends_with("[DONE]\n\n"));
    assert_eq!((leaving.requests(), staying.requests()), (1, 5));
}

#[tokio::test]
async fn bad_requests_get_their_own_clear_errors() {
    let pod = Pod::answering("{}").await;
    let gateway = TestGateway::start(&[pod.address]).await;
    for (body, status, code) in [
        ("", 400, "invalid_json"),
        ("{\"model\":", 400, "invalid_json"),
        ("[]", 400, "invalid_json"),
        (
            "{\"model\":\"chat\",\"model\":\"other\"}",
            400,
            "invalid_json",
        ),
        ("{\"messages\":[]}", 400, "missing_model"),
        ("{\"model\":\"nobody\"}", 404, "model_not_found"),
    ] {
        let response = gateway.ask(body).await;
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (status, code),
            "{body}"
        );
    }
    let mut invalid = post("/v1/chat/completions", "{\"model\":\"chat\",\"p\":\"__\"}");
    let length = invalid.len();
    invalid[length - 4..length - 2].copy_from_slice(&[0xff, 0xfe]);
    let response = gateway.send(&invalid).await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (400, "invalid_json")
    );
    assert!(response.body.contains("UTF-8"));
    assert_eq!(pod.requests(), 0);
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there_say_so() {
    let gateway = TestGateway::start(&[]).await;
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").into_bytes()
    };
    let unknown = gateway.send(&get("/admin")).await;
    assert_eq!(
        (unknown.status, unknown.error_code().as_str()),
        (404, "unknown_url")
    );
    let method = gateway.send(&get("/v1/chat/completions")).await;
    assert_eq!((method.status, method.header("allow")), (405, Some("post")));
    let method = gateway.send(&post("/v1/models", "{}")).await;
    assert_eq!((method.status, method.header("allow")), (405, Some("get")));
}

#[tokio::test]
async fn models_are_listed_and_found_by_either_name() {
    let gateway = TestGateway::start(&[]).await;
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").into_bytes()
    };
    let list: serde_json::Value =
        serde_json::from_str(&gateway.send(&get("/v1/models")).await.body).expect("JSON");
    assert_eq!(
        list,
        serde_json::json!({"object": "list", "data": [{"id": "chat", "object": "model", "created": 5, "owned_by": "ns/chat"}]})
    );
    for name in ["chat", "ns/chat"] {
        assert_eq!(
            gateway
                .send(&get(&format!("/v1/models/{name}")))
                .await
                .status,
            200
        );
    }
    assert_eq!(gateway.send(&get("/v1/models/nobody")).await.status, 404);
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_however_it_is_framed() {
    let pod = Pod::answering("{}").await;
    let mut proxy = ProxyConfig::default();
    proxy.body.max_bytes = 1000;
    let gateway =
        TestGateway::start_with(&[pod.address], proxy, ServerConfig::default(), settings()).await;
    let large = format!("{{\"model\":\"chat\",\"p\":\"{}\"}}", "x".repeat(2_000_000));
    let declared = gateway.ask(&large).await;
    assert_eq!(
        (declared.status, declared.error_code().as_str()),
        (413, "body_too_large")
    );
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk(&large)
    );
    assert_eq!(gateway.send(chunked.as_bytes()).await.status, 413);
    assert_eq!(
        (pod.requests(), gateway.gateway.budget.used_bytes()),
        (0, 0)
    );
}

#[tokio::test]
async fn a_client_that_waits_to_be_asked_is_asked_or_refused_before_it_sends() {
    let pod = Pod::answering("{}").await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let head = |length: usize| {
        format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let mut client = gateway.connect().await;
    client.write(head(CHAT.len()).as_bytes()).await;
    client.read_until("100 Continue").await;
    client.write(CHAT.as_bytes()).await;
    client.read_until("200 OK").await;
    let mut refused = gateway.connect().await;
    refused.write(head(1 << 30).as_bytes()).await;
    let response = refused.response().await;
    assert_eq!(response.status, 413);
    assert!(!response.head.contains("100 continue"));
}

#[tokio::test]
async fn memory_for_bodies_is_bounded_over_all_clients() {
    let proxy = ProxyConfig {
        body_memory_bytes: 100,
        ..ProxyConfig::default()
    };
    let gateway = TestGateway::start_with(&[], proxy, ServerConfig::default(), settings()).await;
    let mut held = gateway.connect().await;
    held.write(&post(
        "/v1/completions",
        &format!("{{\"model\":\"chat\",\"p\":\"{}\"}}", "x".repeat(60)),
    ))
    .await;
    gateway.until("held_requests", 1).await;
    let response = gateway
        .ask(&format!(
            "{{\"model\":\"chat\",\"p\":\"{}\"}}",
            "x".repeat(60)
        ))
        .await;
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (503, "gateway_full")
    );
}

#[tokio::test]
async fn a_client_slow_with_its_head_or_body_is_sent_away() {
    let mut proxy = ProxyConfig::default();
    proxy.body.idle_timeout = Duration::from_millis(50);
    let server = ServerConfig {
        head_timeout: Duration::from_millis(50),
        ..ServerConfig::default()
    };
    let gateway = TestGateway::start_with(&[], proxy, server, settings()).await;
    for head in ["", "P", "PRI * HT", "POST /v1/completions HTTP/1.1\r\nHost"] {
        let mut client = gateway.connect().await;
        client.write(head.as_bytes()).await;
        let mut rest = Vec::new();
        let _ = client.stream.read_to_end(&mut rest).await;
        assert!(!String::from_utf8_lossy(&rest).contains("200"), "{head}");
    }
    let slow = gateway
        .send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        .await;
    assert_eq!(
        (slow.status, slow.error_code().as_str()),
        (408, "body_too_slow")
    );
}

#[tokio::test]
async fn heads_too_large_are_refused() {
    let gateway = TestGateway::start(&[]).await;
    let many = format!(
        "GET /v1/models HTTP/1.1\r\nHost: x\r\n{}\r\n",
        "X-A: b\r\n".repeat(200)
    );
    assert_eq!(gateway.send(many.as_bytes()).await.status, 431);
    let long = format!(
        "GET /v1/models HTTP/1.1\r\nHost: x\r\nX-A: {}\r\n\r\n",
        "b".repeat(200_000)
    );
    assert_eq!(gateway.send(long.as_bytes()).await.status, 431);
}

#[tokio::test]
async fn requests_framed_two_ways_never_become_two_requests_at_the_pod() {
    let (seen, mut requests) = mpsc::unbounded_channel();
    let pod = Pod::start(move |exchange| {
        let _ = seen.send(String::from_utf8_lossy(&exchange.body).into_owned());
        exchange.finish_with(ok_json("{}"))
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let hidden = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{\"model\":\"chat\"}";
    let chunked = format!("{}0\r\n\r\n{hidden}", chunk(CHAT));
    let refused = [
        format!(
            "Content-Length: {}\r\nContent-Length: {}\r\n\r\n{CHAT}{hidden}",
            CHAT.len(),
            CHAT.len() + hidden.len()
        ),
        format!("Content-Length: +{}\r\n\r\n{CHAT}", CHAT.len()),
        format!("Transfer-Encoding: chunked, identity\r\n\r\n{chunked}"),
        format!("Transfer-Encoding: xchunked\r\n\r\n{chunked}"),
        format!("Transfer-Encoding : chunked\r\n\r\n{chunked}"),
        format!(
            "X-Fold: a\r\n Transfer-Encoding: chunked\r\nContent-Length: {}\r\n\r\n{CHAT}",
            CHAT.len()
        ),
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{}\r\n0\r\n\r\n".to_owned(),
    ];
    for framing in refused {
        let response = gateway
            .send(
                format!(
                    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{framing}"
                )
                .as_bytes(),
            )
            .await;
        assert_eq!(response.status, 400, "{framing}");
    }
    assert!(
        requests.try_recv().is_err(),
        "nothing of these reached the pod"
    );
    // Both framings at once: RFC 9112 lets the chunks win. The pod must see exactly that, in one framing.
    let both = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}"
    );
    let response = gateway.send(both.as_bytes()).await;
    if response.status == 200 {
        assert_eq!(requests.recv().await.as_deref(), Some(CHAT));
    } else {
        assert_eq!(response.status, 400);
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_its_pod_and_loses_nothing() {
    const TOTAL: usize = 48 << 20;
    let written = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&written);
    let pod = Pod::start(move |mut exchange| {
        let counter = Arc::clone(&counter);
        async move {
            exchange
                .write(&format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {TOTAL}\r\n\r\n"
                ))
                .await;
            let part = "x".repeat(64 << 10);
            while counter.fetch_add(part.len(), Ordering::SeqCst) < TOTAL {
                exchange.write(&part).await;
            }
        }
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let mut client = gateway.connect().await;
    client.write(&post("/v1/completions", CHAT)).await;
    client.read_until("\r\n\r\n").await;
    let (mut before, mut same) = (0, 0);
    while same < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = written.load(Ordering::SeqCst);
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
    assert!(
        before < TOTAL,
        "the whole answer was taken in, though nobody reads it"
    );
    let response = client.response().await;
    assert!(response.whole && response.body.len() == TOTAL);
}

#[tokio::test]
async fn at_the_end_open_streams_finish_and_held_requests_are_told_to_come_again() {
    let go_on = Arc::new(Notify::new());
    let told = Arc::clone(&go_on);
    let pod = Pod::start(move |mut exchange| {
        let told = Arc::clone(&told);
        async move {
            exchange.write(SSE_HEAD).await;
            exchange.write(&chunk("data: one\n\n")).await;
            told.notified().await;
            exchange
                .finish_with(chunk("data: [DONE]\n\n") + "0\r\n\r\n")
                .await;
        }
    })
    .await;
    let mut gateway = TestGateway::start(&[pod.address]).await;
    let mut streaming = gateway.connect().await;
    streaming.write(&post("/v1/chat/completions", CHAT)).await;
    streaming.read_until("data: one").await;
    gateway.set_pods(&[]);
    let mut held = gateway.connect().await;
    held.write(&post("/v1/chat/completions", CHAT)).await;
    gateway.until("held_requests", 1).await;
    gateway.stop();
    let told_off = held.response().await;
    assert_eq!(
        (told_off.status, told_off.error_code().as_str()),
        (503, "gateway_stopping")
    );
    assert!(told_off.header("retry-after").is_some());
    go_on.notify_one();
    let response = streaming.response().await;
    assert!(response.whole && response.body.ends_with("[DONE]\n\n"));
    gateway.ended().await;
}

#[tokio::test]
async fn one_connection_serves_many_requests_and_http2_works_as_well() {
    let pod = Pod::answering("{}").await;
    let gateway = TestGateway::start(&[pod.address]).await;
    let mut client = gateway.connect().await;
    for _ in 0..3 {
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{CHAT}",
            CHAT.len()
        );
        client.write(request.as_bytes()).await;
    }
    while client.read_until("{}").await.matches("200 OK").count() < 3 {
        let mut more = [0; 1];
        assert_eq!(client.stream.read(&mut more).await.expect("readable"), 1);
        client.push(more[0]);
    }
    let stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .expect("connected");
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    )
    .await
    .expect("HTTP/2");
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://{}/v1/completions", gateway.address)).body(
        http_body_util::Full::new(bytes::Bytes::from_static(CHAT.as_bytes())),
    );
    let response = sender
        .send_request(request.expect("valid"))
        .await
        .expect("answered");
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn a_connection_that_the_pod_has_closed_meanwhile_costs_the_client_nothing() {
    // Each answer keeps the connection and then closes it: the next request may find it dead.
    let order = Arc::new(Mutex::new(()));
    let pod = Pod::start(move |mut exchange| {
        let order = Arc::clone(&order);
        async move {
            let _one_at_a_time = order.lock().await;
            exchange.write(&ok_json("{}")).await;
        }
    })
    .await;
    let gateway = TestGateway::start(&[pod.address]).await;
    for _ in 0..100 {
        assert_eq!(gateway.ask(CHAT).await.status, 200);
    }
}
