//! Reading a request's body whole, within bounds of size, time and memory.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use http_body::Body;
use http_body_util::BodyExt;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use crate::budget::{ByteBudget, Exhausted, Reservation};

/// Bounds on one body.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// The largest body, in bytes.
    pub max_bytes: usize,
    /// The longest silence between two parts of it.
    pub idle_timeout: Duration,
    /// The longest time for all of it.
    pub total_timeout: Duration,
}

/// A body and the memory set aside for it.
#[derive(Debug)]
pub struct ReadBody {
    /// The bytes as they came.
    pub bytes: Bytes,
    /// Kept as long as the bytes are.
    pub reservation: Reservation,
}

/// Why a body was not read.
#[derive(Debug, Error)]
pub enum BodyError {
    /// It is larger than allowed.
    #[error("the request body is larger than {0} bytes, the most this gateway accepts")]
    TooLarge(usize),
    /// It came too slowly.
    #[error("the request body did not arrive in time")]
    TooSlow,
    /// The client's connection or framing broke.
    #[error("the request body ended early or is malformed")]
    Broken,
    /// The process-wide bound is reached.
    #[error(transparent)]
    NoMemory(#[from] Exhausted),
}

/// Reads `body` to its end. The body stays the caller's, who may want to drain it after a refusal.
pub async fn read_body<B>(
    body: &mut B,
    limits: ReadLimits,
    budget: &std::sync::Arc<ByteBudget>,
) -> Result<ReadBody, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    // Refused before a byte is read: a client that waits for `100 Continue` then sends nothing.
    if body.size_hint().lower() > limits.max_bytes as u64 {
        return Err(BodyError::TooLarge(limits.max_bytes));
    }
    let deadline = Instant::now() + limits.total_timeout;
    let mut reservation = budget.reservation();
    let Some(first) = next_data(body, limits.idle_timeout, deadline).await? else {
        return Ok(ReadBody {
            bytes: Bytes::new(),
            reservation,
        });
    };
    take(&mut reservation, first.len(), limits.max_bytes)?;
    // Most bodies come in one piece, and are then passed on without a copy.
    let Some(second) = more(body, limits.idle_timeout, deadline).await? else {
        return Ok(ReadBody {
            bytes: first,
            reservation,
        });
    };
    let mut whole = BytesMut::from(first);
    let mut next = Some(second);
    while let Some(data) = next {
        take(&mut reservation, data.len(), limits.max_bytes)?;
        whole.extend_from_slice(&data);
        next = more(body, limits.idle_timeout, deadline).await?;
    }
    Ok(ReadBody {
        bytes: whole.freeze(),
        reservation,
    })
}

fn take(reservation: &mut Reservation, bytes: usize, max_bytes: usize) -> Result<(), BodyError> {
    if reservation.bytes() + bytes > max_bytes {
        return Err(BodyError::TooLarge(max_bytes));
    }
    Ok(reservation.grow(bytes)?)
}

async fn more<B>(
    body: &mut B,
    idle: Duration,
    deadline: Instant,
) -> Result<Option<Bytes>, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.is_end_stream() {
        Ok(None)
    } else {
        next_data(body, idle, deadline).await
    }
}

async fn next_data<B>(
    body: &mut B,
    idle: Duration,
    deadline: Instant,
) -> Result<Option<Bytes>, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    loop {
        // What is there already needs no timer.
        let frame = match body.frame().now_or_never() {
            Some(frame) => frame,
            None => timeout_at(deadline.min(Instant::now() + idle), body.frame())
                .await
                .map_err(|_| BodyError::TooSlow)?,
        };
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(BodyError::Broken),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if !data.is_empty() => return Ok(Some(data)),
                _ => {}
            },
        }
    }
}

/// Reads and forgets the rest of a refused body for a while, so that a client still sending it reads
/// the refusal instead of a reset connection.
pub async fn drain<B>(mut body: B, max_bytes: usize, for_at_most: Duration)
where
    B: Body<Data = Bytes> + Unpin,
{
    let reading = async {
        let mut seen = 0;
        while let Some(Ok(frame)) = body.frame().await {
            seen += frame.data_ref().map_or(0, Bytes::len);
            if seen > max_bytes {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(for_at_most, reading).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    const LIMITS: ReadLimits = ReadLimits {
        max_bytes: 10,
        idle_timeout: Duration::from_secs(5),
        total_timeout: Duration::from_secs(8),
    };

    fn parts(
        parts: &'static [&'static str],
    ) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        StreamBody::new(stream::iter(
            parts
                .iter()
                .map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))),
        ))
    }

    #[tokio::test]
    async fn joins_the_parts_and_counts_their_bytes() {
        let budget = ByteBudget::new(100);
        let read = read_body(&mut parts(&["ab", "", "cde"]), LIMITS, &budget)
            .await
            .expect("read");
        assert_eq!(&read.bytes[..], b"abcde");
        assert_eq!(budget.used_bytes(), 5);
        drop(read);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test]
    async fn refuses_a_body_over_the_limit_and_one_over_the_budget() {
        let too_large = read_body(
            &mut parts(&["0123456", "789a"]),
            LIMITS,
            &ByteBudget::new(100),
        )
        .await;
        assert!(matches!(too_large, Err(BodyError::TooLarge(10))));
        let budget = ByteBudget::new(8);
        let no_memory = read_body(&mut parts(&["0123456", "789"]), LIMITS, &budget).await;
        assert!(matches!(no_memory, Err(BodyError::NoMemory(_))));
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_on_a_client_that_stops_or_trickles() {
        let silent = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"a")))])
            .chain(stream::pending());
        let stopped = read_body(&mut StreamBody::new(silent), LIMITS, &ByteBudget::new(100)).await;
        assert!(matches!(stopped, Err(BodyError::TooSlow)));
        let trickle = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            Some((
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"a"))),
                (),
            ))
        });
        let trickled = read_body(
            &mut StreamBody::new(Box::pin(trickle)),
            LIMITS,
            &ByteBudget::new(100),
        )
        .await;
        assert!(matches!(trickled, Err(BodyError::TooSlow)));
    }
}
