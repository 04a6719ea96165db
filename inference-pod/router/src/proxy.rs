//! A request's way through the gateway: read, route, hold, choose, send, retry, relay.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::access_log::{AccessLog, RequestRecord};
use crate::body::{self, BodyError, ReadBody, ReadLimits};
use crate::budget::ByteBudget;
use crate::core::request_model::request_model;
use crate::core::retry::{Attempts, Failure, Next};
use crate::core::traffic;
use crate::directory::Directory;
use crate::errors::ApiError;
use crate::gather::gather;
use crate::headers;
use crate::metrics::Metrics;
use crate::models;
use crate::relay::{GatewayBody, Relay};
use crate::service::{Closed, HoldEnd, Placed, Pod, Service, Wave};
use crate::upstream::{AttemptError, Upstream, UpstreamConfig, UpstreamRequest};

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
    upstream: Upstream,
    config: ProxyConfig,
}

/// An answer up to this size that is no event stream is gathered before its status goes out, so that a
/// pod's death in its middle is a clean 502 or a retry instead of a torn body.
const GATHERED_BYTES: u64 = 256 * 1024;
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
        let answered = self.route(peer, request, &id, &mut record).await;
        Ok(match answered {
            Ok(Answer::Pod(answer)) => self.pod_response(answer, &id, record),
            Ok(Answer::Own(response)) => own_response(response, record),
            Err(error) => refusal(error, &id, &mut record),
        })
    }

    async fn route(
        &self,
        peer: IpAddr,
        request: Request<Incoming>,
        id: &HeaderValue,
        record: &mut RequestRecord,
    ) -> Result<Answer, ApiError> {
        let path = request.uri().path();
        let models = path == "/v1/models" || path.starts_with("/v1/models/");
        match *request.method() {
            Method::GET | Method::HEAD if models => self.models(path).map(Answer::Own),
            Method::POST if path.starts_with("/v1/") && !models => {
                self.proxy(peer, request, id, record).await.map(Answer::Pod)
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

    async fn proxy(
        &self,
        peer: IpAddr,
        request: Request<Incoming>,
        id: &HeaderValue,
        record: &mut RequestRecord,
    ) -> Result<PodAnswer, ApiError> {
        let (mut head, mut incoming) = request.into_parts();
        let read = body::read_body(&mut incoming, self.config.body, &self.budget).await;
        let waits_to_be_asked = head.headers.contains_key(EXPECT);
        let body = read.map_err(|error| refuse_body(&error, incoming, waits_to_be_asked))?;
        let service = self.find_service(&body.bytes)?;
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
        Forward::new(self, service, request, body, record)
            .run()
            .await
    }

    fn find_service(&self, body: &[u8]) -> Result<Arc<Service>, ApiError> {
        let model = request_model(body)?;
        self.directory.lookup(&model).ok_or_else(|| {
            if self.directory.is_synced() {
                ApiError::unknown_model(&model)
            } else {
                ApiError::not_synced()
            }
        })
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
            PodBody::Coming(incoming) => GatewayBody::Relay(Box::pin(Relay::new(
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

enum Answer {
    Own(Response<GatewayBody>),
    Pod(PodAnswer),
}

struct PodAnswer {
    head: http::response::Parts,
    body: PodBody,
    placed: Placed,
}

enum PodBody {
    Whole(Bytes),
    Coming(Incoming),
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

fn is_event_stream(headers: &HeaderMap) -> bool {
    let event_stream = headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    event_stream && !headers.contains_key(CONTENT_ENCODING)
}

/// One request until a pod answers it.
struct Forward<'a> {
    gateway: &'a Gateway,
    service: Arc<Service>,
    request: UpstreamRequest,
    body: ReadBody,
    record: &'a mut RequestRecord,
    attempts: Attempts,
    tried: Vec<Arc<Pod>>,
    deadline: Instant,
    hold_timeout: Duration,
    /// Decides which revision it goes to, for all of its attempts.
    point: u32,
}

impl<'a> Forward<'a> {
    fn new(
        gateway: &'a Gateway,
        service: Arc<Service>,
        request: UpstreamRequest,
        body: ReadBody,
        record: &'a mut RequestRecord,
    ) -> Self {
        let hold_timeout = service.hold_timeout();
        let attempts = Attempts::new(gateway.config.max_attempts);
        Self {
            gateway,
            service,
            request,
            body,
            record,
            attempts,
            tried: Vec::new(),
            deadline: Instant::now() + hold_timeout,
            hold_timeout,
            point: rand::random_range(0..traffic::POINTS),
        }
    }

    async fn run(mut self) -> Result<PodAnswer, ApiError> {
        loop {
            let wave = self.admit().await?;
            let Some(placed) = self.service.place(&self.tried, self.point) else {
                // The pods that had not failed it have gone since: those that had are better than none.
                self.tried.clear();
                tokio::task::yield_now().await;
                continue;
            };
            drop(wave);
            self.record.attempted();
            match self.attempt(placed).await {
                Ok(answer) => return Ok(answer),
                Err((pod, error)) => self.after_failure(pod, &error).await?,
            }
        }
    }

    async fn admit(&mut self) -> Result<Option<Wave>, ApiError> {
        let asked = Instant::now();
        let admitted = self
            .service
            .admit(self.body.bytes.len(), self.deadline)
            .await;
        if !matches!(admitted, Ok(None)) {
            self.record.held_for(asked.elapsed());
        }
        admitted.map_err(|end| self.hold_error(end))
    }

    async fn attempt(&self, mut placed: Placed) -> Result<PodAnswer, (Arc<Pod>, AttemptError)> {
        match self.ask(&mut placed).await {
            Ok((head, body)) => Ok(PodAnswer { head, body, placed }),
            Err(error) => {
                placed.attempt.failed();
                Err((Arc::clone(&placed.pod), error))
            }
        }
    }

    async fn ask(
        &self,
        placed: &mut Placed,
    ) -> Result<(http::response::Parts, PodBody), AttemptError> {
        let upstream = &self.gateway.upstream;
        let response = upstream.send(&placed.pod, &self.request).await?;
        let (head, incoming) = response.into_parts();
        placed.attempt.answered(head.status);
        let small = incoming
            .size_hint()
            .exact()
            .is_some_and(|bytes| bytes <= GATHERED_BYTES);
        if !small || is_event_stream(&head.headers) {
            return Ok((head, PodBody::Coming(incoming)));
        }
        let timeout = self.gateway.config.stall_timeout;
        let whole = gather(incoming, &mut placed.attempt, timeout).await?;
        Ok((head, PodBody::Whole(whole)))
    }

    async fn after_failure(&mut self, pod: Arc<Pod>, error: &AttemptError) -> Result<(), ApiError> {
        tracing::warn!(service = %self.service.key, pod = &*pod.label, failure = ?error.failure, detail = error.detail, "an attempt failed");
        if !self.tried.iter().any(|tried| Arc::ptr_eq(tried, &pod)) {
            self.tried.push(pod);
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self
            .attempts
            .after(error.failure, self.service.untried(&self.tried), left)
        {
            Next::GiveUp => Err(self.given_up(error.failure)),
            Next::OtherPod => {
                self.service.metrics.count_retry(reason(error.failure));
                Ok(())
            }
            Next::Wait(wait) => {
                self.service.metrics.count_retry(reason(error.failure));
                let asked = Instant::now();
                let waited = self
                    .service
                    .wait_for_other_pod(self.body.bytes.len(), wait, &self.tried)
                    .await;
                self.record.held_for(asked.elapsed());
                if self.service.untried(&self.tried) == 0 {
                    self.tried.clear();
                }
                waited.map_err(|end| self.hold_error(end))
            }
        }
    }

    fn hold_error(&self, end: HoldEnd) -> ApiError {
        match end {
            HoldEnd::Refused(refusal) => ApiError::hold_refused(&self.service.key, refusal),
            HoldEnd::Deadline => {
                ApiError::held_too_long(&self.service.key, self.hold_timeout.as_secs())
            }
            HoldEnd::Closed(Closed::ShuttingDown) => ApiError::shutting_down(),
            HoldEnd::Closed(Closed::Deleted) => ApiError::unknown_model(self.service.key.as_str()),
        }
    }

    fn given_up(&self, last: Failure) -> ApiError {
        let key = &self.service.key;
        match last {
            Failure::Connect => ApiError::unreachable(key),
            Failure::Refused => ApiError::all_pods_refuse(key),
            Failure::Broken => ApiError::pod_failed(key),
            Failure::TimedOut => {
                ApiError::pod_timed_out(key, self.gateway.upstream.head_timeout().as_secs())
            }
        }
    }
}

fn reason(failure: Failure) -> &'static str {
    match failure {
        Failure::Connect => "connect",
        Failure::Refused => "refused",
        Failure::Broken | Failure::TimedOut => "broken",
    }
}
