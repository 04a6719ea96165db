//! Leaving without cutting anybody off.
//!
//! On SIGTERM the pod stops being ready but goes on answering for [`GRACE`], because routers hear of it late. Then it
//! refuses new requests, and ends as soon as no request is open, or after the drain time.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// How long new requests are still taken after the signal: routers and kube-proxies need a moment to hear of it.
pub const GRACE: Duration = Duration::from_secs(3);

/// How far the pod is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not at all.
    Serving,
    /// Not ready any more, but answering.
    Leaving,
    /// Refusing new requests, finishing old ones.
    Refusing,
}

/// The stage, and the requests that are open.
#[derive(Debug)]
pub struct Drain {
    stage: AtomicU8,
    open: watch::Sender<usize>,
}

/// Keeps one request counted as open.
#[derive(Debug)]
pub struct OpenRequest {
    open: watch::Sender<usize>,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            stage: AtomicU8::new(0),
            open: watch::channel(0).0,
        }
    }
}

impl Drain {
    /// How far it is.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::SeqCst) {
            0 => Stage::Serving,
            1 => Stage::Leaving,
            _ => Stage::Refusing,
        }
    }

    fn enter(&self, stage: Stage) {
        let number = match stage {
            Stage::Serving => 0,
            Stage::Leaving => 1,
            Stage::Refusing => 2,
        };
        self.stage.store(number, Ordering::SeqCst);
    }

    /// Opens a request, unless they are refused. Dropping the result closes it.
    pub fn open(&self) -> Option<OpenRequest> {
        // Counted before the stage is read: so a drain that saw none open refuses this one.
        self.open.send_modify(|open| *open += 1);
        let request = OpenRequest {
            open: self.open.clone(),
        };
        (self.stage() != Stage::Refusing).then_some(request)
    }

    /// Requests that are open.
    pub fn open_requests(&self) -> usize {
        *self.open.borrow()
    }

    /// Goes through the stages and returns when nothing is open or `limit` has passed since the call. Returns how many
    /// requests are still open.
    pub async fn run(&self, grace: Duration, limit: Duration) -> usize {
        let deadline = tokio::time::Instant::now() + limit;
        self.enter(Stage::Leaving);
        tokio::time::sleep(grace.min(limit)).await;
        self.enter(Stage::Refusing);
        let mut open = self.open.subscribe();
        // The sender lives in `self`, so only the deadline can end this early.
        let _ = tokio::time::timeout_at(deadline, open.wait_for(|open| *open == 0)).await;
        self.open_requests()
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn goes_on_taking_requests_for_a_grace_period_and_then_refuses() {
        let drain = Arc::new(Drain::default());
        let first = drain.open().unwrap();
        let running = tokio::spawn({
            let drain = Arc::clone(&drain);
            async move { drain.run(GRACE, Duration::from_mins(1)).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(drain.stage(), Stage::Leaving);
        let late = drain.open().unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(drain.stage(), Stage::Refusing);
        assert!(drain.open().is_none());
        assert!(!running.is_finished());
        drop((first, late));
        assert_eq!(running.await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_its_time_and_says_what_is_left() {
        let drain = Drain::default();
        let _open = drain.open().unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(drain.run(GRACE, Duration::from_secs(10)).await, 1);
        assert_eq!(began.elapsed(), Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_pod_leaves_after_the_grace_period() {
        let began = tokio::time::Instant::now();
        assert_eq!(Drain::default().run(GRACE, Duration::from_mins(1)).await, 0);
        assert_eq!(began.elapsed(), GRACE);
    }
}
