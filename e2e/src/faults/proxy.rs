//! The proxy itself: plain HTTP on the loopback interface, TLS towards the API server.
//!
//! It passes headers on, the client's credentials among them, so whoever uses it has the rights of their own account. It
//! passes answers on as they come; an upgrade (`kubectl exec`) it does not pass.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use base64::Engine as _;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::config::Kubeconfig;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::counts::Counts;
use super::request::{ApiRequest, Verb};
use super::script::{Fault, Match, RuleId, Script, WatchFault};
use crate::cluster::Cluster;

/// The API server itself takes 3 MiB.
const LARGEST_REQUEST: usize = 8 << 20;
const GONE: &str = "too old resource version: said so by the fault proxy";

type AnyError = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, AnyError>;

/// A running proxy. Its methods may be called at any time, also while requests and watches are under way. When it is
/// dropped, its port closes and its connections end.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    doors: mpsc::Sender<Door>,
    acceptor: tokio::task::JoinHandle<()>,
}

/// Whether connections are taken, and whom to tell when it is so.
struct Door {
    open: bool,
    done: oneshot::Sender<()>,
}

struct Shared {
    upstream: reqwest::Client,
    base: String,
    script: Mutex<Script>,
    /// Moves with each change of the script, so that what a rule holds back notices that the rule has gone.
    changes: watch::Sender<u64>,
    counts: Mutex<Counts>,
    watches: Mutex<OpenWatches>,
}

#[derive(Default)]
struct OpenWatches {
    opened: u64,
    open: HashMap<u64, (ApiRequest, watch::Sender<Option<WatchFault>>)>,
}

