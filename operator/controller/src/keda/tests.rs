//! As KEDA calls a scaler: one HTTP/2 connection for all ScaledObjects, the trigger's metadata in each question.

use std::{collections::HashMap, sync::Arc, time::Duration};

use pagoda_crds::api::Metric;
use tokio::{net::TcpListener, time::Instant};
use tonic::{Code, Request, Status, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;

use super::{
    messages::{
        GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse,
        ScaledObjectRef,
    },
    serve,
};
use crate::{
    autoscaler::signals::{Figure, ServiceSignals, Signals},
    key::Key,
};

struct Keda {
    grpc: Grpc<Channel>,
    signals: Arc<Signals>,
}

impl Keda {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let signals = Arc::<Signals>::default();
        tokio::spawn(serve(listener, signals.clone()));
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
        let channel = channel.connect().await.expect("a connection");
        Self {
            grpc: Grpc::new(channel),
            signals,
        }
    }

    /// Publishes what is known of `chat`: held requests, and requests in flight.
    fn tell(&self, held: Option<u64>, in_flight: Option<u64>) {
        let mut seen = ServiceSignals::unknown(Instant::now(), 0);
        seen.held = held;
        let figure = in_flight.map(|milli| Figure {
            milli,
            age_millis: 0,
        });
        seen.set(Metric::InFlightRequests, figure);
        seen.queries = vec![("depth".into(), figure)];
        self.signals.publish([(Key::new("team", "chat"), seen)]);
    }

    async fn unary<Q, A>(&mut self, method: &'static str, question: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.grpc.ready().await.expect("a connection");
        let path = http::uri::PathAndQuery::from_static(method);
        let codec = ProstCodec::<Q, A>::default();
        let answer = self.grpc.unary(Request::new(question), path, codec).await?;
        Ok(answer.into_inner())
    }

    async fn is_active(&mut self, asker: ScaledObjectRef) -> Result<bool, Status> {
        let answer: IsActiveResponse = self
            .unary("/externalscaler.ExternalScaler/IsActive", asker)
            .await?;
        Ok(answer.result)
    }

    async fn value(&mut self, asker: ScaledObjectRef, metric: &str) -> Result<(i64, f64), Status> {
        let question = GetMetricsRequest {
            scaled_object_ref: Some(asker),
            metric_name: metric.to_owned(),
        };
        let answer: GetMetricsResponse = self
            .unary("/externalscaler.ExternalScaler/GetMetrics", question)
            .await?;
        let value = &answer.metric_values[0];
        assert_eq!(value.metric_name, metric);
        Ok((value.metric_value, value.metric_value_float))
    }
}

fn asker(metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let own = [("scalerAddress", "pagoda-metrics.pagoda-system:9090")];
    let all = own.iter().chain(metadata);
    ScaledObjectRef {
        name: "chat-scaler".to_owned(),
        namespace: "team".to_owned(),
        scaler_metadata: all
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect::<HashMap<_, _>>(),
    }
}

fn chat() -> ScaledObjectRef {
    asker(&[
        ("service", "chat"),
        ("metric", "InFlightRequests"),
        ("targetValue", "7.5"),
    ])
}

const NAME: &str = "pagoda_in_flight_requests";

#[tokio::test]
async fn a_held_request_wakes_a_service_and_silence_lets_it_sleep() {
    let mut keda = Keda::new().await;
    keda.tell(Some(1), Some(1000));
    assert!(keda.is_active(chat()).await.expect("an answer"));
    keda.tell(Some(0), Some(2000));
    assert!(keda.is_active(chat()).await.expect("an answer"));
    keda.tell(Some(0), Some(0));
    assert!(!keda.is_active(chat()).await.expect("an answer"));
}

#[tokio::test]
async fn what_nobody_knows_is_an_error_and_neither_silence_nor_zero() {
    let mut keda = Keda::new().await;
    let unknown = |answer: Status| {
        assert_eq!(answer.code(), Code::Unavailable);
        assert!(answer.message().contains("team/chat"), "{answer:?}");
    };
    unknown(
        keda.is_active(chat())
            .await
            .expect_err("it was never looked at"),
    );
    keda.tell(None, Some(0));
    unknown(
        keda.is_active(chat())
            .await
            .expect_err("a gateway is silent"),
    );
    keda.tell(Some(0), None);
    unknown(
        keda.is_active(chat())
            .await
            .expect_err("the pods are silent"),
    );
    unknown(
        keda.value(chat(), NAME)
            .await
            .expect_err("there is no figure"),
    );
}

