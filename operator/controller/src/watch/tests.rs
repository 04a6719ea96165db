use super::*;
use bytes::Bytes;
use futures::stream;
use http::{Request, Response};
use http_body_util::BodyExt;
use http_body_util::{StreamBody, combinators::BoxBody};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use serde_json::{Value, json};
use std::{collections::VecDeque, convert::Infallible, sync::Mutex};

use crate::heartbeat::{Heartbeats, Patience};

const FOREVER: Patience = Patience {
    late: Duration::from_hours(1),
    dead: Duration::from_hours(1),
};

enum Answer {
    /// Lines, and then the end of the connection.
    Ends(Vec<Value>),
    /// Lines, and then nothing for ever.
    Hangs(Vec<Value>),
    /// Another status than 200.
    Status(Value),
}

type Log = Arc<Mutex<Vec<String>>>;

struct Recorder(Log);

impl Recorder {
    fn note(&self, word: &str, object: Option<&ConfigMap>) {
        let name = object.map(ResourceExt::name_any).unwrap_or_default();
        let entry = format!("{word} {name}");
        self.0.lock().unwrap().push(entry.trim().to_owned());
    }
}

impl Sink for Recorder {
    type Object = ConfigMap;
    fn begin(&mut self) {
        self.note("begin", None);
    }
    fn put(&mut self, object: ConfigMap) {
        self.note("put", Some(&object));
    }
    fn remove(&mut self, object: ConfigMap) {
        self.note("remove", Some(&object));
    }
    fn complete(&mut self) {
        self.note("complete", None);
    }
}

fn event(kind: &str, name: &str, version: &str) -> Value {
    json!({"type": kind, "object": {"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "n", "resourceVersion": version}}})
}

fn initial_end(version: &str) -> Value {
    json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"resourceVersion": version, "annotations": {INITIAL_END: "true"}}}})
}

fn bookmark(version: &str) -> Value {
    json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": version}}})
}

fn body(lines: Vec<Value>, hangs: bool) -> BoxBody<Bytes, Infallible> {
    let frames = lines
        .into_iter()
        .map(|line| Ok(http_body::Frame::data(Bytes::from(format!("{line}\n")))));
    let frames = stream::iter(frames);
    if hangs {
        BodyExt::boxed(StreamBody::new(frames.chain(stream::pending())))
    } else {
        BodyExt::boxed(StreamBody::new(frames))
    }
}

fn respond(answer: Answer) -> Response<BoxBody<Bytes, Infallible>> {
    match answer {
        Answer::Ends(lines) => Response::new(body(lines, false)),
        Answer::Hangs(lines) => Response::new(body(lines, true)),
        Answer::Status(status) => {
            let code = status["code"].as_u64().expect("a code of the test") as u16;
            let mut response = Response::new(body(vec![status], false));
            *response.status_mut() = code.try_into().expect("a status of the test");
            response
        }
    }
}

/// Runs a watch against a script until the script is at its end, and tells what was asked and what came of it.
async fn play(optional: bool, script: Vec<Answer>) -> (Vec<String>, Vec<String>) {
    let script = Arc::new(Mutex::new(VecDeque::from(script)));
    let (asked, log): (Log, Log) = Default::default();
    let (requests, finished) = (asked.clone(), Arc::new(tokio::sync::Notify::new()));
    let end = finished.clone();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let next = script.lock().unwrap().pop_front();
        let end = end.clone();
        if next.is_some() {
            let query = request.uri().query().unwrap_or_default().to_owned();
            requests.lock().unwrap().push(query);
        }
        async move {
            let Some(answer) = next else {
                end.notify_one();
                return std::future::pending().await;
            };
            Ok::<_, Infallible>(respond(answer))
        }
    });
    let watch = Watch {
        api: Api::<ConfigMap>::all(Client::new(service, "n")),
        name: "the watch of the test".into(),
        labels: None,
        seconds: 60,
        optional,
    };
    let sign = Heartbeats::default().expect("the watch of the test", FOREVER);
    let running = tokio::spawn(run(watch, Recorder(log.clone()), sign));
    finished.notified().await;
    running.abort();
    (asked.lock().unwrap().clone(), log.lock().unwrap().clone())
}

