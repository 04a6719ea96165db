//! What one attempt at a pod says about the pod's revision, while a canary runs.
//!
//! Judged is what the pod did: a refused connection, a 5xx, a broken or silent answer are its errors
//! (a 503 that is tried elsewhere too: the client lost nothing, but the revision did not serve). An
//! answer that came whole is its success. A 4xx answers the client's own mistake and a client that
//! hangs up says nothing: neither counts for or against, so that a revision which refuses everything
//! gathers no successes.

use std::sync::Arc;

use http::StatusCode;
use tokio::time::Instant;

use crate::metrics::RevisionMetrics;

/// One attempt at a pod, counted at most once; without a canary it counts nothing.
#[derive(Debug)]
pub struct Attempt {
    revision: Option<Arc<RevisionMetrics>>,
    passed_on: Instant,
    answered: bool,
    first_byte_seen: bool,
}

impl Attempt {
    /// An attempt that begins now.
    pub fn begin(revision: Option<Arc<RevisionMetrics>>) -> Self {
        Self {
            revision,
            passed_on: Instant::now(),
            answered: false,
            first_byte_seen: false,
        }
    }

    /// The response's head has come.
    pub fn answered(&mut self, status: StatusCode) {
        if status.is_server_error() {
            self.failed();
        } else if status.is_client_error() {
            self.revision = None;
        } else {
            self.answered = true;
        }
    }

    /// Some of the answer itself has come.
    pub fn first_byte(&mut self) {
        if self.first_byte_seen || !self.answered {
            return;
        }
        self.first_byte_seen = true;
        if let Some(revision) = &self.revision {
            revision
                .ttft
                .observe(self.passed_on.elapsed().as_secs_f64());
        }
    }

    /// Whether the first byte is still to come.
    pub fn awaits_first_byte(&self) -> bool {
        self.answered && !self.first_byte_seen
    }

    /// The answer has come whole.
    pub fn completed(&mut self) {
        if let Some(revision) = self.revision.take().filter(|_| self.answered) {
            revision.ok.inc();
        }
    }

    /// The pod did not answer, or not to the end.
    pub fn failed(&mut self) {
        if let Some(revision) = self.revision.take() {
            revision.error.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::routes::ServiceKey;
    use crate::metrics::Metrics;

    /// Plays attempts and returns how many were counted as (ok, error, with a first byte).
    fn counted(play: impl Fn(&mut Attempt)) -> (u64, u64, bool) {
        let metrics = Arc::new(Metrics::default());
        let revision = Arc::new(metrics.revision(&ServiceKey::new("ns", "chat"), "new"));
        play(&mut Attempt::begin(Some(Arc::clone(&revision))));
        let text = metrics.encode().expect("encodes");
        let first = text.contains(
            r#"revision_ttft_seconds_count{namespace="ns",service="chat",revision="new"} 1"#,
        );
        (revision.ok.get(), revision.error.get(), first)
    }

    #[test]
    fn a_whole_answer_counts_once_with_its_first_byte() {
        let play = |attempt: &mut Attempt| {
            attempt.answered(StatusCode::OK);
            attempt.first_byte();
            attempt.first_byte();
            attempt.completed();
            attempt.completed();
            attempt.failed();
        };
        assert_eq!(counted(play), (1, 0, true));
    }

    #[test]
    fn errors_of_the_pod_count_once_and_have_no_first_byte() {
        let server_error = |attempt: &mut Attempt| {
            attempt.answered(StatusCode::INTERNAL_SERVER_ERROR);
            attempt.first_byte();
            attempt.completed();
        };
        assert_eq!(counted(server_error), (0, 1, false));
        assert_eq!(counted(Attempt::failed), (0, 1, false));
        let cut = |attempt: &mut Attempt| {
            attempt.answered(StatusCode::OK);
            attempt.first_byte();
            attempt.failed();
        };
        assert_eq!(counted(cut), (0, 1, true));
    }

    #[test]
    fn what_the_client_did_counts_neither_way() {
        let clients_mistake = |attempt: &mut Attempt| {
            attempt.answered(StatusCode::BAD_REQUEST);
            attempt.first_byte();
            attempt.completed();
        };
        assert_eq!(counted(clients_mistake), (0, 0, false));
        assert_eq!(counted(|_| {}), (0, 0, false));
        let hung_up = |attempt: &mut Attempt| {
            attempt.answered(StatusCode::OK);
            attempt.first_byte();
        };
        assert_eq!(counted(hung_up), (0, 0, true));
    }
}
