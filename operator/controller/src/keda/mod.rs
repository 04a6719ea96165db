//! KEDA's external scaler, by gRPC: `externalscaler.ExternalScaler`, for people who keep a ScaledObject of their own.
//!
//! KEDA asks whether a service is active (zero or not), which metric with which target its HPA should have, and for the
//! metric's value. It knows no absent value: what nobody knows is an error, under which KEDA changes nothing. The port is plain
//! and answers whoever reaches it, as KEDA's own examples do; it tells figures and changes nothing, and the chart's network
//! policy lets in KEDA alone.

pub mod messages;
pub mod scaler;
#[cfg(test)]
mod tests;

use std::{convert::Infallible, pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, stream};
use hyper::service::service_fn;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::OwnedSemaphorePermit,
    time::{Instant, MissedTickBehavior, interval},
};
use tonic::{Code, Request, Response, Status, body::Body, server::Grpc};
use tonic_prost::ProstCodec;
use tower::service_fn as rpc;

use crate::{
    autoscaler::signals::Signals,
    context::Context,
    metrics_api::{listener, retried},
};
use messages::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, ScaledObjectRef,
};
use scaler::{ScalerError, Trigger};

/// KEDA's operator keeps one for all ScaledObjects.
const CONNECTIONS: usize = 32;
/// Each ScaledObject of a push scaler keeps a request open.
const REQUESTS: u32 = 10_000;
/// Bytes of a question. Metadata of a trigger are a few lines.
const QUESTION: usize = 64 << 10;
/// Between two looks for those who wait for news.
const LOOK: Duration = Duration::from_secs(1);

/// Serves for as long as the process leads, and never ends.
pub async fn run(context: Arc<Context>) {
    if let Some(listen) = context.settings.keda_listen {
        let reached = context.settings.pod_ip;
        let listener = retried("listen for KEDA", || listener::bind(listen, reached)).await;
        tracing::info!(%listen, "serving KEDA's external scaler");
        serve(listener, context.signals.clone()).await;
    }
    std::future::pending::<()>().await;
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, signals: Arc<Signals>) {
    let serve = |stream, place| connection(stream, place, signals.clone());
    listener::accept(listener, CONNECTIONS, serve).await;
}

async fn connection(stream: TcpStream, place: OwnedSemaphorePermit, signals: Arc<Signals>) {
    let service = service_fn(move |request| {
        let signals = signals.clone();
        async move { Ok::<_, Infallible>(answer(request, signals).await) }
    });
    let http = listener::http(REQUESTS);
    // A client that breaks off is no news.
    let _ = http.serve_connection(listener::io(stream), service).await;
    drop(place);
}

async fn answer(
    request: http::Request<hyper::body::Incoming>,
    signals: Arc<Signals>,
) -> http::Response<Body> {
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/externalscaler.ExternalScaler/IsActive" => {
            let respond = rpc(|asked: Request<ScaledObjectRef>| {
                std::future::ready(is_active(&asked, &signals))
            });
            grpc().unary(respond, request).await
        }
        "/externalscaler.ExternalScaler/StreamIsActive" => {
            let respond = rpc(|asked: Request<ScaledObjectRef>| {
                std::future::ready(stream_is_active(&asked, signals.clone()))
            });
            grpc().server_streaming(respond, request).await
        }
        "/externalscaler.ExternalScaler/GetMetricSpec" => {
            let respond =
                rpc(|asked: Request<ScaledObjectRef>| std::future::ready(metric_spec(&asked)));
            grpc().unary(respond, request).await
        }
        "/externalscaler.ExternalScaler/GetMetrics" => {
            let respond = rpc(|asked: Request<GetMetricsRequest>| {
                std::future::ready(metrics(asked, &signals))
            });
            grpc().unary(respond, request).await
        }
        // As KEDA wants it of scalers that lack a method, such as the optional StreamMetricSpec.
        _ => Status::unimplemented(format!("{path} is not served")).into_http(),
    }
}

fn grpc<T, U>() -> Grpc<ProstCodec<T, U>>
where
    T: prost::Message + Send + 'static,
    U: prost::Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(QUESTION)
}

fn is_active(
    asked: &Request<ScaledObjectRef>,
    signals: &Signals,
) -> Result<Response<IsActiveResponse>, Status> {
    let trigger = Trigger::read(asked.get_ref())?;
    let result = trigger.is_active(signals, Instant::now())?;
    Ok(Response::new(IsActiveResponse { result }))
}

type News = Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send>>;

/// Tells once what is, and then each change, until the client goes. While nobody knows, nothing is told.
fn stream_is_active(
    asked: &Request<ScaledObjectRef>,
    signals: Arc<Signals>,
) -> Result<Response<News>, Status> {
    let trigger = Trigger::read(asked.get_ref())?;
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let news = stream::unfold((None, looks), move |(told, mut looks)| {
        let (trigger, signals) = (trigger.clone(), signals.clone());
        async move {
            loop {
                let now = looks.tick().await;
                if let Ok(result) = trigger.is_active(&signals, now)
                    && told != Some(result)
                {
                    let news = Ok(IsActiveResponse { result });
                    return Some((news, (Some(result), looks)));
                }
            }
        }
    });
    Ok(Response::new(Box::pin(news)))
}

fn metric_spec(
    asked: &Request<ScaledObjectRef>,
) -> Result<Response<GetMetricSpecResponse>, Status> {
    let trigger = Trigger::read(asked.get_ref())?;
    let metric_specs = vec![trigger.spec(asked.get_ref())?];
    Ok(Response::new(GetMetricSpecResponse { metric_specs }))
}

fn metrics(
    asked: Request<GetMetricsRequest>,
    signals: &Signals,
) -> Result<Response<GetMetricsResponse>, Status> {
    let asked = asked.into_inner();
    let asker = asked.scaled_object_ref.unwrap_or_default();
    let trigger = Trigger::read(&asker)?;
    let value = trigger.value(&asked.metric_name, signals, Instant::now())?;
    Ok(Response::new(GetMetricsResponse {
        metric_values: vec![value],
    }))
}

impl From<ScalerError> for Status {
    fn from(error: ScalerError) -> Self {
        let code = match error {
            ScalerError::Unknown { .. } => Code::Unavailable,
            _ => Code::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}
