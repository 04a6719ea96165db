use std::{convert::Infallible, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{Request as HttpRequest, Response as HttpResponse, StatusCode},
};
use pagoda_crds::api::Metric;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::autoscaler::signals::{DecisionSignal, Figure, PodSignals, ServiceSignals};

/// An API server that lets everybody do everything but `mallory`.
fn client() -> kube::Client {
    let service = service_fn(async |request: HttpRequest<kube::client::Body>| {
        let body = request
            .into_body()
            .collect_bytes()
            .await
            .unwrap_or_default();
        let review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let allowed = review["spec"]["user"] != "mallory";
        let answer = json!({
            "kind": "SubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {},
            "spec": {},
            "status": {"allowed": allowed},
        });
        Ok::<_, Infallible>(HttpResponse::new(Body::from(answer.to_string())))
    });
    kube::Client::new(service, "default")
}

fn figure(milli: u64) -> Figure {
    Figure {
        milli,
        age_millis: 0,
    }
}

fn signals() -> Arc<Signals> {
    let mut chat = ServiceSignals::unknown(Instant::now(), 3);
    chat.set(Metric::InFlightRequests, Some(figure(12_500)));
    chat.set(Metric::QueuedRequests, Some(figure(0)));
    chat.queries = vec![("depth".into(), Some(figure(7_000))), ("age".into(), None)];
    chat.decision = Some(DecisionSignal {
        replicas: 4,
        reason: "AboveTarget",
    });
    chat.pods = vec![PodSignals {
        name: "chat-1".into(),
        running: 2,
        waiting: 1,
        kv_usage_milli: Some(250),
        cache_queries: 0,
        cache_hits: 0,
    }];
    let mut silent = ServiceSignals::unknown(Instant::now(), 1);
    silent.set(Metric::QueuedRequests, Some(figure(1_000)));
    let mut other = ServiceSignals::unknown(Instant::now(), 1);
    other.set(Metric::InFlightRequests, Some(figure(1_000)));
    let signals = Signals::default();
    signals.publish([
        (Key::new("team", "chat"), chat),
        (Key::new("team", "silent"), silent),
        (Key::new("others", "chat"), other),
    ]);
    Arc::new(signals)
}