#[tokio::test]
async fn an_hpa_is_given_the_metric_its_target_and_its_value() {
    let mut keda = Keda::new().await;
    let spec: GetMetricSpecResponse = keda
        .unary("/externalscaler.ExternalScaler/GetMetricSpec", chat())
        .await
        .expect("an answer");
    let spec = &spec.metric_specs[0];
    assert_eq!((spec.metric_name.as_str(), spec.target_size), (NAME, 8));
    assert!((spec.target_size_float - 7.5).abs() < 1e-9);
    keda.tell(Some(0), Some(12_500));
    let (whole, exact) = keda.value(chat(), NAME).await.expect("a value");
    assert_eq!(whole, 13);
    assert!((exact - 12.5).abs() < 1e-9);
    let query = asker(&[
        ("service", "chat"),
        ("metric", "pagoda_prometheus_query"),
        ("query", "depth"),
    ]);
    assert_eq!(
        keda.value(query, "pagoda_prometheus_query")
            .await
            .expect("a value")
            .0,
        13
    );
}

#[tokio::test]
async fn a_trigger_that_lacks_something_is_told_what_to_write() {
    let mut keda = Keda::new().await;
    for (metadata, says) in [
        (&[("metric", "InFlightRequests")][..], "write service: NAME"),
        (&[("service", "chat")], "write metric: InFlightRequests"),
        (
            &[("service", "chat"), ("metric", "cpu")],
            "write one of InFlightRequests, RequestsPerSecond",
        ),
        (
            &[("service", "chat"), ("metric", "pagoda_prometheus_query")],
            "write query: NAME",
        ),
        (
            &[("service", "chat"), ("metric", "QueuedRequests")],
            "write targetValue: \"8\"",
        ),
        (
            &[
                ("service", "chat"),
                ("metric", "QueuedRequests"),
                ("targetValue", "0"),
            ],
            "a number above zero",
        ),
        (
            &[
                ("service", "chat"),
                ("metric", "QueuedRequests"),
                ("targetValue", "lots"),
            ],
            "a number above zero",
        ),
    ] {
        let answer: Result<GetMetricSpecResponse, _> = keda
            .unary(
                "/externalscaler.ExternalScaler/GetMetricSpec",
                asker(metadata),
            )
            .await;
        let refused = answer.expect_err("it is refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(
            refused.message().contains(says),
            "{refused:?} does not say {says}"
        );
    }
    let other = keda
        .value(chat(), "s0-cpu")
        .await
        .expect_err("it is refused");
    assert_eq!(other.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_push_scaler_hears_each_change_once() {
    let mut keda = Keda::new().await;
    keda.tell(Some(0), Some(0));
    keda.grpc.ready().await.expect("a connection");
    let path =
        http::uri::PathAndQuery::from_static("/externalscaler.ExternalScaler/StreamIsActive");
    let codec = ProstCodec::<ScaledObjectRef, IsActiveResponse>::default();
    let answer = keda
        .grpc
        .server_streaming(Request::new(chat()), path, codec)
        .await;
    let mut news = answer.expect("a stream").into_inner();
    assert!(!news.message().await.expect("news").expect("some").result);
    // Nobody knows for a while: no news.
    keda.tell(None, None);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    keda.tell(Some(3), Some(3000));
    assert!(news.message().await.expect("news").expect("some").result);
}

#[tokio::test]
async fn methods_that_are_optional_are_said_to_be_absent() {
    let mut keda = Keda::new().await;
    let answer: Result<GetMetricSpecResponse, _> = keda
        .unary("/externalscaler.ExternalScaler/StreamMetricSpec", chat())
        .await;
    assert_eq!(
        answer.expect_err("it is not served").code(),
        Code::Unimplemented
    );
}

#[tokio::test]
async fn a_question_that_is_too_long_is_refused() {
    let mut keda = Keda::new().await;
    let long = "x".repeat(super::QUESTION + 1);
    let refused = keda.is_active(asker(&[("service", &long)])).await;
    assert_eq!(refused.expect_err("it is refused").code(), Code::OutOfRange);
}
