//! Asks pods for their load: many at once, within a round.

use std::{
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use pagoda_operator_core::autoscale::{PodReader, PodReading};
use tokio::time::Instant;

use super::peers::{AskError, Manner, Peers};

const TIMEOUT: Duration = Duration::from_millis(900);
/// Questions end with their round, so that many pods that are silent delay nobody for longer.
const ROUND_LIMIT: Duration = Duration::from_millis(1500);
/// Questions at once.
const CONCURRENCY: usize = 256;
/// Of those who did not answer the last time, so many are asked in a round: they may take all of it.
const DOUBTFUL: usize = 64;

/// Asks pods, and leaves alone for a while who did not answer.
#[derive(Debug, Default)]
pub struct PodScraper {
    peers: Peers,
    reader: Mutex<PodReader>,
    failures: AtomicUsize,
}

/// A pod that is to be asked.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Its server.
    pub address: SocketAddr,
    /// Whether it is asked again within moments.
    pub often: bool,
    /// Whether it is our own engine, which has a short text for this.
    pub is_ours: bool,
}

impl PodScraper {
    /// One answer for each question, in their order. Whoever cannot be asked before the round ends is absent.
    pub async fn ask(&self, questions: &[Question]) -> Vec<Option<PodReading>> {
        let (order, next) = (self.order(questions), AtomicUsize::new(0));
        let answers = Mutex::new(vec![None; questions.len()]);
        let deadline = Instant::now() + ROUND_LIMIT;
        let worker = || async {
            while Instant::now() < deadline
                && let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let question = &questions[*index];
                let until = deadline.min(Instant::now() + TIMEOUT);
                let reading = self.ask_one(question, until).await;
                answers.lock().unwrap_or_else(PoisonError::into_inner)[*index] = reading;
            }
        };
        join_all((0..CONCURRENCY.min(order.len())).map(|_| worker())).await;
        answers.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who answered the last time first, and some of the others.
    fn order(&self, questions: &[Question]) -> Vec<usize> {
        let sound = |index: &usize| self.peers.answers(questions[*index].address);
        let (mut order, doubtful): (Vec<usize>, Vec<usize>) = (0..questions.len()).partition(sound);
        let now = Instant::now();
        let due = doubtful
            .into_iter()
            .filter(|index| self.peers.is_due(questions[*index].address, now));
        order.extend(due.take(DOUBTFUL));
        order
    }

    async fn ask_one(&self, question: &Question, until: Instant) -> Option<PodReading> {
        let (path, instead) = if question.is_ours {
            // Engines of earlier releases have the long one alone.
            ("/metrics/load", Some("/metrics"))
        } else {
            ("/metrics", None)
        };
        let manner = Manner {
            path,
            instead,
            often: question.often,
        };
        let address = question.address;
        let answer = match self.peers.ask(address, manner, until).await {
            Ok(answer) => answer,
            Err(AskError::Pausing) => return None,
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%error, %address, "a pod tells no load");
                return None;
            }
        };
        let text = std::str::from_utf8(answer.body()).unwrap_or_default();
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let read = reader.read(text);
        drop(reader);
        match read {
            Ok(reading) => Some(reading),
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, %address, "metrics of a pod that cannot be trusted count as absent");
                None
            }
        }
    }

    /// Failures since this was last asked.
    pub fn take_failures(&self) -> usize {
        self.failures.swap(0, Ordering::Relaxed)
    }

    /// Forgets addresses that nobody asks any more.
    pub fn forget_old(&self) {
        self.peers.forget_old(Instant::now());
    }
}
