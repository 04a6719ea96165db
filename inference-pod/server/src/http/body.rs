//! Reads a request's body within bounds of size and time.

use std::time::Duration;

use axum::body::Body;
use futures::StreamExt;

use super::errors::ApiError;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_mins(1);

/// How much of a body that is too large is still read, in multiples of the limit: a client that is cut off in the middle
/// of sending sees a broken connection instead of the reason.
const DISCARDED: usize = 4;

/// The whole body, of at most `limit_bytes` bytes.
pub async fn read(body: Body, limit_bytes: usize) -> Result<Vec<u8>, ApiError> {
    match tokio::time::timeout(PATIENCE, collect(body, limit_bytes)).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::body_too_slow(PATIENCE.as_secs())),
    }
}

async fn collect(body: Body, limit_bytes: usize) -> Result<Vec<u8>, ApiError> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    let mut received = 0usize;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::bad_request(format!("the body could not be read: {error}"))
        })?;
        received = received.saturating_add(chunk.len());
        if received > limit_bytes.saturating_mul(DISCARDED) {
            break;
        }
        if received <= limit_bytes {
            bytes.extend_from_slice(&chunk);
        }
    }
    if received > limit_bytes {
        Err(ApiError::body_too_large(limit_bytes))
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn takes_a_body_of_exactly_the_limit_and_refuses_one_byte_more() {
        assert_eq!(read(Body::from(vec![1; 10]), 10).await.unwrap().len(), 10);
        assert_eq!(
            read(Body::from(vec![1; 11]), 10).await.unwrap_err(),
            ApiError::body_too_large(10)
        );
        assert_eq!(
            read(Body::from(vec![1; 1000]), 10).await.unwrap_err(),
            ApiError::body_too_large(10)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let error = read(
            Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>()),
            10,
        )
        .await;
        assert_eq!(error.unwrap_err().status.as_u16(), 408);
    }
}
