//! The hash of a file that is being written: read back in order, right behind the connections, from memory as a rule.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::shared::Shared;
use crate::error::FetchError;
use crate::partial::read_through;

/// Bytes that are hashed between two looks at the state.
const STEP_BYTES: u64 = 8 << 20;

/// Returns the hash and the length once the file is whole. `hasher` has taken in what was in place from byte 0 on.
pub(super) async fn follow(
    shared: Arc<Shared>,
    hasher: Sha256,
) -> Result<(Sha256, u64), FetchError> {
    let mut stopped = shared.stopped();
    let (mut hasher, mut hashed) = (hasher, shared.state().plan.prefix_end());
    loop {
        let change = shared.change();
        tokio::pin!(change);
        // From here on no announcement is missed.
        change.as_mut().enable();
        let (ready, total) = {
            let state = shared.state();
            (state.plan.prefix_end(), state.plan.total())
        };
        if hashed < ready {
            let end = ready.min(hashed + STEP_BYTES);
            hasher = hash_range(&shared, hasher, hashed, end).await?;
            hashed = end;
        } else if total == Some(hashed) {
            return Ok((hasher, hashed));
        } else {
            tokio::select! {
                () = change => {}
                _ = stopped.wait_for(|stopped| *stopped) => {
                    return Err(FetchError::failed("the download was stopped"));
                }
            }
        }
        if *stopped.borrow() {
            return Err(FetchError::failed("the download was stopped"));
        }
    }
}

async fn hash_range(
    shared: &Arc<Shared>,
    mut hasher: Sha256,
    start: u64,
    end: u64,
) -> Result<Sha256, FetchError> {
    let shared = shared.clone();
    let hashed = tokio::task::spawn_blocking(move || {
        shared.with_partial(|partial| {
            let read = read_through(partial.file(), &(start..end), &mut |bytes| {
                hasher.update(bytes);
            });
            match read {
                Ok(true) => Ok(hasher),
                Ok(false) => Err(FetchError::failed(format!(
                    "{} was cut off by somebody else while it was written",
                    partial.path().display()
                ))),
                Err(error) => Err(partial.failed(&error)),
            }
        })
    });
    hashed
        .await
        .unwrap_or_else(|error| Err(FetchError::failed(format!("hashing crashed: {error}"))))
}
