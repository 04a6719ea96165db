//! Serves the APIs by TLS, with whatever certificates and trust count at the moment.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, service::service_fn};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, watch},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tower::ServiceExt;

use super::{
    api::Caller,
    authentication::{FrontProxy, common_name},
    listener,
};

/// API servers keep a connection or two each.
const CONNECTIONS: usize = 128;
const REQUESTS: u32 = 256;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// One without a certificate is told that it is nobody, and let go.
const STRANGER: Duration = Duration::from_secs(5);

/// What a connection is met with.
pub struct Terms {
    /// Our certificate, and whose we take.
    pub tls: Arc<ServerConfig>,
    /// Whose word counts.
    pub proxy: Arc<FrontProxy>,
}

/// Serves until the process ends. A change of terms ends the connections that were made under others.
pub async fn serve(listener: TcpListener, terms: watch::Receiver<Arc<Terms>>, router: Router) {
    let serve = |stream, place| connection(stream, place, terms.clone(), router.clone());
    listener::accept(listener, CONNECTIONS, serve).await;
}

async fn connection(
    stream: TcpStream,
    place: OwnedSemaphorePermit,
    mut terms: watch::Receiver<Arc<Terms>>,
    router: Router,
) {
    let now = terms.borrow_and_update().clone();
    let accepted = timeout(HANDSHAKE, TlsAcceptor::from(now.tls.clone()).accept(stream)).await;
    let Ok(Ok(stream)) = accepted else {
        // Scanners, probes and clients with foreign certificates: no business of ours.
        return;
    };
    let caller = Caller {
        proxy: now.proxy.clone(),
        common_name: peer(&stream),
    };
    let is_stranger = caller.common_name.is_none();
    let served = converse(stream, caller, terms, router);
    if is_stranger {
        let _ = timeout(STRANGER, served).await;
    } else {
        served.await;
    }
    drop(place);
}

async fn converse(
    stream: TlsStream<TcpStream>,
    caller: Caller,
    mut terms: watch::Receiver<Arc<Terms>>,
    router: Router,
) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        router.clone().oneshot(request.map(Body::new))
    });
    let http = listener::http(REQUESTS);
    let connection = http.serve_connection(listener::io(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = terms.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

fn peer(stream: &TlsStream<TcpStream>) -> Option<String> {
    let chain = stream.get_ref().1.peer_certificates()?;
    common_name(chain.first()?)
}
