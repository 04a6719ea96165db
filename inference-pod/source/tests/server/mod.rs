//! An HTTP server that does as scripted, down to breaking off in the middle.

// Each test binary uses its own part of this.
#![allow(dead_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagoda_source::{FetchRequest, ModelUri, PlainHttp, RetryPolicy};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// A directory, and a request into it that retries fast.
pub fn request(uri: &str) -> (TempDir, FetchRequest) {
    let directory = tempfile::tempdir().unwrap();
    let uri = ModelUri::parse(uri, PlainHttp::LoopbackOnly).unwrap();
    let retry = RetryPolicy {
        attempts: 4,
        first_delay: Duration::from_millis(1),
        longest_delay: Duration::from_millis(4),
        stall_timeout: Duration::from_secs(20),
        ..RetryPolicy::default()
    };
    let request = FetchRequest {
        retry,
        ..FetchRequest::new(uri, directory.path().join("model.gguf"))
    };
    (directory, request)
}

/// What a request asked for.
#[derive(Debug, Clone)]
pub struct Head {
    pub path: String,
    pub query: String,
    pub range: Option<u64>,
    /// One behind the last byte, where the range has an end.
    pub end: Option<u64>,
    pub if_range: Option<String>,
    /// All headers, names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// What to answer.
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Length to announce; `None` sends chunks.
    announced: Option<usize>,
    /// Bytes to send before breaking off or falling silent.
    sent: usize,
    /// Chunks end without the last one.
    is_cut: bool,
    stalls: bool,
    /// Pause before the answer.
    delay: Duration,
}

impl Reply {
    fn new(status: u16, body: &[u8]) -> Self {
        let (announced, sent) = (Some(body.len()), body.len());
        Self {
            status,
            headers: Vec::new(),
            body: body.to_vec(),
            announced,
            sent,
            is_cut: false,
            stalls: false,
            delay: Duration::ZERO,
        }
    }