impl FaultProxy {
    /// A proxy to the API server of `cluster` on a free port of the loopback interface, without any fault yet.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        Self::start_before(&cluster.paths().kubeconfig()).await
    }

    /// The same before the API server that a kubeconfig names.
    pub async fn start_before(kubeconfig: &Path) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let place = kubeconfig
            .clusters
            .into_iter()
            .find_map(|named| named.cluster);
        let place = place.context("the kubeconfig names no cluster")?;
        let authority = place
            .certificate_authority_data
            .context("the cluster's authority is not in its kubeconfig")?;
        let authority = base64::engine::general_purpose::STANDARD.decode(authority)?;
        let server = place.server.context("the cluster has no address")?;
        Self::to(&server, Some(&authority)).await
    }

    /// A proxy to the server at the URL `base`, which is known by the PEM certificate `authority` when it speaks TLS.
    async fn to(base: &str, authority: Option<&[u8]>) -> Result<Self> {
        // One crypto provider a process; a second call finds the first one's, which is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut upstream = reqwest::Client::builder().no_proxy().http1_only();
        if let Some(authority) = authority {
            upstream = upstream.tls_certs_only([reqwest::Certificate::from_pem(authority)?]);
        }
        let shared = Arc::new(Shared {
            upstream: upstream
                .build()
                .context("failed to build the HTTP client")?,
            base: base.trim_end_matches('/').to_owned(),
            script: Mutex::default(),
            changes: watch::Sender::new(0),
            counts: Mutex::default(),
            watches: Mutex::default(),
        });
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .context("no free port on the loopback interface")?;
        let address = listener.local_addr()?;
        let (doors, commands) = mpsc::channel(1);
        Ok(Self {
            address,
            acceptor: tokio::spawn(accept(listener, address, shared.clone(), commands)),
            shared,
            doors,
        })
    }

    /// What a kubeconfig names as the server.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on requests that `matching` covers meet `fault`, unless an earlier rule decides.
    pub fn add(&self, matching: Match, fault: Fault) -> RuleId {
        self.change(|script| script.add(matching, fault, None))
    }

    /// As [`Self::add`], for the next `times` requests.
    pub fn add_times(&self, times: u32, matching: Match, fault: Fault) -> RuleId {
        self.change(|script| script.add(matching, fault, Some(times)))
    }

    /// Takes a rule away; how many requests it decided.
    pub fn remove(&self, rule: RuleId) -> u64 {
        self.change(|script| script.remove(rule))
    }

    /// How many requests a rule has decided so far.
    pub fn hits(&self, rule: RuleId) -> u64 {
        lock(&self.shared.script).hits(rule)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        let result = change(&mut lock(&self.shared.script));
        self.shared.changes.send_modify(|version| *version += 1);
        result
    }

    /// Does `fault` to the watches that are open now and that `matching` covers; how many those are. Ones opened later
    /// are as they should be.
    pub fn strike(&self, matching: &Match, fault: WatchFault) -> usize {
        self.tell_watches(matching, Some(fault))
    }

    /// Frozen watches go on.
    pub fn thaw(&self) {
        self.tell_watches(&Match::any(), None);
    }

    fn tell_watches(&self, matching: &Match, fault: Option<WatchFault>) -> usize {
        let watches = lock(&self.shared.watches);
        let mut told = 0;
        for (request, faults) in watches.open.values() {
            if matching.covers(request) {
                faults.send_replace(fault);
                told += 1;
            }
        }
        told
    }

    /// How many watches that `matching` covers are open.
    pub fn open_watches(&self, matching: &Match) -> usize {
        let watches = lock(&self.shared.watches);
        watches
            .open
            .values()
            .filter(|(request, _)| matching.covers(request))
            .count()
    }

    /// Ends every connection and refuses new ones, as a machine without an API server does.
    pub async fn refuse_connections(&self) {
        self.set_door(false).await;
    }

    /// Takes connections again.
    pub async fn accept_connections(&self) {
        self.set_door(true).await;
    }

    async fn set_door(&self, open: bool) {
        let (done, is_done) = oneshot::channel();
        if self.doors.send(Door { open, done }).await.is_ok() {
            let _ = is_done.await;
        }
    }

    /// Connections stay and are taken, and nothing is answered any more.
    pub fn fall_silent(&self) {
        self.add(Match::any(), Fault::Silence);
        self.strike(&Match::any(), WatchFault::Freeze);
    }

    /// Ends every fault: no rule stands, frozen watches go on, connections are taken.
    pub async fn heal(&self) {
        self.change(Script::clear);
        self.thaw();
        self.accept_connections().await;
    }

    /// Requests that have arrived so far, faults or not.
    pub fn counts(&self) -> Counts {
        lock(&self.shared.counts).clone()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes connections while the door is open. Connections live in this task's set, so they end with it.
async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    mut commands: mpsc::Receiver<Door>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(door) = commands.recv() => {
                if !door.open {
                    listener = None;
                    connections.shutdown().await;
                } else if listener.is_none() {
                    listener = rebind(address).await;
                }
                let _ = door.done.send(());
            }
            accepted = next_connection(listener.as_ref()) => {
                // A connection that ended before it was taken is nobody's loss.
                if let Ok(connection) = accepted {
                    connections.spawn(serve(connection, shared.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn next_connection(listener: Option<&TcpListener>) -> std::io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(connection, _)| connection),
        None => std::future::pending().await,
    }
}

/// The port is ours by its recent use: only another program's explicit wish for it could be in the way.
async fn rebind(address: SocketAddr) -> Option<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            eprintln!("the fault proxy cannot listen on {address} again: {error}");
            None
        }
    }
}

async fn serve(connection: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request| answer(request, shared.clone()));
    // An error here is a connection that one of both sides, or a fault, has ended.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(connection), service)
        .await;
}

/// An error ends the connection without an answer.
async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Body>, AnyError> {
    let about = ApiRequest::parse(
        request.method(),
        request.uri().path(),
        request.uri().query().unwrap_or_default(),
    );
    let agent = request.headers().get(header::USER_AGENT);
    let agent = agent
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    lock(&shared.counts).record(about.clone(), agent);
    let decided = lock(&shared.script).decide(&about);
    match decided.map(|(_, fault)| fault) {
        None => forward(request, &about, &shared, None).await,
        Some(Fault::Answer {
            status,
            retry_after,
        }) => refusal(status, retry_after),
        Some(Fault::Delay(delay)) => {
            tokio::time::sleep(delay).await;
            forward(request, &about, &shared, None).await
        }
        Some(Fault::Silence) => {
            until_rule_is_gone(&shared, decided.map(|(rule, _)| rule)).await;
            Err("silent until the rule was taken away".into())
        }
        Some(Fault::HangUp) => Err("hung up".into()),
        Some(Fault::LoseAnswer) => {
            forward(request, &about, &shared, None).await?;
            Err("the answer was lost".into())
        }
        Some(Fault::Watch(fault)) => forward(request, &about, &shared, Some(fault)).await,
    }
}

