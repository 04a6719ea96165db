//! One request until a pod answers it: held, placed, sent, and taken elsewhere when that fails.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT_ENCODING;
use http_body::Body;
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::access_log::RequestRecord;
use crate::body::ReadBody;
use crate::core::retry::{Attempts, Failure, Next};
use crate::core::traffic;
use crate::errors::ApiError;
use crate::gather::gather;
use crate::headers::is_event_stream;
use crate::proxy::Gateway;
use crate::service::{Closed, HoldEnd, Placed, Pod, Service, Wave};
use crate::upstream::{AttemptError, UpstreamRequest};

/// An answer up to this size that is no event stream is gathered before its status goes out, so that a
/// pod's death in its middle is a clean 502 or a retry instead of a torn body.
const GATHERED_BYTES: u64 = 256 * 1024;

/// What a pod answered.
pub struct PodAnswer {
    /// Its head.
    pub head: http::response::Parts,
    /// Its body.
    pub body: PodBody,
    /// The pod, which counts the request until this is dropped.
    pub placed: Placed,
}

/// The body of a pod's answer.
pub enum PodBody {
    /// It came whole.
    Whole(Bytes),
    /// It is still to come.
    Coming(Incoming),
}

/// The pod's answer, or what to tell the client, and the record of the request.
pub type Forwarded = (Result<PodAnswer, ApiError>, RequestRecord);

/// One request until a pod answers it.
pub struct Forward {
    gateway: Arc<Gateway>,
    service: Arc<Service>,
    request: UpstreamRequest,
    body: ReadBody,
    record: RequestRecord,
    attempts: Attempts,
    tried: Vec<Arc<Pod>>,
    deadline: Instant,
    hold_timeout: Duration,
    /// Decides which revision it goes to, for all of its attempts.
    point: u32,
    early: Option<Early>,
}

/// Somebody who is told once the request is held at or after a time.
struct Early {
    at: Instant,
    tell: oneshot::Sender<()>,
}

impl Forward {
    /// A request that begins to wait now.
    pub fn new(
        gateway: Arc<Gateway>,
        service: Arc<Service>,
        request: UpstreamRequest,
        body: ReadBody,
        record: RequestRecord,
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
            early: None,
        }
    }

    /// Tells when the request is held although it has been here for `after`: the client may be answered by then.
    /// A pod's answer comes without an encoding from then on, for its headers can no longer be passed on.
    pub fn tell_if_held_after(&mut self, after: Duration) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        self.early = Some(Early {
            at: Instant::now() + after,
            tell,
        });
        told
    }

    /// Goes on until a pod has answered or it is known that none will.
    pub async fn run(mut self) -> Forwarded {
        let answered = self.until_answered().await;
        (answered, self.record)
    }

    async fn until_answered(&mut self) -> Result<PodAnswer, ApiError> {
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
        let (service, bytes, deadline) = (
            Arc::clone(&self.service),
            self.body.bytes.len(),
            self.deadline,
        );
        let admitted = self.held(service.admit(bytes, deadline)).await;
        if !matches!(admitted, Ok(None)) {
            self.record.held_for(asked.elapsed());
        }
        admitted.map_err(|end| self.hold_error(end))
    }

    /// Waits for `waiting`; whoever wants to know learns when that takes too long.
    async fn held<T>(&mut self, waiting: impl Future<Output = T>) -> T {
        let Some(early) = self.early.take() else {
            return waiting.await;
        };
        let mut waiting = pin!(waiting);
        tokio::select! {
            biased;
            done = &mut waiting => {
                self.early = Some(early);
                return done;
            }
            () = sleep_until(early.at) => {}
        }
        self.request.headers.remove(ACCEPT_ENCODING);
        let _ = early.tell.send(());
        waiting.await
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
                self.wait_for_other_pod(wait).await
            }
        }
    }

    async fn wait_for_other_pod(&mut self, wait: Duration) -> Result<(), ApiError> {
        let asked = Instant::now();
        let (service, tried) = (Arc::clone(&self.service), self.tried.clone());
        let bytes = self.body.bytes.len();
        let waiting = service.wait_for_other_pod(bytes, wait, &tried);
        let waited = self.held(waiting).await;
        self.record.held_for(asked.elapsed());
        if self.service.untried(&self.tried) == 0 {
            self.tried.clear();
        }
        waited.map_err(|end| self.hold_error(end))
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
