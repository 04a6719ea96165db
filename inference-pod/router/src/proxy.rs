//! A request's way through the gateway: read, route, forward, relay.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::EXPECT;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response, Version};
use hyper::body::Incoming;

use crate::access_log::{AccessLog, RequestRecord};
use crate::body::{self, BodyError, ReadBody, ReadLimits};
use crate::budget::ByteBudget;
use crate::core::request_model::asked;
use crate::directory::Directory;
use crate::early;
use crate::errors::ApiError;
use crate::forward::{Forward, PodAnswer, PodBody};
use crate::headers::{self, is_event_stream};
use crate::metrics::Metrics;
use crate::models;
use crate::relay::{GatewayBody, Relay};
use crate::service::Service;
use crate::upstream::{Upstream, UpstreamConfig, UpstreamRequest};

/// How requests are proxied.
#[derive(Clone, Copy, Debug)]
pub struct ProxyConfig {
    /// Bounds on a request's body.
    pub body: ReadLimits,
    /// The most bytes of request bodies in memory at once.
    pub body_memory_bytes: usize,
    /// How often a request may be begun by a pod.
    pub max_attempts: u32,
    /// The longest silence of a pod in the middle of its answer.
    pub stall_timeout: Duration,
    /// Connections to pods.
    pub upstream: UpstreamConfig,
    /// Which requests are logged.
    pub access_log: AccessLog,
    /// Whether responses name their pod.
    pub name_pod: bool,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        Self {
            body: ReadLimits {
                max_bytes: 4 << 20,
                idle_timeout: Duration::from_secs(15),
                total_timeout: Duration::from_mins(2),
            },
            body_memory_bytes: 256 << 20,
            max_attempts: 3,
            stall_timeout: Duration::from_mins(5),
            upstream: UpstreamConfig::default(),
            access_log: AccessLog::default(),
            name_pod: false,
        }
    }
}

/// The data path of this process.
#[derive(Debug)]
pub struct Gateway {
    /// The routes.
    pub directory: Arc<Directory>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The memory of requests' bodies.
    pub budget: Arc<ByteBudget>,
    pub(crate) upstream: Upstream,
    pub(crate) config: ProxyConfig,
}

/// What is read of a refused body before its connection is closed on it.
const DRAINED_BYTES: usize = 64 << 20;
const DRAINED_FOR: Duration = Duration::from_secs(5);

impl Gateway {
    /// A gateway over these routes.
    pub fn new(directory: Arc<Directory>, metrics: Arc<Metrics>, config: ProxyConfig) -> Self {
        let upstream = Upstream::new(config.upstream);
        Self {
            directory,
            metrics,
            budget: ByteBudget::new(config.body_memory_bytes),
            upstream,
            config,
        }
    }

    /// Answers one request.
    pub async fn handle(
        self: Arc<Self>,
        peer: IpAddr,
        request: Request<Incoming>,
    ) -> Result<Response<GatewayBody>, Infallible> {
        let id = headers::request_id(request.headers(), rand::random());
        let mut record = RequestRecord::start(
            self.config.access_log,
            Arc::clone(&self.metrics),
            id.clone(),
            request.uri().path(),
        );
        let routed = self.route(peer, request, &id, &mut record).await;
        Ok(match routed {
            Ok(Route::Pod(routed)) => self.forward(routed, &id, record).await,
            Ok(Route::Own(response)) => own_response(response, record),
            Err(error) => refusal(error, &id, &mut record),
        })
    }

    async fn forward(
        self: Arc<Self>,
        routed: Routed,
        id: &HeaderValue,
        record: RequestRecord,
    ) -> Response<GatewayBody> {
        let Routed {
            service,
            request,
            body,
            stream,
        } = routed;
        let early = service.early_stream().filter(|_| stream);
        let (gateway, of) = (Arc::clone(&self), Arc::clone(&service));
        let forward = Forward::new(gateway, of, request, body, record);
        if let Some(after) = early {
            return early::answer(self, service, forward, after, id).await;
        }
        let (answered, record) = forward.run().await;
        self.respond(answered, id, record)
    }

    /// The response to the client.
    pub(crate) fn respond(
        &self,
        answered: Result<PodAnswer, ApiError>,
        id: &HeaderValue,
        mut record: RequestRecord,
    ) -> Response<GatewayBody> {
        match answered {
            Ok(answer) => self.pod_response(answer, id, record),
            Err(error) => refusal(error, id, &mut record),
        }
    }

