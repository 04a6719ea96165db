//! A Prometheus on this machine that answers as a test says.

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::prometheus::config::{Credentials, Server};

/// What was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: Method,
    pub path: String,
    pub authorization: Option<String>,
    pub query: String,
    pub at: Option<f64>,
}

/// What to answer.
pub enum Reply {
    /// A vector with one series, reckoned at that time.
    Figure { value: String, at: f64 },
    /// The data of a success.
    Data(Value),
    /// Anything.
    Raw(StatusCode, Vec<(header::HeaderName, String)>, Body),
    /// Nothing, for ever.
    Silence,
}

impl Reply {
    pub fn json(status: u16, value: &Value) -> Self {
        let status = StatusCode::from_u16(status).expect("a status");
        Self::Raw(status, vec![], Body::from(value.to_string()))
    }
}

type Script = Arc<dyn Fn(&Asked) -> Reply + Send + Sync>;

#[derive(Clone)]
struct Shared {
    script: Script,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// The server; it ends with the test's runtime.
pub struct Scripted {
    pub address: SocketAddr,
    shared: Shared,
}

impl Scripted {
    pub async fn start(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let (listener, scripted) = Self::bind(script).await;
        let router = scripted.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
        scripted
    }

    /// The same over TLS, with a certificate of the authority for `localhost`.
    pub async fn start_tls(
        authority: &Authority,
        script: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let (listener, scripted) = Self::bind(script).await;
        let router = scripted.router();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(authority.server()));
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let (acceptor, router) = (acceptor.clone(), router.clone());
                tokio::spawn(async move {
                    let stream = acceptor.accept(stream).await?;
                    let io = hyper_util::rt::TokioIo::new(stream);
                    let service = hyper_util::service::TowerToHyperService::new(router);
                    let serving = hyper::server::conn::http1::Builder::new();
                    let served = serving.serve_connection(io, service).await;
                    served.map_err(std::io::Error::other)
                });
            }
        });
        scripted
    }

    async fn bind(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> (TcpListener, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Shared {
            script: Arc::new(script),
            asked: Arc::default(),
        };
        (listener, Self { address, shared })
    }

    fn router(&self) -> Router {
        Router::new()
            .fallback(answer)
            .with_state(self.shared.clone())
    }

    /// As the operator would be told of it.
    pub fn server(&self) -> Server {
        server(&format!("http://{}", self.address))
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }
}

/// A server without credentials that is waited for a second.
pub fn server(url: &str) -> Server {
    Server {
        url: url.parse().expect("an address"),
        ca_file: None,
        credentials: Credentials::None,
        timeout: Duration::from_secs(1),
        allowed_namespaces: [].into(),
    }
}

async fn answer(
    State(shared): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let form = if method == Method::POST {
        String::from_utf8_lossy(&body).into_owned()
    } else {
        uri.query().unwrap_or_default().to_owned()
    };
    let pairs = reqwest::Url::parse(&format!("http://form/?{form}")).expect("a form");
    let find = |name: &str| {
        let mut pairs = pairs.query_pairs();
        pairs.find(|(n, _)| n == name).map(|(_, v)| v.into_owned())
    };
    let authorization = headers.get(header::AUTHORIZATION);
    let asked = Asked {
        method,
        path: uri.path().to_owned(),
        authorization: authorization.and_then(|v| Some(v.to_str().ok()?.to_owned())),
        query: find("query").unwrap_or_default(),
        at: find("time").and_then(|time| time.parse().ok()),
    };
    shared.asked.lock().unwrap().push(asked.clone());
    match (shared.script)(&asked) {
        Reply::Figure { value, at } => success(
            &json!({"resultType": "vector", "result": [{"metric": {"job": "x"}, "value": [at, value]}]}),
        ),
        Reply::Data(data) => success(&data),
        Reply::Raw(status, headers, body) => {
            let mut response = (status, body).into_response();
            for (name, value) in headers {
                response
                    .headers_mut()
                    .insert(name, value.parse().expect("a value"));
            }
            response
        }
        Reply::Silence => std::future::pending().await,
    }
}

fn success(data: &Value) -> Response {
    json!({"status": "success", "data": data})
        .to_string()
        .into_response()
}

/// An authority of the test's.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).expect("a certificate");
        Self {
            pem: certificate.pem(),
            issuer: Issuer::new(parameters, key),
        }
    }

    fn server(&self) -> rustls::ServerConfig {
        let key = KeyPair::generate().expect("a key");
        let parameters = CertificateParams::new(vec!["localhost".into()]).expect("a name");
        let certificate = parameters
            .signed_by(&key, &self.issuer)
            .expect("a certificate");
        let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a pair")
    }
}

/// A folder that goes with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pagoda-prometheus-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// As the kubelet brings a new version of a Secret: the name leads to another file at once.
    pub fn replace(&self, name: &str, text: &str) {
        let next = self.write("next", text);
        std::fs::rename(next, self.0.join(name)).expect("a rename");
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Fails instead of hanging.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what)
        .await
        .expect("it hangs")
}
