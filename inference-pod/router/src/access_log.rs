//! One request's record: counted in the metrics and written to the log when it ends, however it ends.
//!
//! The record is a guard. A client that leaves drops the request's future and the record with it,
//! which then says so. No prompt, answer, query string or header of a client's is ever in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, StatusCode};

use crate::core::routes::ServiceKey;
use crate::errors::ApiError;
use crate::metrics::Metrics;
use crate::service::Service;

/// Which requests are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AccessLog {
    /// Each one.
    #[default]
    All,
    /// Those that failed, were retried, or were cut.
    Errors,
    /// None.
    Off,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unfinished,
    Complete,
    Cut,
}

/// The status that nginx made customary for a client that left before its response.
const CLIENT_LEFT: u16 = 499;
const LOGGED_PATH_BYTES: usize = 128;

/// See the module's documentation.
#[derive(Debug)]
pub struct RequestRecord {
    log: AccessLog,
    metrics: Arc<Metrics>,
    started: Instant,
    request_id: HeaderValue,
    path: String,
    service: Option<Arc<Service>>,
    pod: Option<Arc<str>>,
    status: Option<StatusCode>,
    code: Option<&'static str>,
    outcome: Outcome,
    attempts: u32,
    held: Duration,
    first_byte: Option<Duration>,
    request_bytes: usize,
    response_bytes: u64,
}

impl RequestRecord {
    /// A request whose head has been read.
    pub fn start(
        log: AccessLog,
        metrics: Arc<Metrics>,
        request_id: HeaderValue,
        path: &str,
    ) -> Self {
        let path = if log == AccessLog::Off {
            String::new()
        } else {
            path.chars().take(LOGGED_PATH_BYTES).collect()
        };
        Self {
            log,
            metrics,
            started: Instant::now(),
            request_id,
            path,
            service: None,
            pod: None,
            status: None,
            code: None,
            outcome: Outcome::Unfinished,
            attempts: 0,
            held: Duration::ZERO,
            first_byte: None,
            request_bytes: 0,
            response_bytes: 0,
        }
    }

    /// Its body has been read and its service found.
    pub fn routed(&mut self, service: Arc<Service>, request_bytes: usize) {
        self.service = Some(service);
        self.request_bytes = request_bytes;
    }

    /// It waited for a pod.
    pub fn held_for(&mut self, time: Duration) {
        self.held += time;
    }

    /// It was given to a pod.
    pub fn attempted(&mut self) {
        self.attempts += 1;
    }

    /// A pod answers it.
    pub fn answered_by(&mut self, pod: Arc<str>, status: StatusCode) {
        self.pod = Some(pod);
        self.status = Some(status);
    }

    /// The gateway itself answers it.
    pub fn refused(&mut self, error: &ApiError) {
        self.status = Some(error.status);
        self.code = Some(error.code);
        self.outcome = Outcome::Complete;
    }

    /// The gateway itself answers it, without a service: a list of models.
    pub fn own(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.outcome = Outcome::Complete;
    }

    /// Bytes of the response go to the client.
    pub fn sent(&mut self, bytes: usize) {
        if self.first_byte.is_none() {
            self.first_byte = Some(self.started.elapsed());
        }
        self.response_bytes += bytes as u64;
    }

    /// Some of a stream's answer itself goes to the client, not only comments that keep the stream alive.
    pub fn first_token(&self) {
        if let Some(service) = &self.service {
            service.saw_first_token(self.started.elapsed());
        }
    }

    /// The response is whole.
    pub fn completed(&mut self) {
        self.outcome = Outcome::Complete;
    }

    /// The pod broke the response off.
    pub fn cut(&mut self, error: &ApiError) {
        self.code = Some(error.code);
        self.outcome = Outcome::Cut;
    }

    fn count(&self) {
        let Some(service) = &self.service else {
            if self
                .status
                .is_none_or(|status| status.is_client_error() || status.is_server_error())
            {
                self.metrics
                    .count_rejected(self.code.unwrap_or("client_left"));
            }
            return;
        };
        let metrics = &service.metrics;
        metrics.count_code(self.status.map_or(CLIENT_LEFT, |status| status.as_u16()));
        metrics
            .duration
            .observe(self.started.elapsed().as_secs_f64());
        if let Some(first_byte) = self.first_byte {
            metrics.first_byte.observe(first_byte.as_secs_f64());
        }
        if self.outcome == Outcome::Cut {
            metrics.cut_streams.inc();
        }
    }

    fn write(&self) {
        let status = self.status.map_or(CLIENT_LEFT, |status| status.as_u16());
        let noteworthy = status >= 400 || self.attempts > 1 || self.outcome == Outcome::Cut;
        if self.log == AccessLog::Off || (self.log == AccessLog::Errors && !noteworthy) {
            return;
        }
        let key = self.service.as_ref().map(|service| &service.key);
        tracing::info!(
            target: "access",
            request_id = self.request_id.to_str().unwrap_or_default(),
            path = self.path,
            namespace = key.map(ServiceKey::namespace),
            service = key.map(ServiceKey::name),
            pod = self.pod.as_deref(),
            status,
            code = self.code,
            outcome = self.outcome_text(),
            attempts = self.attempts,
            held_ms = self.held.as_millis() as u64,
            first_byte_ms = self.first_byte.map(|time| time.as_millis() as u64),
            duration_ms = self.started.elapsed().as_millis() as u64,
            request_bytes = self.request_bytes,
            response_bytes = self.response_bytes,
        );
    }

    fn outcome_text(&self) -> &'static str {
        match self.outcome {
            Outcome::Complete => "complete",
            Outcome::Cut => "cut",
            Outcome::Unfinished => "client_left",
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.count();
        self.write();
    }
}
