//! Whom the autoscaler asks: a connection to each that is asked often, and pauses for those who do not answer.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Resource, getrlimit};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};

use super::wire::{Answer, Buffers, WireError, exchange, question};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A connection costs both sides a file and some memory; beyond so many, further pods are asked on new ones.
const MOST_KEPT: usize = 8192;
/// A connection that was not used for this long is closed.
const IDLE: Duration = Duration::from_secs(5);
/// One that was not asked for this long exists no more.
const OLD: Duration = Duration::from_mins(2);

/// Why there is no answer to use.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It did not answer a moment ago, and is not asked again yet.
    #[error("it is not asked yet, for it did not answer before")]
    Pausing,
    /// Nobody answered in time.
    #[error("no answer in time")]
    Late,
    /// The connection or the answer is at fault.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// An answer other than 200.
    #[error("it answered {0}")]
    Status(u16),
}

/// How somebody is asked.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// What for.
    pub path: &'static str,
    /// What for, where that is not there.
    pub instead: Option<&'static str>,
    /// Whether it is asked again within a moment: then its connection is kept.
    pub often: bool,
}

/// Everybody who was asked lately.
#[derive(Debug)]
pub struct Peers {
    all: Mutex<All>,
    buffers: Arc<Buffers>,
    most_kept: usize,
}

#[derive(Debug, Default)]
struct All {
    peers: HashMap<SocketAddr, Peer>,
    /// Connections that are kept and not in use.
    kept: usize,
}

impl Default for Peers {
    fn default() -> Self {
        // Half of what the process may have open is left to others.
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
        Self {
            all: Mutex::default(),
            buffers: Arc::default(),
            most_kept: usize::try_from(files).unwrap_or(MOST_KEPT).min(MOST_KEPT),
        }
    }
}

#[derive(Debug)]
struct Peer {
    line: Option<Line>,
    asked: Instant,
    /// Whether it has not what is asked for first.
    lacks: bool,
    /// How long it is left alone, and until when; none when it answered.
    pause: Option<(Duration, Instant)>,
}

/// A connection, and what is asked on it.
#[derive(Debug)]
struct Line {
    stream: TcpStream,
    path: &'static str,
    question: Box<[u8]>,
}

impl Peers {
    /// Whether the last question was answered, as far as is known.
    pub fn answers(&self, address: SocketAddr) -> bool {
        let all = self.lock();
        let peer = all.peers.get(&address);
        peer.is_none_or(|peer| peer.pause.is_none())
    }

    /// Whether it may be asked now.
    pub fn is_due(&self, address: SocketAddr, now: Instant) -> bool {
        let all = self.lock();
        let pause = all.peers.get(&address).and_then(|peer| peer.pause);
        pause.is_none_or(|(_, until)| until <= now)
    }

    /// The body of a 200, until a deadline. One that does not answer is asked ever more rarely, up to every 30 seconds.
    pub async fn ask(
        &self,
        address: SocketAddr,
        manner: Manner,
        deadline: Instant,
    ) -> Result<Answer, AskError> {
        let (kept, lacks) = self.begin(address, Instant::now())?;
        let first = manner.instead.filter(|_| lacks).unwrap_or(manner.path);
        let asked = timeout_at(deadline, self.ask_for(kept, address, manner, first)).await;
        let (result, line) = match asked {
            Ok(Ok((answer, line))) if answer.status == 200 => (Ok(answer), line),
            // It speaks, so it is there; what it says may change at any time.
            Ok(Ok((answer, line))) => (Err(AskError::Status(answer.status)), line),
            Ok(Err(error)) => (Err(error.into()), None),
            Err(_) => (Err(AskError::Late), None),
        };
        self.end(address, line, result.is_ok());
        result
    }

    /// Asks for the one thing, and where that is not there for the other.
    async fn ask_for(
        &self,
        kept: Option<Line>,
        address: SocketAddr,
        manner: Manner,
        first: &'static str,
    ) -> Result<(Answer, Option<Line>), WireError> {
        let (answer, line) = self.ask_on(kept, address, first, manner.often).await?;
        match manner.instead {
            Some(instead) if answer.status == 404 && first != instead => {
                if let Some(peer) = self.lock().peers.get_mut(&address) {
                    peer.lacks = true;
                }
                drop((answer, line));
                self.ask_on(None, address, instead, manner.often).await
            }
            _ => Ok((answer, line)),
        }
    }

