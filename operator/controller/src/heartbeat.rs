//! Signs of life: who has not been heard of for too long, and what follows from it.
//!
//! A loop that waits for ever looks healthy from outside. So each watch and each loop beats here; one that is late makes
//! `/healthz` fail, and one that stays late ends the process, from a thread of its own that a wedged runtime cannot stop.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

const CHECK_EVERY: Duration = Duration::from_secs(5);
/// A runtime that is told to end gets this long.
const END_GRACE: Duration = Duration::from_secs(10);

/// How long something may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Then it is late: `/healthz` fails.
    pub late: Duration,
    /// Then it is dead: the process ends.
    pub dead: Duration,
}

/// Sign of life of one loop.
#[derive(Debug)]
pub struct Sign {
    started: Instant,
    beat_ms: AtomicU64,
}

impl Sign {
    /// Lives.
    pub fn beat(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        self.beat_ms.store(now, Ordering::Relaxed);
    }

    fn silent(&self) -> Duration {
        let beat = Duration::from_millis(self.beat_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(beat)
    }
}

struct Watched {
    name: String,
    patience: Patience,
    silent: Box<dyn Fn() -> Duration + Send + Sync>,
}

/// All that must live.
#[derive(Default)]
pub struct Heartbeats(Mutex<Vec<Watched>>);

/// Somebody who was not heard of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} has not been heard of for {seconds} s")]
pub struct Silent {
    /// Who.
    pub name: String,
    /// For how long.
    pub seconds: u64,
}

impl Heartbeats {
    /// Expects beats from now on.
    pub fn expect(&self, name: impl Into<String>, patience: Patience) -> Arc<Sign> {
        let sign = Arc::new(Sign {
            started: Instant::now(),
            beat_ms: AtomicU64::new(0),
        });
        let beats = sign.clone();
        self.observe(name, patience, move || beats.silent());
        sign
    }

    /// Watches something that knows by itself how long it has been silent.
    pub fn observe(
        &self,
        name: impl Into<String>,
        patience: Patience,
        silent: impl Fn() -> Duration + Send + Sync + 'static,
    ) {
        let watched = Watched {
            name: name.into(),
            patience,
            silent: Box::new(silent),
        };
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(watched);
    }

    /// Somebody who is late.
    pub fn late(&self) -> Option<Silent> {
        self.beyond(|patience| patience.late)
    }

    /// Somebody who is dead.
    pub fn dead(&self) -> Option<Silent> {
        self.beyond(|patience| patience.dead)
    }

    fn beyond(&self, limit: fn(&Patience) -> Duration) -> Option<Silent> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().find_map(|watched| {
            let silent = (watched.silent)();
            (silent > limit(&watched.patience)).then(|| Silent {
                name: watched.name.clone(),
                seconds: silent.as_secs(),
            })
        })
    }
}

/// Tells when somebody is dead. A process that does not end by itself then is ended.
pub fn guard(heartbeats: Arc<Heartbeats>) -> std::io::Result<oneshot::Receiver<Silent>> {
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new()
        .name("watchdog".into())
        .spawn(move || {
            let dead = loop {
                std::thread::sleep(CHECK_EVERY);
                if let Some(dead) = heartbeats.dead() {
                    break dead;
                }
            };
            tracing::error!(%dead, "ending: a restart is the cure that is left");
            let _ = tell.send(dead);
            std::thread::sleep(END_GRACE);
            std::process::exit(1);
        })?;
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        late: Duration::from_secs(10),
        dead: Duration::from_secs(20),
    };

    #[test]
    fn the_one_that_is_silent_is_named_first_as_late_and_then_as_dead() {
        for (seconds, late, dead) in [(9, false, false), (11, true, false), (21, true, true)] {
            let all = Heartbeats::default();
            let lively = all.expect("the watch of Pods", PATIENCE);
            lively.beat();
            all.observe("the watch of Services", PATIENCE, move || {
                Duration::from_secs(seconds)
            });
            let name = |silent: Option<Silent>| silent.map(|s| s.name);
            let expected = |yes: bool| yes.then(|| "the watch of Services".to_owned());
            assert_eq!(name(all.late()), expected(late));
            assert_eq!(name(all.dead()), expected(dead));
        }
    }
}
