//! One attempt at a pod.

use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::core::retry::Failure;
use crate::service::Pod;

/// Connections to pods.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamConfig {
    /// The longest time to connect.
    pub connect_timeout: Duration,
    /// The longest time from a request to its response's head.
    pub head_timeout: Duration,
    /// Unused connections are closed after this time.
    pub idle_timeout: Duration,
    /// The most unused connections kept for one pod.
    pub max_idle_per_pod: usize,
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            head_timeout: Duration::from_mins(10),
            idle_timeout: Duration::from_secs(20),
            max_idle_per_pod: 256,
        }
    }
}

/// A request as it goes to whichever pod is chosen.
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    /// Its method.
    pub method: Method,
    /// Its path and query, untouched.
    pub path: PathAndQuery,
    /// Its headers, without those of the client's connection.
    pub headers: HeaderMap,
    /// Its body, untouched.
    pub body: Bytes,
}

/// A failed attempt: what it means for the next one, and words for the log.
#[derive(Debug)]
pub struct AttemptError {
    /// What it means.
    pub failure: Failure,
    /// What happened.
    pub detail: String,
}

/// Sends requests to pods over kept connections.
#[derive(Clone, Debug)]
pub struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
    head_timeout: Duration,
}

/// A vanished pod or node answers nothing: its connections end after this time without an acknowledgement.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
const KEEPALIVE: Duration = Duration::from_secs(15);
const MAX_HEAD_BYTES: usize = 64 * 1024;

impl Upstream {
    /// A client without connections yet.
    pub fn new(config: UpstreamConfig) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(config.connect_timeout));
        connector.set_keepalive(Some(KEEPALIVE));
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(config.idle_timeout)
            .pool_max_idle_per_host(config.max_idle_per_pod)
            .http1_max_buf_size(MAX_HEAD_BYTES)
            .build(connector);
        Self {
            client,
            head_timeout: config.head_timeout,
        }
    }

    /// The time within which a pod must begin to answer.
    pub fn head_timeout(&self) -> Duration {
        self.head_timeout
    }

    /// Sends `request` to `pod` and waits for the response's head. Dropping the future, and later the
    /// response, ends the request at the pod.
    pub async fn send(
        &self,
        pod: &Pod,
        request: &UpstreamRequest,
    ) -> Result<Response<Incoming>, AttemptError> {
        let sending = self.client.request(build(pod, request)?);
        let response = match tokio::time::timeout(self.head_timeout, sending).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(classify(&error)),
            Err(_) => {
                return Err(AttemptError {
                    failure: Failure::TimedOut,
                    detail: "no response head in time".into(),
                });
            }
        };
        if response.status() == StatusCode::SERVICE_UNAVAILABLE
            && response.headers().contains_key(RETRY_AFTER)
        {
            return Err(AttemptError {
                failure: Failure::Refused,
                detail: "503 with Retry-After".into(),
            });
        }
        Ok(response)
    }
}

fn build(pod: &Pod, request: &UpstreamRequest) -> Result<Request<Full<Bytes>>, AttemptError> {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(pod.authority.clone());
    parts.path_and_query = Some(request.path.clone());
    let uri = Uri::from_parts(parts).map_err(|error| AttemptError {
        failure: Failure::Broken,
        detail: error.to_string(),
    })?;
    let mut built = Request::new(Full::new(request.body.clone()));
    *built.method_mut() = request.method.clone();
    *built.uri_mut() = uri;
    *built.headers_mut() = request.headers.clone();
    Ok(built)
}

fn classify(error: &hyper_util::client::legacy::Error) -> AttemptError {
    let failure = if error.is_connect() {
        Failure::Connect
    } else {
        Failure::Broken
    };
    let cause = std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default();
    AttemptError {
        failure,
        detail: format!("{error}: {cause}"),
    }
}