    async fn route(
        &self,
        peer: IpAddr,
        request: Request<Incoming>,
        id: &HeaderValue,
        record: &mut RequestRecord,
    ) -> Result<Route, ApiError> {
        let path = request.uri().path();
        let models = path == "/v1/models" || path.starts_with("/v1/models/");
        match *request.method() {
            Method::GET | Method::HEAD if models => self.models(path).map(Route::Own),
            Method::POST if path.starts_with("/v1/") && !models => {
                self.read(peer, request, id, record).await.map(Route::Pod)
            }
            _ if models => Err(ApiError::wrong_method("GET")),
            _ if path.starts_with("/v1/") => Err(ApiError::wrong_method("POST")),
            _ => Err(ApiError::unknown_path(path)),
        }
    }

    fn models(&self, path: &str) -> Result<Response<GatewayBody>, ApiError> {
        if !self.directory.is_synced() {
            return Err(ApiError::not_synced());
        }
        match path.strip_prefix("/v1/models/") {
            Some(name) if !name.is_empty() => models::get(&self.directory, name),
            _ => Ok(models::list(&self.directory)),
        }
    }

    async fn read(
        &self,
        peer: IpAddr,
        request: Request<Incoming>,
        id: &HeaderValue,
        record: &mut RequestRecord,
    ) -> Result<Routed, ApiError> {
        let (mut head, mut incoming) = request.into_parts();
        let read = body::read_body(&mut incoming, self.config.body, &self.budget).await;
        let waits_to_be_asked = head.headers.contains_key(EXPECT);
        let body = read.map_err(|error| refuse_body(&error, incoming, waits_to_be_asked))?;
        let (service, stream) = self.find_service(&body.bytes)?;
        record.routed(Arc::clone(&service), body.bytes.len());
        headers::to_upstream(&mut head.headers, peer, id);
        let path = head
            .uri
            .path_and_query()
            .cloned()
            .unwrap_or(PathAndQuery::from_static("/"));
        let request = UpstreamRequest {
            method: head.method,
            path,
            headers: head.headers,
            body: body.bytes.clone(),
        };
        Ok(Routed {
            service,
            request,
            body,
            stream,
        })
    }

    /// The service that a body names, and whether the body asks for a stream.
    fn find_service(&self, body: &[u8]) -> Result<(Arc<Service>, bool), ApiError> {
        let asked = asked(body)?;
        let found = self.directory.lookup(&asked.model);
        let service = found.ok_or_else(|| {
            if self.directory.is_synced() {
                ApiError::unknown_model(&asked.model)
            } else {
                ApiError::not_synced()
            }
        })?;
        Ok((service, asked.stream))
    }

    fn pod_response(
        &self,
        answer: PodAnswer,
        id: &HeaderValue,
        mut record: RequestRecord,
    ) -> Response<GatewayBody> {
        let PodAnswer {
            mut head,
            body,
            mut placed,
        } = answer;
        let event_stream = is_event_stream(&head.headers);
        record.answered_by(Arc::clone(&placed.pod.label), head.status);
        headers::to_client(&mut head.headers, id, event_stream);
        // A pod's HTTP/1.0 is its own connection's: the client's may keep alive and take chunks.
        head.version = Version::HTTP_11;
        if self.config.name_pod
            && let Ok(pod) = HeaderValue::from_str(&placed.pod.label)
        {
            head.headers.insert(headers::POD, pod);
        }
        let body = match body {
            PodBody::Whole(bytes) => {
                placed.attempt.completed();
                record.sent(bytes.len());
                record.completed();
                GatewayBody::full(bytes)
            }
            PodBody::Coming(incoming) => GatewayBody::Relay(Box::new(Relay::new(
                incoming,
                event_stream,
                self.config.stall_timeout,
                placed,
                record,
            ))),
        };
        Response::from_parts(head, body)
    }
}

enum Route {
    Own(Response<GatewayBody>),
    Pod(Routed),
}

/// A request that has been read and is for a service.
struct Routed {
    service: Arc<Service>,
    request: UpstreamRequest,
    body: ReadBody,
    stream: bool,
}

fn own_response(
    response: Response<GatewayBody>,
    mut record: RequestRecord,
) -> Response<GatewayBody> {
    record.own(response.status());
    response
}

fn refusal(error: ApiError, id: &HeaderValue, record: &mut RequestRecord) -> Response<GatewayBody> {
    record.refused(&error);
    let mut response = error.into_response();
    response
        .headers_mut()
        .insert(headers::REQUEST_ID, id.clone());
    response
}

fn refuse_body(error: &BodyError, rest: Incoming, waits_to_be_asked: bool) -> ApiError {
    // A client that waits for `100 Continue` has sent nothing: reading would only ask it to.
    if matches!(error, BodyError::TooLarge(_)) && !waits_to_be_asked {
        tokio::spawn(body::drain(rest, DRAINED_BYTES, DRAINED_FOR));
    }
    error.into()
}
