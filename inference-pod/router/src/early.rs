//! An early answer to a held request for a stream: `200`, comments that keep the connection open, then the pod's stream.
//!
//! The status and the headers are spent when the answer begins, so what a pod says in them is lost, and whatever goes
//! wrong afterwards is an event of the stream. The bytes that follow the comments are the pod's own, each of them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body_util::{BodyExt, Limited};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::access_log::RequestRecord;
use crate::core::routes::ServiceKey;
use crate::errors::{ApiError, sse_event_of};
use crate::forward::{Forward, Forwarded, PodAnswer, PodBody};
use crate::headers::{self, is_event_stream};
use crate::proxy::Gateway;
use crate::relay::{BrokenOff, GatewayBody, Relay};
use crate::service::Service;

/// Between two comments: less than the 10 s to 60 s after which clients and proxies give up on silence.
const EVERY: Duration = Duration::from_secs(5);
/// The most of a pod's error that is passed on.
const ERROR_BYTES: usize = 64 * 1024;

/// Answers a request for a stream: with the pod's answer, or early, when the request is still held after `after`.
pub async fn answer(
    gateway: Arc<Gateway>,
    service: Arc<Service>,
    mut forward: Forward,
    after: Duration,
    id: &HeaderValue,
) -> Response<GatewayBody> {
    let held_too_long = forward.tell_if_held_after(after);
    let mut forwarding = Box::pin(forward.run());
    tokio::select! {
        biased;
        (answered, record) = &mut forwarding => return gateway.respond(answered, id, record),
        Ok(()) = held_too_long => {}
    }
    service.metrics.count_early_stream();
    let comment = comment(&service.key);
    // A task of its own: a client that reads nothing must not keep the place among the pods that its request was given.
    let next = tokio::spawn(splice(gateway, service, forwarding));
    response(id, EarlyBody::new(comment, next))
}

fn comment(key: &ServiceKey) -> Bytes {
    format!(": waiting for a pod of {key}\n\n").into()
}

fn response(id: &HeaderValue, body: EarlyBody) -> Response<GatewayBody> {
    let mut response = Response::new(GatewayBody::Early(Box::new(body)));
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers::to_client(fields, id, true);
    response
}

/// What follows the comments.
enum Next {
    Stream(Box<Relay>),
    /// The last event.
    Error(Bytes),
}

async fn splice(
    gateway: Arc<Gateway>,
    service: Arc<Service>,
    forwarding: impl Future<Output = Forwarded>,
) -> Next {
    let (answered, mut record) = forwarding.await;
    let answer = match answered {
        Ok(answer) => answer,
        Err(error) => return Next::Error(said(&error, &mut record)),
    };
    let streams = answer.head.status.is_success() && is_event_stream(&answer.head.headers);
    match answer {
        PodAnswer {
            head,
            body: PodBody::Coming(incoming),
            placed,
        } if streams => {
            record.answered_by(Arc::clone(&placed.pod.label), head.status);
            let stall = gateway.config.stall_timeout;
            Next::Stream(Box::new(Relay::new(incoming, true, stall, placed, record)))
        }
        answer => {
            let stall = gateway.config.stall_timeout;
            Next::Error(pods_error(answer, &service.key, stall, &mut record).await)
        }
    }
}

fn said(error: &ApiError, record: &mut RequestRecord) -> Bytes {
    let event = error.sse_event();
    record.refused(error);
    record.sent(event.len());
    event
}

/// An answer that is no stream, as an event: the pod's own words where they have the shape that clients expect.
async fn pods_error(
    answer: PodAnswer,
    key: &ServiceKey,
    stall: Duration,
    record: &mut RequestRecord,
) -> Bytes {
    let PodAnswer {
        head,
        body,
        mut placed,
    } = answer;
    record.answered_by(Arc::clone(&placed.pod.label), head.status);
    if head.status.is_success() {
        return said(&ApiError::no_stream(key), record);
    }
    let body = match body {
        PodBody::Whole(bytes) => Some(bytes),
        PodBody::Coming(incoming) => timeout(stall, Limited::new(incoming, ERROR_BYTES).collect())
            .await
            .ok()
            .and_then(Result::ok)
            .map(http_body_util::Collected::to_bytes),
    };
    let own = body
        .filter(|body| body.len() <= ERROR_BYTES)
        .and_then(|body| sse_event_of(&body));
    let Some(event) = own else {
        return said(&ApiError::pod_refused(key, head.status), record);
    };
    placed.attempt.completed();
    record.sent(event.len());
    record.completed();
    event
}