async fn until_rule_is_gone(shared: &Shared, rule: Option<RuleId>) {
    let mut changes = shared.changes.subscribe();
    while rule.is_some_and(|rule| lock(&shared.script).stands(rule)) {
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// A refusal as the API server words it.
fn refusal(status: u16, retry_after: Option<u32>) -> Result<Response<Body>, AnyError> {
    let reason = match status {
        409 => "Conflict",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        _ => "Unknown",
    };
    let text = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("{reason}, said by the fault proxy"), "reason": reason, "code": status,
        "details": {"retryAfterSeconds": retry_after},
    });
    let mut response = Response::builder()
        .status(StatusCode::from_u16(status)?)
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = retry_after {
        response = response.header(header::RETRY_AFTER, seconds);
    }
    Ok(response.body(whole(text.to_string()))?)
}

fn whole(text: String) -> Body {
    Full::new(Bytes::from(text))
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

async fn forward(
    request: Request<Incoming>,
    about: &ApiRequest,
    shared: &Arc<Shared>,
    fault: Option<WatchFault>,
) -> Result<Response<Body>, AnyError> {
    let (parts, body) = request.into_parts();
    let body = Limited::new(body, LARGEST_REQUEST)
        .collect()
        .await?
        .to_bytes();
    let target = parts
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let sent = shared
        .upstream
        .request(parts.method, format!("{}{target}", shared.base))
        .headers(end_to_end(&parts.headers))
        .body(body)
        .send();
    let answer = sent.await?;
    let mut response = Response::new(());
    *response.status_mut() = answer.status();
    *response.headers_mut() = end_to_end(answer.headers());
    let is_watch = about.verb == Verb::Watch && answer.status().is_success();
    let body = if is_watch {
        watched(answer, about, shared, fault)
    } else {
        let frames = answer.bytes_stream().map(|part| Ok(Frame::data(part?)));
        BodyExt::boxed_unsync(StreamBody::new(frames))
    };
    Ok(response.map(|()| body))
}

/// Headers without those of one connection. The length goes too: each side's own library tells it.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    const OF_A_CONNECTION: [HeaderName; 6] = [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::HOST,
        header::CONTENT_LENGTH,
        header::TE,
    ];
    let mut kept = headers.clone();
    for name in OF_A_CONNECTION {
        kept.remove(name);
    }
    kept
}

/// A watch that is open, as long as its body is.
struct OpenWatch {
    id: u64,
    shared: Arc<Shared>,
    upstream: Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>,
    faults: watch::Receiver<Option<WatchFault>>,
    ended: bool,
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        lock(&self.shared.watches).open.remove(&self.id);
    }
}

fn watched(
    answer: reqwest::Response,
    about: &ApiRequest,
    shared: &Arc<Shared>,
    fault: Option<WatchFault>,
) -> Body {
    let (sender, faults) = watch::channel(fault);
    let mut watches = lock(&shared.watches);
    watches.opened += 1;
    let id = watches.opened;
    watches.open.insert(id, (about.clone(), sender));
    drop(watches);
    let open = OpenWatch {
        id,
        shared: shared.clone(),
        upstream: Box::pin(answer.bytes_stream()),
        faults,
        ended: false,
    };
    let frames = futures::stream::unfold(open, |mut open| async {
        Some((next_part(&mut open).await?.map(Frame::data), open))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

/// The next part of a watch, or what a fault makes of it; `None` when it ends in order.
async fn next_part(open: &mut OpenWatch) -> Option<Result<Bytes, AnyError>> {
    loop {
        if open.ended {
            return None;
        }
        let fault = *open.faults.borrow_and_update();
        match fault {
            Some(WatchFault::Close) => return None,
            Some(WatchFault::Cut) => return Some(Err("cut".into())),
            Some(WatchFault::Gone) => {
                open.ended = true;
                return Some(Ok(gone()));
            }
            // Whoever sends faults lives in `shared`, which lives as long as this.
            Some(WatchFault::Freeze) => open.faults.changed().await.ok()?,
            None => tokio::select! {
                part = open.upstream.next() => return part.map(|part| part.map_err(Into::into)),
                changed = open.faults.changed() => changed.ok()?,
            },
        }
    }
}

fn gone() -> Bytes {
    let event = json!({"type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": GONE, "reason": "Expired", "code": 410,
    }});
    Bytes::from(format!("{event}\n"))
}

#[cfg(test)]
#[path = "proxy/tests.rs"]
mod tests;
