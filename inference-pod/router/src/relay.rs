//! The response's body on its way from pod to client: passed on as it comes, never gathered.
//!
//! Backpressure is the absence of code: the pod's next bytes are read when the client's connection asks
//! for them. When the pod breaks an event stream off, the client gets an error event instead of a
//! silent end; any other body broken off ends its connection, since its status has been sent.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::time::{Instant, Sleep};

use crate::access_log::RequestRecord;
use crate::early::EarlyBody;
use crate::errors::ApiError;
use crate::service::Placed;
use crate::sse::{WholeEvents, has_event_data};

/// A pod broke a response off that cannot carry an error.
#[derive(Debug, Error)]
#[error("the pod broke its response off")]
pub struct BrokenOff;

/// A response's body.
pub enum GatewayBody {
    /// Bytes of the gateway's own, or of a pod's answer that came whole.
    Full(Option<Bytes>),
    /// A pod's, as it comes.
    Relay(Box<Relay>),
    /// A pod's, after comments while there was none.
    Early(Box<EarlyBody>),
}

impl GatewayBody {
    /// A body of these bytes.
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Full((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for GatewayBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relay(relay) => relay.poll_data(cx).map(as_frame),
            Self::Early(early) => early.poll_data(cx).map(as_frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Relay(relay) => relay.is_ended(),
            Self::Early(early) => early.is_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Relay(relay) if relay.events.is_none() => relay.upstream.size_hint(),
            Self::Relay(_) | Self::Early(_) => SizeHint::default(),
        }
    }
}

fn as_frame(next: Option<Result<Bytes, BrokenOff>>) -> Option<Result<Frame<Bytes>, BrokenOff>> {
    next.map(|data| data.map(Frame::data))
}

/// A pod's response body, with the guards that count it.
pub struct Relay {
    upstream: Incoming,
    /// Present for an event stream.
    events: Option<WholeEvents>,
    stall: Stall,
    record: RequestRecord,
    placed: Placed,
    ended: bool,
}

impl Relay {
    /// Relays `upstream`; `placed` and `record` end with it. A pod silent for `stall_timeout` counts as gone.
    pub fn new(
        upstream: Incoming,
        event_stream: bool,
        stall_timeout: Duration,
        placed: Placed,
        record: RequestRecord,
    ) -> Self {
        let events = event_stream.then(WholeEvents::default);
        Self {
            upstream,
            events,
            stall: Stall::new(stall_timeout),
            record,
            placed,
            ended: false,
        }
    }

    /// Whether nothing follows.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// The next bytes.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        while !self.ended {
            let frame = match Pin::new(&mut self.upstream).poll_frame(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    ready!(self.stall.poll(cx));
                    return Poll::Ready(Some(self.break_off(true)));
                }
            };
            self.stall.heard();
            match frame {
                None => return Poll::Ready(self.end()),
                Some(Err(_)) => return Poll::Ready(Some(self.break_off(false))),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    let data = match &mut self.events {
                        Some(events) => events.push(data),
                        None => data,
                    };
                    if !data.is_empty() {
                        self.note_first_byte(&data);
                        self.record.sent(data.len());
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
            }
        }
        Poll::Ready(None)
    }

    /// Comments that only keep an event stream alive are no answer yet.
    fn note_first_byte(&mut self, data: &[u8]) {
        let attempt = &mut self.placed.attempt;
        if attempt.awaits_first_byte() && (self.events.is_none() || has_event_data(data)) {
            attempt.first_byte();
            if self.events.is_some() {
                self.record.first_token();
            }
        }
    }

    fn end(&mut self) -> Option<Result<Bytes, BrokenOff>> {
        self.ended = true;
        self.record.completed();
        self.placed.attempt.completed();
        let rest = self
            .events
            .as_mut()
            .map(WholeEvents::finish)
            .filter(|rest| !rest.is_empty())?;
        self.record.sent(rest.len());
        Some(Ok(rest))
    }

    fn break_off(&mut self, stalled: bool) -> Result<Bytes, BrokenOff> {
        self.ended = true;
        self.placed.attempt.failed();
        let error = self.error(stalled);
        self.record.cut(&error);
        let Some(events) = &mut self.events else {
            return Err(BrokenOff);
        };
        let event = [events.abandon(), &error.sse_event()].concat();
        self.record.sent(event.len());
        Ok(event.into())
    }

    fn error(&self, stalled: bool) -> ApiError {
        let key = self.placed.service_key();
        if stalled {
            ApiError::stream_stalled(key, self.stall.timeout.as_secs())
        } else {
            ApiError::stream_failed(key)
        }
    }
}

/// Notices that nothing has come for too long. The timer is touched only when there is nothing to read.
struct Stall {
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl Stall {
    fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            timer: None,
            waiting: false,
        }
    }

    fn heard(&mut self) {
        self.waiting = false;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = Instant::now() + self.timeout;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.waiting {
            timer.as_mut().reset(deadline);
            self.waiting = true;
        }
        timer.as_mut().poll(cx)
    }
}