/// The body of an early answer.
pub struct EarlyBody {
    comment: Bytes,
    next_comment: Pin<Box<Sleep>>,
    state: State,
}

enum State {
    Waiting(JoinHandle<Next>),
    Relaying(Box<Relay>),
    Ended,
}

impl EarlyBody {
    fn new(comment: Bytes, next: JoinHandle<Next>) -> Self {
        Self {
            comment,
            next_comment: Box::pin(sleep_until(Instant::now())),
            state: State::Waiting(next),
        }
    }

    /// Whether nothing follows.
    pub fn is_ended(&self) -> bool {
        match &self.state {
            State::Waiting(_) => false,
            State::Relaying(relay) => relay.is_ended(),
            State::Ended => true,
        }
    }

    /// The next bytes.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        loop {
            match &mut self.state {
                State::Waiting(next) => match Pin::new(next).poll(cx) {
                    Poll::Ready(Ok(Next::Stream(relay))) => self.state = State::Relaying(relay),
                    Poll::Ready(Ok(Next::Error(event))) => {
                        self.state = State::Ended;
                        return Poll::Ready(Some(Ok(event)));
                    }
                    Poll::Ready(Err(_)) => {
                        self.state = State::Ended;
                        return Poll::Ready(Some(Err(BrokenOff)));
                    }
                    Poll::Pending => return self.poll_comment(cx),
                },
                State::Relaying(relay) => return relay.poll_data(cx),
                State::Ended => return Poll::Ready(None),
            }
        }
    }

    fn poll_comment(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        ready!(self.next_comment.as_mut().poll(cx));
        self.next_comment.as_mut().reset(Instant::now() + EVERY);
        Poll::Ready(Some(Ok(self.comment.clone())))
    }
}

impl Drop for EarlyBody {
    /// The client has left: nobody waits for a pod any more.
    fn drop(&mut self) {
        if let State::Waiting(next) = &self.state {
            next.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_comment_comes_at_once_and_then_every_few_seconds() {
        let key = ServiceKey::new("ns", "chat");
        let next = tokio::spawn(pending());
        let mut body = EarlyBody::new(comment(&key), next);
        let began = Instant::now();
        for nth in 0..4 {
            let comment = poll_fn(|cx| body.poll_data(cx)).await;
            let comment = comment.expect("more").expect("no error");
            assert!(comment.starts_with(b": ") && comment.ends_with(b"\n\n"));
            let waited = began.elapsed();
            assert!(waited >= EVERY * nth && waited < EVERY * nth + Duration::from_secs(1));
        }
        assert!(!body.is_ended());
    }

    #[tokio::test]
    async fn the_last_event_ends_the_body_and_a_task_that_dies_breaks_it_off() {
        let key = ServiceKey::new("ns", "chat");
        let next = tokio::spawn(async { Next::Error("data: {}\n\n".into()) });
        let mut body = EarlyBody::new(comment(&key), next);
        let mut last = Bytes::new();
        while let Some(data) = poll_fn(|cx| body.poll_data(cx)).await {
            last = data.expect("no error");
        }
        assert_eq!((&last[..], body.is_ended()), (&b"data: {}\n\n"[..], true));
        let dies = tokio::spawn(pending());
        dies.abort();
        let mut body = EarlyBody::new(comment(&key), dies);
        let mut broken = false;
        while let Some(data) = poll_fn(|cx| body.poll_data(cx)).await {
            broken |= data.is_err();
        }
        assert!(broken);
    }
}