fn version_of(query: &str) -> Option<&str> {
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("resourceVersion="))
}

#[tokio::test(start_paused = true)]
async fn changes_follow_what_was_there_and_the_next_connection_goes_on_from_the_last() {
    let first = vec![
        event("ADDED", "a", "3"),
        initial_end("7"),
        event("MODIFIED", "a", "8"),
        event("DELETED", "a", "9"),
        bookmark("12"),
    ];
    let (asked, log) = play(false, vec![Answer::Ends(first), Answer::Hangs(vec![])]).await;
    assert_eq!(log, ["begin", "put a", "complete", "put a", "remove a"]);
    assert!(asked[0].contains("sendInitialEvents=true"));
    assert!(!asked[1].contains("sendInitialEvents"));
    assert_eq!(version_of(&asked[1]), Some("12"));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_gone_leads_to_a_new_reading() {
    let gone = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}});
    let again = vec![event("ADDED", "b", "20"), initial_end("21")];
    for script in [
        vec![
            Answer::Ends(vec![initial_end("7"), gone]),
            Answer::Hangs(again.clone()),
        ],
        vec![
            Answer::Ends(vec![initial_end("7")]),
            Answer::Status(json!({"kind": "Status", "code": 410, "message": "too old"})),
            Answer::Hangs(again),
        ],
    ] {
        let (asked, log) = play(false, script).await;
        assert_eq!(log, ["begin", "complete", "begin", "put b", "complete"]);
        assert!(
            asked
                .last()
                .is_some_and(|q| q.contains("sendInitialEvents=true"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_given_up_and_nothing_is_lost() {
    let began = Instant::now();
    let script = vec![
        Answer::Hangs(vec![initial_end("7"), event("ADDED", "a", "8")]),
        Answer::Hangs(vec![event("ADDED", "b", "9")]),
    ];
    let (asked, log) = play(false, script).await;
    assert_eq!(version_of(&asked[1]), Some("8"));
    assert_eq!(log, ["begin", "complete", "put a", "put b"]);
    // Both hung for their own end and the grace after it.
    assert!(began.elapsed() >= Duration::from_secs(140));
}

#[tokio::test(start_paused = true)]
async fn an_initial_reading_that_is_cut_off_is_begun_again_and_forgets_nothing() {
    let script = vec![
        Answer::Ends(vec![event("ADDED", "a", "3")]),
        Answer::Hangs(vec![event("ADDED", "a", "3"), initial_end("7")]),
    ];
    let (_, log) = play(false, script).await;
    assert_eq!(log, ["begin", "put a", "begin", "put a", "complete"]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_without_streamed_lists_is_read_page_by_page() {
    let page = |name: &str, more: &str| {
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "30", "continue": more},
            "items": [{"metadata": {"name": name, "namespace": "n", "resourceVersion": "1"}}]})
    };
    let script = vec![
        Answer::Status(json!({"kind": "Status", "code": 422,
            "message": "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"})),
        Answer::Ends(vec![page("a", "next")]),
        Answer::Ends(vec![page("b", "")]),
        Answer::Hangs(vec![]),
    ];
    let (asked, log) = play(false, script).await;
    assert_eq!(log, ["begin", "begin", "put a", "put b", "complete"]);
    assert!(asked[2].contains("continue=next"));
    assert_eq!(version_of(&asked[3]), Some("30"));
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_not_be_read_is_done_without_if_it_is_optional() {
    let forbidden =
        || Answer::Status(json!({"kind": "Status", "code": 403, "message": "forbidden"}));
    let (_, log) = play(true, vec![forbidden()]).await;
    assert_eq!(log[..3], ["begin", "begin", "complete"]);
    let (_, log) = play(false, vec![forbidden()]).await;
    assert!(!log.contains(&"complete".to_owned()));
}
