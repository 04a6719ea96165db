//! How far a fetch is, for the operator: `GET /progress`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use pagoda_crds::wire::FetchProgress;
use pagoda_source::{Phase, Progress};

/// Time over which the rate is taken.
const WINDOW: Duration = Duration::from_secs(5);

/// The newest progress.
#[derive(Debug, Default)]
pub struct Gauge(Mutex<Reading>);

#[derive(Debug, Default)]
struct Reading {
    bytes: u64,
    total_bytes: Option<u64>,
    /// When there were how many bytes, the oldest first.
    samples: VecDeque<(Duration, u64)>,
}

impl Gauge {
    /// Takes in progress at a time since the start.
    pub fn set(&self, now: Duration, progress: &Progress) {
        let mut reading = self.reading();
        reading.bytes = progress.bytes;
        reading.total_bytes = progress.total_bytes.or(reading.total_bytes);
        // Bytes that are only hashed, or that were thrown away, have no speed.
        let is_hashing = progress.phase == Phase::Hashing;
        let newest = reading.samples.back().map(|(_, bytes)| *bytes);
        if is_hashing || newest.is_some_and(|newest| newest > progress.bytes) {
            reading.samples.clear();
        }
        reading.samples.push_back((now, progress.bytes));
        while reading.samples.len() > 2 && now.saturating_sub(reading.samples[1].0) >= WINDOW {
            reading.samples.pop_front();
        }
    }

    /// What to answer.
    pub fn get(&self) -> FetchProgress {
        let reading = self.reading();
        FetchProgress {
            bytes: reading.bytes,
            total_bytes: reading.total_bytes,
            bytes_per_second: rate(&reading.samples),
        }
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rate(samples: &VecDeque<(Duration, u64)>) -> u64 {
    let (Some(first), Some(last)) = (samples.front(), samples.back()) else {
        return 0;
    };
    let seconds = last.0.saturating_sub(first.0).as_secs_f64();
    if seconds > 0.0 {
        (last.1.saturating_sub(first.1) as f64 / seconds) as u64
    } else {
        0
    }
}

/// Answers as long as the process lives. That nobody can ask is no reason not to fetch.
pub async fn serve_progress(address: SocketAddr, gauge: Arc<Gauge>) {
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%address, %error, "cannot listen for questions about progress, fetching without");
            return;
        }
    };
    let answer = |State(gauge): State<Arc<Gauge>>| async move { Json(gauge.get()) };
    let router = Router::new()
        .route("/progress", get(answer))
        .with_state(gauge);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::warn!(%error, "the progress endpoint failed");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(phase: Phase, bytes: u64) -> Progress {
        Progress {
            phase,
            bytes,
            total_bytes: Some(1000),
        }
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let gauge = Gauge::default();
        let rate = |second: u64, phase, bytes| {
            gauge.set(Duration::from_secs(second), &progress(phase, bytes));
            gauge.get().bytes_per_second
        };
        assert_eq!(rate(0, Phase::Fetching, 0), 0);
        assert_eq!(rate(1, Phase::Fetching, 100), 100);
        for second in 2..=20 {
            rate(second, Phase::Fetching, 100);
        }
        assert_eq!(gauge.get().bytes_per_second, 0, "nothing came lately");
        assert_eq!(rate(21, Phase::Fetching, 600), 100);
        assert_eq!(rate(22, Phase::Fetching, 50), 0, "begun anew");
        assert_eq!(rate(23, Phase::Hashing, 900), 0, "hashing is no download");
        assert_eq!(gauge.get().total_bytes, Some(1000));
    }

    #[tokio::test]
    async fn a_port_that_is_taken_stops_nothing() {
        let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        serve_progress(taken.local_addr().unwrap(), Arc::default()).await;
    }
}
