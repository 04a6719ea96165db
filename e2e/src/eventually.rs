//! Waiting for what comes true in its own time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Probes until it succeeds; after `limit`, fails with what was waited for and the last probe's reason.
pub async fn eventually<T>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        let reason = match probe().await {
            Ok(value) => return Ok(value),
            Err(reason) => reason,
        };
        if began.elapsed() > limit {
            bail!(
                "waited {} s in vain until {what}: {reason:#}",
                limit.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
