//! Steady load of a known width: so many streams open at any moment, each a whole chat.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use pagoda_e2e::openai::{Chat, OpenAi};
use tokio::task::JoinSet;

/// How the requests of a load ended.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests answered whole.
    pub whole: usize,
    /// What each other request got.
    pub failures: Vec<String>,
}

impl Tally {
    /// Fails unless every request was answered whole, and there was one.
    pub fn unharmed(&self) -> Result<()> {
        ensure!(
            self.failures.is_empty(),
            "{} of {} requests were harmed: {:#?}",
            self.failures.len(),
            self.failures.len() + self.whole,
            self.failures
        );
        ensure!(self.whole > 0, "the load sent no request");
        Ok(())
    }

    fn add(mut self, other: Self) -> Self {
        self.whole += other.whole;
        self.failures.extend(other.failures);
        self
    }
}

/// A load that runs until it is stopped.
pub struct Load {
    stopping: Arc<AtomicBool>,
    workers: JoinSet<Tally>,
}

impl Load {
    /// `width` workers, each sending its next chat when the last one has ended.
    pub fn start(gateway: &OpenAi, chat: &Chat, width: usize) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let mut workers = JoinSet::new();
        for _ in 0..width {
            workers.spawn(work(gateway.clone(), chat.clone(), stopping.clone()));
        }
        Self { stopping, workers }
    }

    /// Lets the open requests end by themselves, and counts.
    pub async fn stop(self) -> Tally {
        self.stopping.store(true, Ordering::Relaxed);
        self.workers
            .join_all()
            .await
            .into_iter()
            .fold(Tally::default(), Tally::add)
    }
}

async fn work(gateway: OpenAi, chat: Chat, stopping: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    while !stopping.load(Ordering::Relaxed) {
        match gateway.stream(&chat, |_| ()).await {
            Ok(reply) if reply.is_whole() => tally.whole += 1,
            Ok(reply) => tally.failures.push(format!("{reply:?}")),
            Err(error) => tally.failures.push(format!("{error:#}")),
        }
        if tally.failures.len() > 20 {
            // Enough to see what is wrong; a refusing server would otherwise be asked thousands of times a second.
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tally
}
