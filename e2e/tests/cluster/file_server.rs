//! An HTTPS server of files for the pods to download from, with a certificate authority of its own. It understands ranges,
//! and can cut a download once.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const PIECE_BYTES: usize = 64 << 10;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// One file to serve.
#[derive(Clone)]
pub struct Served {
    /// Its content.
    pub bytes: Bytes,
    /// The first download ends with a broken connection after so many bytes.
    cut_first_after: Option<usize>,
    /// Bytes that went out.
    sent: Arc<AtomicUsize>,
}

impl Served {
    /// A file that is served without mishap.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self {
            bytes: bytes.into(),
            cut_first_after: None,
            sent: Arc::default(),
        }
    }

    /// The same with a first download that ends with a broken connection after so many bytes.
    pub fn cut_first_after(self, bytes: usize) -> Self {
        Self {
            cut_first_after: Some(bytes),
            ..self
        }
    }
}

/// A running server; it ends with the test's runtime.
pub struct FileServer {
    /// `https://IP:PORT`.
    pub url: String,
    /// The authority's certificate, PEM.
    pub authority: String,
    state: Arc<State>,
}

struct State {
    files: BTreeMap<String, Served>,
    /// Each request so far.
    requests: Mutex<Vec<Asked>>,
}

/// One request.
#[derive(Clone)]
struct Asked {
    path: String,
    range: Option<String>,
    authorization: Option<String>,
}

impl FileServer {
    /// Serves `files` (by name, without a slash) at an address of this machine that pods can reach.
    pub async fn start(
        address: IpAddr,
        files: impl IntoIterator<Item = (&'static str, Served)>,
    ) -> Result<Self> {
        let (authority, acceptor) = certificates(address)?;
        let listener = TcpListener::bind(SocketAddr::new(address, 0))
            .await
            .with_context(|| format!("failed to listen on {address}"))?;
        let url = format!("https://{}", listener.local_addr()?);
        let files = files
            .into_iter()
            .map(|(name, file)| (format!("/{name}"), file))
            .collect();
        let state = Arc::new(State {
            files,
            requests: Mutex::default(),
        });
        tokio::spawn(accept(listener, acceptor, state.clone()));
        Ok(Self {
            url,
            authority,
            state,
        })
    }

    /// The `Range` headers with which `name` was asked for, in order.
    pub fn ranges(&self, name: &str) -> Vec<Option<String>> {
        let requests = self.state.requests.lock().expect("no holder panics");
        requests
            .iter()
            .filter(|asked| asked.path.strip_prefix('/') == Some(name))
            .map(|asked| asked.range.clone())
            .collect()
    }

    /// Bytes of `name` that went out, over all requests: a client may ask for more and hang up.
    pub fn sent_bytes(&self, name: &str) -> usize {
        let file = self.state.files.get(&format!("/{name}"));
        file.map_or(0, |file| file.sent.load(Ordering::Relaxed))
    }

    /// The `Authorization` headers with which `name` was asked for, in order.
    pub fn authorizations(&self, name: &str) -> Vec<Option<String>> {
        let requests = self.state.requests.lock().expect("no holder panics");
        requests
            .iter()
            .filter(|asked| asked.path.strip_prefix('/') == Some(name))
            .map(|asked| asked.authorization.clone())
            .collect()
    }
}

fn certificates(address: IpAddr) -> Result<(String, TlsAcceptor)> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);

    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(Vec::new())?;
    leaf.subject_alt_names = vec![SanType::IpAddress(address)];
    let certificate = leaf.signed_by(&key, &issuer)?;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    Ok((
        authority_certificate.pem(),
        TlsAcceptor::from(Arc::new(config)),
    ))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, state: Arc<State>) {
    while let Ok((socket, _)) = listener.accept().await {
        let (acceptor, state) = (acceptor.clone(), state.clone());
        tokio::spawn(async move {
            let Ok(tls) = acceptor.accept(socket).await else {
                return;
            };
            let answer = service_fn(move |request| {
                let response = state.answer(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            // A client that goes away is no fault of the test.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(tls), answer)
                .await;
        });
    }
}

impl State {
    fn answer<B>(&self, request: &Request<B>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let text = |name| {
            let value = request.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let asked = Asked {
            path: path.clone(),
            range: text(header::RANGE),
            authorization: text(header::AUTHORIZATION),
        };
        let mut requests = self.requests.lock().expect("no holder panics");
        let first = !requests.iter().any(|earlier| earlier.path == path);
        requests.push(asked.clone());
        drop(requests);
        let Some(file) = self.files.get(&path) else {
            return plain(StatusCode::NOT_FOUND, Bytes::new());
        };
        let cut = file.cut_first_after.filter(|_| first);
        part(file, asked.range.as_deref().and_then(parse_range), cut)
    }
}

/// `bytes=N-` or `bytes=N-M`: the forms that a resumed or a parallel download uses, as the first byte and one past the last.
fn parse_range(range: &str) -> Option<(usize, Option<usize>)> {
    let (start, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let end = last.parse::<usize>().ok().map(|last| last + 1);
    Some((start.parse().ok()?, end))
}

fn part(
    file: &Served,
    range: Option<(usize, Option<usize>)>,
    cut: Option<usize>,
) -> Response<Body> {
    let total = file.bytes.len();
    let (start, end) = range.unwrap_or((0, None));
    let end = end.unwrap_or(total).min(total);
    if start >= end && range.is_some() {
        return plain(StatusCode::RANGE_NOT_SATISFIABLE, Bytes::new());
    }
    let wanted = file.bytes.slice(start..end);
    let mut response = match cut {
        Some(after) => broken(wanted.slice(..after.min(wanted.len()))),
        None => counted(wanted, file.sent.clone()),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, (end - start).into());
    headers.insert(
        header::ACCEPT_RANGES,
        header::HeaderValue::from_static("bytes"),
    );
    headers.insert(header::ETAG, header::HeaderValue::from_static("\"v1\""));
    if range.is_some() {
        let of = format!("bytes {start}-{}/{total}", end - 1);
        headers.insert(
            header::CONTENT_RANGE,
            of.parse().expect("digits are a header value"),
        );
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

fn plain(status: StatusCode, bytes: Bytes) -> Response<Body> {
    let body = http_body_util::Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

/// Goes out piece by piece, each counted as it is taken.
fn counted(bytes: Bytes, sent: Arc<AtomicUsize>) -> Response<Body> {
    let starts = (0..bytes.len()).step_by(PIECE_BYTES);
    let pieces = starts.map(move |start| {
        let piece = bytes.slice(start..bytes.len().min(start + PIECE_BYTES));
        sent.fetch_add(piece.len(), Ordering::Relaxed);
        Ok(Frame::data(piece))
    });
    Response::new(BodyExt::boxed_unsync(StreamBody::new(stream::iter(pieces))))
}

fn broken(bytes: Bytes) -> Response<Body> {
    let fault = std::io::Error::other("cut by the test");
    let frames = stream::iter([Ok(Frame::data(bytes)), Err(fault)]);
    Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)))
}
