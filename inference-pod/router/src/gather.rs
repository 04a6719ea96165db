//! A small answer read whole before its status goes out.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::attempt::Attempt;
use crate::core::retry::Failure;
use crate::upstream::AttemptError;

/// Reads `body` to its end within `timeout`; `attempt` learns of its first byte.
pub async fn gather(
    mut body: Incoming,
    attempt: &mut Attempt,
    timeout: Duration,
) -> Result<Bytes, AttemptError> {
    let gathered = tokio::time::timeout(timeout, read(&mut body, attempt)).await;
    match gathered {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(AttemptError {
            failure: Failure::Broken,
            detail: error.to_string(),
        }),
        Err(_) => Err(AttemptError {
            failure: Failure::TimedOut,
            detail: "the answer stopped in its middle".into(),
        }),
    }
}

async fn read(body: &mut Incoming, attempt: &mut Attempt) -> Result<Bytes, hyper::Error> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if data.is_empty() {
            continue;
        }
        attempt.first_byte();
        // Most answers come in one piece, and are then passed on without a copy.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() {
        first
    } else {
        rest.freeze()
    })
}