    async fn ask_on(
        &self,
        kept: Option<Line>,
        address: SocketAddr,
        path: &'static str,
        often: bool,
    ) -> Result<(Answer, Option<Line>), WireError> {
        if let Some(mut line) = kept.filter(|line| line.path == path) {
            match exchange(&mut line.stream, &line.question, &self.buffers).await {
                // The server closed it since, as it may: asking anew does no harm.
                Err(WireError::Closed) => {}
                other => return other.map(|answer| keep(answer, line, often)),
            }
        }
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut line = Line {
            stream,
            path,
            question: question(path, address, often),
        };
        let answer = exchange(&mut line.stream, &line.question, &self.buffers).await?;
        Ok(keep(answer, line, often))
    }

    /// The connection that was kept, if any, and whether it has not what is asked for first.
    fn begin(&self, address: SocketAddr, now: Instant) -> Result<(Option<Line>, bool), AskError> {
        let mut all = self.lock();
        let peer = all.peers.entry(address).or_insert(Peer {
            line: None,
            asked: now,
            lacks: false,
            pause: None,
        });
        if peer.pause.is_some_and(|(_, until)| until > now) {
            return Err(AskError::Pausing);
        }
        peer.asked = now;
        let (line, lacks) = (peer.line.take(), peer.lacks);
        all.kept -= usize::from(line.is_some());
        Ok((line, lacks))
    }

    fn end(&self, address: SocketAddr, line: Option<Line>, answered: bool) {
        let now = Instant::now();
        let mut all = self.lock();
        let line = line.filter(|_| all.kept < self.most_kept);
        let keeps = line.is_some();
        let Some(peer) = all.peers.get_mut(&address) else {
            return;
        };
        peer.line = line;
        peer.pause = (!answered).then(|| {
            let pause = peer
                .pause
                .map_or(FIRST_PAUSE, |(pause, _)| (pause * 2).min(LONGEST_PAUSE));
            (pause, now + pause)
        });
        all.kept += usize::from(keeps);
    }