    /// Comes only after a while.
    pub fn late(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    pub fn json(body: &serde_json::Value) -> Self {
        Self::new(200, body.to_string().as_bytes())
    }

    pub fn ok(body: &[u8]) -> Self {
        Self::new(200, body)
    }

    pub fn status(status: u16) -> Self {
        Self::new(status, b"")
    }

    /// An error with something to read.
    pub fn page(status: u16, text: &str) -> Self {
        Self::new(status, text.as_bytes())
    }

    pub fn redirect(to: &str) -> Self {
        Self::new(302, b"").header("Location", to)
    }

    /// The rest of `whole` that is asked for, or 416.
    pub fn range(head: &Head, whole: &[u8]) -> Self {
        let total = whole.len();
        match head.range {
            None => Self::ok(whole),
            Some(start) if start as usize >= total => {
                Self::new(416, b"").header("Content-Range", &format!("bytes */{total}"))
            }
            Some(start) => {
                let end = head.end.map_or(total, |end| (end as usize).min(total));
                Self::new(206, &whole[start as usize..end]).header(
                    "Content-Range",
                    &format!("bytes {start}-{}/{total}", end - 1),
                )
            }
        }
    }

    /// No answer at all.
    pub fn silence() -> Self {
        Self {
            stalls: true,
            announced: Some(0),
            ..Self::new(0, b"")
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Announces a body of this length.
    pub fn total(mut self, bytes: usize) -> Self {
        self.announced = Some(bytes);
        self
    }

    /// Breaks off after this many bytes of the body.
    pub fn cut(mut self, bytes: usize) -> Self {
        self.sent = bytes.min(self.body.len());
        self
    }

    /// Falls silent after this many bytes of the body.
    pub fn stall(self, bytes: usize) -> Self {
        Self {
            stalls: true,
            ..self.cut(bytes)
        }
    }

    pub fn chunked(mut self) -> Self {
        self.announced = None;
        self
    }

    /// All bytes in chunks, and then no end.
    pub fn chunked_and_cut(self) -> Self {
        Self {
            is_cut: true,
            ..self.chunked()
        }
    }

    async fn send(&self, stream: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        if self.status > 0 {
            let length = match self.announced {
                Some(bytes) => format!("Content-Length: {bytes}"),
                None => "Transfer-Encoding: chunked".into(),
            };
            let mut lines = vec![
                format!("HTTP/1.1 {} Scripted", self.status),
                "Connection: close".into(),
                length,
            ];
            lines.extend(
                self.headers
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}")),
            );
            let head = lines.join("\r\n") + "\r\n\r\n";
            stream.write_all(head.as_bytes()).await?;
            self.send_body(stream).await?;
            stream.flush().await?;
        }
        if self.stalls {
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        stream.shutdown().await
    }

    async fn send_body(&self, stream: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        if self.announced.is_some() {
            return stream.write_all(&self.body[..self.sent]).await;
        }
        for chunk in self.body[..self.sent].chunks(10_000) {
            stream
                .write_all(format!("{:x}\r\n", chunk.len()).as_bytes())
                .await?;
            stream.write_all(chunk).await?;
            stream.write_all(b"\r\n").await?;
        }
        if self.is_cut {
            Ok(())
        } else {
            stream.write_all(b"0\r\n\r\n").await
        }
    }
}

/// Requests that wait for an answer. One whose answer is under way is not counted: its client may have read or left it
/// and asked again before the server can know.
#[derive(Default)]
struct Unanswered {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// The server; it ends when dropped.
pub struct Server {
    address: std::net::SocketAddr,
    certificate: Option<String>,
    requests: Arc<Mutex<Vec<Head>>>,
    unanswered: Arc<Unanswered>,
    task: JoinHandle<()>,
}

type Script = Arc<dyn Fn(usize, &Head) -> Reply + Send + Sync>;

impl Server {
    pub async fn start(script: impl Fn(usize, &Head) -> Reply + Send + Sync + 'static) -> Self {
        Self::run(Arc::new(script), None, None).await
    }

    pub async fn start_tls(script: impl Fn(usize, &Head) -> Reply + Send + Sync + 'static) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()])
            .unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        Self::run(
            Arc::new(script),
            Some(TlsAcceptor::from(Arc::new(config))),
            Some(made.cert.pem()),
        )
        .await
    }

    async fn run(script: Script, tls: Option<TlsAcceptor>, certificate: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let unanswered = Arc::new(Unanswered::default());
        let counted = unanswered.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (script, seen, tls) = (script.clone(), seen.clone(), tls.clone());
                let counted = counted.clone();
                tokio::spawn(async move {
                    match tls {
                        None => answer(stream, &script, &seen, &counted).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                answer(stream, &script, &seen, &counted).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            address,
            certificate,
            requests,
            unanswered,
            task,
        }
    }

    pub fn uri(&self, path: &str) -> String {
        let scheme = if self.certificate.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}{path}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The most requests at a time that waited for an answer.
    pub fn most_unanswered(&self) -> usize {
        self.unanswered.most.load(Ordering::SeqCst)
    }

    pub fn certificate_pem(&self) -> &str {
        self.certificate.as_deref().unwrap()
    }

    pub fn requests(&self) -> Vec<Head> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    script: &Script,
    seen: &Mutex<Vec<Head>>,
    unanswered: &Unanswered,
) {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else {
            return;
        };
        text.push(byte);
    }
    let head = parse(&String::from_utf8(text).unwrap());
    let reply = {
        let mut seen = seen.lock().unwrap();
        seen.push(head.clone());
        script(seen.len() - 1, &head)
    };
    let now = unanswered.now.fetch_add(1, Ordering::SeqCst) + 1;
    unanswered.most.fetch_max(now, Ordering::SeqCst);
    tokio::time::sleep(reply.delay).await;
    unanswered.now.fetch_sub(1, Ordering::SeqCst);
    // The client may leave in the middle; that is its right.
    let _ = reply.send(&mut stream).await;
}

fn parse(text: &str) -> Head {
    let header = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        })
    };
    let target = text.split(' ').nth(1).unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let range = header("range").map(|range| {
        let (start, end) = range["bytes=".len()..].split_once('-').unwrap();
        let end = (!end.is_empty()).then(|| end.parse::<u64>().unwrap() + 1);
        (start.parse().unwrap(), end)
    });
    let headers = text.lines().skip(1).filter_map(|line| {
        let (key, value) = line.split_once(": ")?;
        Some((key.to_ascii_lowercase(), value.to_owned()))
    });
    Head {
        path: path.to_owned(),
        query: query.to_owned(),
        range: range.map(|(start, _)| start),
        end: range.and_then(|(_, end)| end),
        if_range: header("if-range"),
        headers: headers.collect(),
    }
}
