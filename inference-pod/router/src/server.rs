//! The clients' side: accepts connections within bounds, serves HTTP/1.1 and HTTP/2 on them, and ends
//! without cutting a response.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutWriter;

use crate::proxy::Gateway;

/// Bounds on clients.
#[derive(Clone, Copy, Debug)]
pub struct ServerConfig {
    /// The most connections at once; further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// The longest time for a request's head, idle time between requests included.
    pub head_timeout: Duration,
    /// A client that takes none of its response for so long is disconnected.
    pub write_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            head_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_mins(1),
        }
    }
}

const MAX_HEADERS: usize = 100;
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_STREAMS_PER_CONNECTION: u32 = 250;
const PING_EVERY: Duration = Duration::from_secs(20);
/// When the process is out of file descriptors, trying again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until `stop` is ready, then returns what waits for the open ones.
pub async fn serve(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    config: ServerConfig,
    stop: impl Future<Output = ()>,
) -> GracefulShutdown {
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(config.max_connections));
    let builder = Arc::new(http_builder(config));
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = &mut stop => return connections,
        };
        let Some((stream, peer, place)) = accepted else {
            continue;
        };
        let guard = OpenConnection::new(&gateway, place);
        let connection = Connection {
            gateway: Arc::clone(&gateway),
            builder: Arc::clone(&builder),
            watcher: connections.watcher(),
            peer: peer.ip(),
            config,
        };
        tokio::spawn(async move {
            connection.run(stream).await;
            drop(guard);
        });
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, place)),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

fn http_builder(config: ServerConfig) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.head_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY);
    builder
}

/// Counts an open connection and keeps its place until dropped.
struct OpenConnection {
    gauge: Gauge,
    _place: OwnedSemaphorePermit,
}

impl OpenConnection {
    fn new(gateway: &Gateway, place: OwnedSemaphorePermit) -> Self {
        let gauge = gateway.metrics.open_connections.clone();
        gauge.inc();
        Self {
            gauge,
            _place: place,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

struct Connection {
    gateway: Arc<Gateway>,
    builder: Arc<auto::Builder<TokioExecutor>>,
    watcher: Watcher,
    peer: IpAddr,
    config: ServerConfig,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        prepare(&stream);
        let mut io = TimeoutWriter::new(stream);
        io.set_timeout(Some(self.config.write_timeout));
        let (gateway, peer) = (self.gateway, self.peer);
        let asked = Arc::new(AtomicBool::new(false));
        let service = service_fn({
            let asked = Arc::clone(&asked);
            move |request| {
                asked.store(true, Ordering::Relaxed);
                Arc::clone(&gateway).handle(peer, request)
            }
        });
        let serving = self
            .builder
            .serve_connection(TokioIo::new(Box::pin(io)), service)
            .into_owned();
        let mut serving = pin!(self.watcher.watch(serving));
        // Until it knows which version is spoken, hyper waits without a limit of its own.
        let first = tokio::time::sleep(self.config.head_timeout);
        let ended = tokio::select! {
            ended = &mut serving => ended,
            () = first => {
                if !asked.load(Ordering::Relaxed) {
                    return;
                }
                serving.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "a connection ended early");
        }
    }
}

/// Small writes go out at once, and a client that has vanished is noticed.
fn prepare(stream: &TcpStream) {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10));
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive);
}