    /// Closes connections that nobody uses, and forgets whom nobody asks any more.
    pub fn forget_old(&self, now: Instant) {
        let mut all = self.lock();
        all.peers.retain(|_, peer| {
            let since = now.saturating_duration_since(peer.asked);
            if since > IDLE {
                peer.line = None;
            }
            since < OLD
        });
        all.kept = all.peers.values().filter(|p| p.line.is_some()).count();
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keep(answer: Answer, line: Line, often: bool) -> (Answer, Option<Line>) {
    let keeps = answer.keeps && often;
    (answer, keeps.then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    const OFTEN: Manner = Manner {
        path: "/metrics",
        instead: None,
        often: true,
    };

    /// A server that answers so many questions on each connection before it closes it, and counts connections.
    async fn server(answers: usize, status: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let connections = Arc::<AtomicUsize>::default();
        let counted = connections.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                for _ in 0..answers {
                    let mut asked = [0; 512];
                    if stream.read(&mut asked).await.unwrap_or(0) == 0 {
                        break;
                    }
                    let text = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok");
                    if stream.write_all(text.as_bytes()).await.is_err() {
                        break;
                    }
                }
            }
        });
        (address, connections)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn a_connection_is_used_again_and_one_that_was_closed_meanwhile_is_made_anew() {
        let (address, connections) = server(3, "200 OK").await;
        let peers = Peers::default();
        for _ in 0..6 {
            let answer = peers.ask(address, OFTEN, soon()).await.expect("answered");
            assert_eq!(answer.body(), b"ok");
        }
        assert_eq!(connections.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn one_that_is_asked_rarely_holds_no_connection() {
        let (address, connections) = server(9, "200 OK").await;
        let peers = Peers::default();
        let rarely = Manner {
            often: false,
            ..OFTEN
        };
        for _ in 0..2 {
            peers.ask(address, rarely, soon()).await.expect("answered");
        }
        assert!(peers.lock().peers.values().all(|peer| peer.line.is_none()));
        drop(connections);
    }

    #[tokio::test]
    async fn no_more_connections_are_kept_than_may_be() {
        let peers = Peers {
            most_kept: 2,
            ..Peers::default()
        };
        let mut addresses = Vec::new();
        for _ in 0..4 {
            addresses.push(server(9, "200 OK").await.0);
        }
        for _ in 0..2 {
            for address in &addresses {
                peers.ask(*address, OFTEN, soon()).await.expect("answered");
            }
            let all = peers.lock();
            let kept = all.peers.values().filter(|p| p.line.is_some()).count();
            assert_eq!((kept, all.kept), (2, 2));
        }
    }

    #[tokio::test]
    async fn connections_that_nobody_uses_are_closed_and_old_peers_forgotten() {
        let (address, _) = server(9, "200 OK").await;
        let peers = Peers::default();
        peers.ask(address, OFTEN, soon()).await.expect("answered");
        assert!(peers.lock().peers.values().all(|peer| peer.line.is_some()));
        let later = |by: Duration| Instant::now() + by;
        peers.forget_old(later(IDLE + Duration::from_secs(1)));
        assert!(peers.lock().peers.values().all(|peer| peer.line.is_none()));
        peers.forget_old(later(OLD + Duration::from_secs(1)));
        assert!(peers.lock().peers.is_empty());
    }

    #[tokio::test]
    async fn one_that_answers_wrongly_or_not_at_all_is_left_alone_for_a_while() {
        let (wrong, _) = server(9, "500 Oops").await;
        let peers = Peers::default();
        assert!(matches!(
            peers.ask(wrong, OFTEN, soon()).await,
            Err(AskError::Status(500))
        ));
        assert!(matches!(
            peers.ask(wrong, OFTEN, soon()).await,
            Err(AskError::Pausing)
        ));
        assert!(!peers.answers(wrong));
        let (silent, _) = server(0, "").await;
        let late = peers.ask(silent, OFTEN, soon()).await;
        assert!(matches!(late, Err(AskError::Wire(_))), "{late:?}");
    }

    #[tokio::test]
    async fn one_that_has_only_the_long_text_is_asked_for_that_from_then_on() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let noted = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut text = [0; 512];
                while let Ok(bytes @ 1..) = stream.read(&mut text).await {
                    let text = String::from_utf8_lossy(&text[..bytes]).into_owned();
                    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                    let status = if path == "/metrics" {
                        "200 OK"
                    } else {
                        "404 Not Found"
                    };
                    noted.lock().expect("no panic").push(path);
                    let text = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                    let _ = stream.write_all(text.as_bytes()).await;
                }
            }
        });
        let manner = Manner {
            path: "/metrics/load",
            instead: Some("/metrics"),
            often: true,
        };
        let peers = Peers::default();
        for _ in 0..3 {
            peers.ask(address, manner, soon()).await.expect("answered");
        }
        let asked = asked.lock().expect("no panic").clone();
        assert_eq!(asked, ["/metrics/load", "/metrics", "/metrics", "/metrics"]);
    }

    #[tokio::test]
    async fn pauses_grow_up_to_the_longest_and_end_with_an_answer() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let peers = Peers::default();
        let pause = |peers: &Peers| {
            peers.lock().peers[&address]
                .pause
                .map(|(pause, _)| pause.as_secs())
        };
        let begin = |peers: &Peers| {
            let until = peers
                .lock()
                .peers
                .get(&address)
                .and_then(|p| p.pause)
                .map(|p| p.1);
            peers.begin(address, until.unwrap_or_else(Instant::now))
        };
        let mut pauses = Vec::new();
        for _ in 0..7 {
            assert!(begin(&peers).is_ok(), "due again");
            peers.end(address, None, false);
            pauses.push(pause(&peers).expect("it failed"));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        peers.end(address, None, true);
        assert_eq!(pause(&peers), None);
    }
}