fn caller(common_name: Option<&str>) -> Caller {
    let data = [
        ("requestheader-client-ca-file", "PEM"),
        ("requestheader-allowed-names", r#"["front"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
    ];
    let data = data.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Caller {
        proxy: Arc::new(FrontProxy::read(&data.into()).expect("trust")),
        common_name: common_name.map(str::to_owned),
    }
}

async fn ask_as(user: &str, caller: Caller, method: &str, path: &str) -> (StatusCode, Value) {
    let sources = Arc::new(Sources {
        signals: signals(),
        authorizer: Authorizer::new(client()),
    });
    let request = HttpRequest::builder()
        .method(method)
        .uri(path)
        .header("x-remote-user", user)
        .extension(caller)
        .body(Body::empty())
        .expect("a request of the test");
    let answer = router(sources).oneshot(request).await.expect("an answer");
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
    (status, serde_json::from_slice(&body).expect("JSON"))
}

async fn ask(path: &str) -> (StatusCode, Value) {
    ask_as("ann", caller(Some("front")), "GET", path).await
}

const EXTERNAL_PATH: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/team";
const CUSTOM_PATH: &str = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/team";

#[tokio::test]
async fn a_figure_is_served_by_the_service_that_the_selector_names() {
    let path = format!("{EXTERNAL_PATH}/pagoda_in_flight_requests?labelSelector=service%3Dchat");
    let (status, list) = ask(&path).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(list["kind"], "ExternalMetricValueList");
    let item = &list["items"][0];
    assert_eq!(item["value"], "12500m");
    assert_eq!(item["metricLabels"], json!({"service": "chat"}));
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    let time: Timestamp = item["timestamp"]
        .as_str()
        .expect("a time")
        .parse()
        .expect("a time");
    assert!(Timestamp::now().duration_since(time) < SignedDuration::from_mins(1));
}

#[tokio::test]
async fn a_sum_of_which_a_part_is_unknown_is_no_sum() {
    let (_, both) = ask(&format!("{EXTERNAL_PATH}/pagoda_queued_requests")).await;
    assert_eq!(both["items"].as_array().map(Vec::len), Some(2));
    let (status, list) = ask(&format!("{EXTERNAL_PATH}/pagoda_in_flight_requests")).await;
    assert_eq!((status, &list["items"]), (StatusCode::OK, &json!([])));
}

#[tokio::test]
async fn an_unknown_service_and_an_unknown_figure_have_no_items_rather_than_zero() {
    for selector in ["service%3Dnobody", "service%3Dsilent"] {
        let path = format!("{EXTERNAL_PATH}/pagoda_in_flight_requests?labelSelector={selector}");
        let (status, list) = ask(&path).await;
        assert_eq!((status, &list["items"]), (StatusCode::OK, &json!([])));
    }
    let path = format!("{EXTERNAL_PATH}/pagoda_prometheus_query?labelSelector=query%3Ddepth");
    assert_eq!(ask(&path).await.1["items"][0]["value"], "7");
    let path = format!("{EXTERNAL_PATH}/pagoda_prometheus_query?labelSelector=query%3Dage");
    assert_eq!(ask(&path).await.1["items"], json!([]));
    let path = format!("{EXTERNAL_PATH}/pagoda_desired_replicas?labelSelector=service%3Dchat");
    assert_eq!(ask(&path).await.1["items"][0]["value"], "4");
}

#[tokio::test]
async fn objects_and_pods_have_metrics_of_their_own() {
    let service = "inferenceservices.serving.pagoda.dev";
    let path = format!("{CUSTOM_PATH}/{service}/chat/pagoda_in_flight_requests");
    let (_, list) = ask(&path).await;
    assert_eq!(list["items"][0]["value"], "12500m");
    assert_eq!(list["items"][0]["describedObject"]["name"], "chat");
    let (status, said) = ask(&format!(
        "{CUSTOM_PATH}/{service}/silent/pagoda_in_flight_requests"
    ))
    .await;
    assert_eq!(
        (status, &said["reason"]),
        (StatusCode::NOT_FOUND, &json!("NotFound"))
    );

    let select = "labelSelector=serving.pagoda.dev%2Fservice%3Dchat";
    let (_, list) = ask(&format!(
        "{CUSTOM_PATH}/pods/*/pagoda_in_flight_requests?{select}"
    ))
    .await;
    assert_eq!(list["items"][0]["describedObject"]["name"], "chat-1");
    assert_eq!(list["items"][0]["value"], "3");
    let (status, _) = ask(&format!("{CUSTOM_PATH}/pods/*/pagoda_in_flight_requests")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn who_did_not_come_through_the_aggregation_layer_is_nobody() {
    let path = format!("{EXTERNAL_PATH}/pagoda_in_flight_requests");
    for common_name in [None, Some("kubelet")] {
        for path in [&*path, "/apis", "/openapi/v2", "/nothing"] {
            let (status, said) = ask_as("system:admin", caller(common_name), "GET", path).await;
            assert_eq!(
                (status, &said["kind"]),
                (StatusCode::UNAUTHORIZED, &json!("Status"))
            );
        }
    }
}

#[tokio::test]
async fn who_may_not_is_told_what_to_grant() {
    let path = format!("{EXTERNAL_PATH}/pagoda_in_flight_requests");
    let (status, said) = ask_as("mallory", caller(Some("front")), "GET", &path).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let message = said["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("list pagoda_in_flight_requests in API group external.metrics.k8s.io"),
        "{message}"
    );
}

#[tokio::test]
async fn what_does_not_exist_and_what_is_malformed_is_said_as_a_status() {
    for (path, status) in [
        (format!("{EXTERNAL_PATH}/requests"), 404),
        (
            format!("{EXTERNAL_PATH}/pagoda_queued_requests?labelSelector=a%3E1"),
            400,
        ),
        (
            format!("{CUSTOM_PATH}/services/x/pagoda_queued_requests"),
            404,
        ),
        ("/apis/metrics.k8s.io/v1beta1".to_owned(), 404),
        ("/apis/custom.metrics.k8s.io/v1beta1".to_owned(), 404),
        ("/nothing".to_owned(), 404),
    ] {
        let (found, said) = ask(&path).await;
        assert_eq!(found.as_u16(), status, "{path}");
        assert_eq!(
            (&said["kind"], &said["code"]),
            (&json!("Status"), &json!(status))
        );
    }
    let (status, _) = ask_as("ann", caller(Some("front")), "POST", "/apis").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn discovery_names_every_metric() {
    let (_, groups) = ask("/apis").await;
    assert_eq!(groups["groups"].as_array().map(Vec::len), Some(2));
    for api in Api::ALL {
        let (_, list) = ask(&format!("/apis/{}", api.group_version())).await;
        let resources = list["resources"].as_array().cloned().unwrap_or_default();
        let named = |name: &str| {
            resources
                .iter()
                .any(|r| r["name"].as_str().is_some_and(|n| n.ends_with(name)))
        };
        assert!(
            Served::ALL
                .iter()
                .all(|served| named(served.name()) || *served == Served::Query)
        );
        assert_eq!(
            ask(&format!("/openapi/v3/apis/{}", api.group_version()))
                .await
                .0,
            StatusCode::OK
        );
    }
    assert_eq!(ask("/openapi/v2").await.1["swagger"], "2.0");
}

#[tokio::test(start_paused = true)]
async fn figures_that_nobody_renews_vanish() {
    let signals = signals();
    tokio::time::advance(Duration::from_mins(1)).await;
    let found = served::series(
        &signals,
        "team",
        Served::Own(Metric::QueuedRequests),
        &Selector::default(),
        Instant::now(),
    );
    assert!(whole(&found).is_none());
}
