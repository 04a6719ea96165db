//! Takes connections, and bounds what strangers can make of them: how many there are, how long they take, how much they say.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

/// Bytes of a request's head.
const HEAD: u32 = 32 << 10;
/// Within which a head must have come; a connection that asks nothing ends after it as well.
const HEAD_LIMIT: Duration = Duration::from_mins(1);
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(20);
/// After a failure to accept, such as when no descriptor is left.
const PAUSE: Duration = Duration::from_millis(100);

/// Opens a port. Fails, naming it, when it is in use. Of all addresses, those of the family in which others reach us.
pub async fn bind(
    listen: SocketAddr,
    reached: Option<IpAddr>,
) -> Result<TcpListener, std::io::Error> {
    let mut address = listen;
    if listen.ip() == Ipv4Addr::UNSPECIFIED && reached.is_some_and(|reached| reached.is_ipv6()) {
        address.set_ip(Ipv6Addr::UNSPECIFIED.into());
    }
    TcpListener::bind(address).await.map_err(|error| {
        std::io::Error::new(
            error.kind(),
            format!("failed to listen on {address}: {error}"),
        )
    })
}

/// Hands each connection to `serve`, at most so many at a time; further ones wait in the kernel's queue. Never ends.
pub async fn accept<F, S>(listener: TcpListener, most: usize, serve: S)
where
    F: Future<Output = ()> + Send + 'static,
    S: Fn(TcpStream, OwnedSemaphorePermit) -> F,
{
    let places = Arc::new(Semaphore::new(most));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                stream.set_nodelay(true).ok();
                tokio::spawn(serve(stream, place));
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                sleep(PAUSE).await;
            }
        }
    }
}

/// HTTP/1.1 and HTTP/2 with bounds; at most so many requests of a connection at a time.
pub fn http(most_requests: u32) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_LIMIT)
        .max_header_list_size(HEAD)
        .max_concurrent_streams(most_requests);
    builder
}

/// A stream as hyper takes it.
pub fn io<T>(stream: T) -> TokioIo<T> {
    TokioIo::new(stream)
}
