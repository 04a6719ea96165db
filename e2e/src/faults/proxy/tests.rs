use std::time::Duration;

use super::*;

/// A server that answers lists at once and sends a line of a watch whenever it is told to.
struct Upstream {
    base: String,
    lines: tokio::sync::broadcast::Sender<&'static str>,
    heard: Arc<Mutex<Vec<String>>>,
}

async fn upstream() -> Upstream {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let lines = tokio::sync::broadcast::Sender::new(16);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (told, log) = (lines.clone(), heard.clone());
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let (told, log) = (told.clone(), log.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (told, log) = (told.clone(), log.clone());
                async move {
                    let credentials = request.headers().get(header::AUTHORIZATION).cloned();
                    let credentials = credentials
                        .as_ref()
                        .map_or("nobody", |c| c.to_str().unwrap());
                    lock(&log).push(format!("{} {credentials}", request.method()));
                    let watch = request.uri().query() == Some("watch=true");
                    let body: Body = if watch {
                        line_body(&told)
                    } else {
                        whole("listed".to_owned())
                    };
                    Ok::<_, Infallible>(Response::new(body))
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(connection), service),
            );
        }
    });
    Upstream { base, lines, heard }
}

fn line_body(told: &tokio::sync::broadcast::Sender<&'static str>) -> Body {
    let frames = futures::stream::unfold(told.subscribe(), |mut lines| async {
        let line = lines.recv().await.ok()?;
        Some((Ok(Frame::data(Bytes::from_static(line.as_bytes()))), lines))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(20))
        .build()
        .unwrap()
}

async fn open_watch(proxy: &FaultProxy) -> reqwest::Response {
    let url = format!("{}/api/v1/pods?watch=true", proxy.url());
    client().get(url).send().await.unwrap()
}

/// A watch that has brought its first line, so that it is certainly open.
async fn flowing_watch(proxy: &FaultProxy, upstream: &Upstream) -> reqwest::Response {
    let mut watch = open_watch(proxy).await;
    while upstream.lines.send("first\n").is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(watch.chunk().await.unwrap().unwrap(), "first\n");
    watch
}

#[tokio::test]
async fn passes_requests_with_their_credentials_and_counts_them() {
    let upstream = upstream().await;
    let proxy = FaultProxy::to(&upstream.base, None).await.unwrap();
    let url = format!("{}/api/v1/namespaces/a/pods", proxy.url());
    let answer = client().get(url).bearer_auth("mine").send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "listed");
    assert_eq!(*lock(&upstream.heard), ["GET Bearer mine"]);
    let lists = Match::verbs(&[Verb::List]).of("pods").in_namespace("a");
    assert_eq!(proxy.counts().total(&lists), 1);
}

#[tokio::test]
async fn a_refused_write_never_reaches_the_server_and_says_when_to_come_again() {
    let upstream = upstream().await;
    let proxy = FaultProxy::to(&upstream.base, None).await.unwrap();
    let busy = Fault::Answer {
        status: 429,
        retry_after: Some(2),
    };
    let rule = proxy.add(Match::writes(), busy);
    let url = format!("{}/api/v1/namespaces/a/pods/p", proxy.url());
    let answer = client().put(&url).body("{}").send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["retry-after"]),
        (429, &"2".parse().unwrap())
    );
    let status: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(429), &json!("TooManyRequests"))
    );
    assert!(lock(&upstream.heard).is_empty());
    assert_eq!(proxy.remove(rule), 1);
    assert!(
        client()
            .put(&url)
            .body("{}")
            .send()
            .await
            .unwrap()
            .status()
            .is_success()
    );
}

#[tokio::test]
async fn a_lost_answer_is_a_write_that_happened() {
    let upstream = upstream().await;
    let proxy = FaultProxy::to(&upstream.base, None).await.unwrap();
    proxy.add_times(1, Match::writes(), Fault::LoseAnswer);
    let url = format!("{}/api/v1/namespaces/a/pods/p", proxy.url());
    assert!(client().put(url).body("{}").send().await.is_err());
    assert_eq!(*lock(&upstream.heard), ["PUT nobody"]);
}

#[tokio::test]
async fn a_struck_watch_gets_410_or_ends_in_order_or_is_cut() {
    let upstream = upstream().await;
    let proxy = FaultProxy::to(&upstream.base, None).await.unwrap();
    let mut gone = flowing_watch(&proxy, &upstream).await;
    assert_eq!(
        proxy.strike(&Match::watches().of("pods"), WatchFault::Gone),
        1
    );
    let event: serde_json::Value =
        serde_json::from_slice(&gone.chunk().await.unwrap().unwrap()).unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert!(gone.chunk().await.unwrap().is_none());

    let mut closed = flowing_watch(&proxy, &upstream).await;
    proxy.strike(&Match::watches(), WatchFault::Close);
    assert!(closed.chunk().await.unwrap().is_none());

    let mut cut = flowing_watch(&proxy, &upstream).await;
    proxy.strike(&Match::watches(), WatchFault::Cut);
    assert!(cut.chunk().await.is_err());
}

#[tokio::test]
async fn a_frozen_watch_brings_nothing_until_it_thaws_and_a_new_one_flows() {
    let upstream = upstream().await;
    let proxy = FaultProxy::to(&upstream.base, None).await.unwrap();
    let mut frozen = flowing_watch(&proxy, &upstream).await;
    assert_eq!(proxy.strike(&Match::watches(), WatchFault::Freeze), 1);
    let mut fresh = open_watch(&proxy).await;
    while upstream.lines.receiver_count() < 2 {
        tokio::task::yield_now().await;
    }
    upstream.lines.send("second\n").unwrap();
    assert_eq!(fresh.chunk().await.unwrap().unwrap(), "second\n");
    let silence = tokio::time::timeout(Duration::from_millis(200), frozen.chunk()).await;
    assert!(silence.is_err(), "a frozen watch brought {silence:?}");
    proxy.thaw();
    assert_eq!(frozen.chunk().await.unwrap().unwrap(), "second\n");
    drop(fresh);
    while proxy.open_watches(&Match::watches()) != 1 {
        tokio::task::yield_now().await;
        // The closed connection is noticed when the next line is written to it.
        upstream.lines.send("third\n").ok();
    }
}

#[tokio::test]
async fn silence_lasts_as_long_as_its_rule_and_then_the_connection_ends() {
    let upstream = upstream().await;
    let proxy = FaultProxy::to(&upstream.base, None).await.unwrap();
    proxy.fall_silent();
    let url = format!("{}/api/v1/pods", proxy.url());
    let mut waiting = tokio::spawn(client().get(&url).send());
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(early.is_err(), "answered: {early:?}");
    proxy.heal().await;
    assert!(waiting.await.unwrap().is_err());
    assert!(client().get(&url).send().await.is_ok());
}

#[tokio::test]
async fn refused_connections_are_refused_and_open_ones_end() {
    let upstream = upstream().await;
    let proxy = FaultProxy::to(&upstream.base, None).await.unwrap();
    let mut watch = flowing_watch(&proxy, &upstream).await;
    proxy.refuse_connections().await;
    assert!(watch.chunk().await.is_err());
    let url = format!("{}/api/v1/pods", proxy.url());
    assert!(client().get(&url).send().await.unwrap_err().is_connect());
    proxy.accept_connections().await;
    assert!(client().get(&url).send().await.is_ok());
}
