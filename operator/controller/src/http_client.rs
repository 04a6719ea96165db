//! Small plain-HTTP requests to pods and gateways, bounded in time and size.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, header::CONNECTION};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};

/// More than any honest answer; a larger one is refused, not read.
const MAX_BYTES: usize = 16 << 20;
/// A connection holds some 20 KiB of buffers; most pods are asked twice a minute, and cost as much only while they are.
const IDLE: Duration = Duration::from_secs(2);

/// Why there is no answer to use.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Not an address.
    #[error("{0} is no address")]
    Address(String),
    /// Nobody answered in time.
    #[error("no answer from {0} in time")]
    Timeout(String),
    /// The connection or the body failed.
    #[error("failed to read {url}: {reason}")]
    Transport {
        /// Whom was asked.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// An answer other than 200.
    #[error("{url} answered {status}")]
    Status {
        /// Who was asked.
        url: String,
        /// The answer's status.
        status: u16,
    },
}

/// A client that keeps the connections of those who are asked every second.
#[derive(Clone)]
pub struct HttpClient {
    inner: Client<HttpConnector, Empty<Bytes>>,
}

impl Default for HttpClient {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(1)));
        connector.set_nodelay(true);
        let inner = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(1)
            .build(connector);
        Self { inner }
    }
}

impl HttpClient {
    /// The body of a 200, from someone who is asked again soon.
    pub async fn get(&self, url: &str, limit: Duration) -> Result<Bytes, FetchError> {
        self.get_bounded(url, limit, false).await
    }

    /// The same, from someone who is not: the connection ends with the answer.
    pub async fn get_once(&self, url: &str, limit: Duration) -> Result<Bytes, FetchError> {
        self.get_bounded(url, limit, true).await
    }

    async fn get_bounded(
        &self,
        url: &str,
        limit: Duration,
        once: bool,
    ) -> Result<Bytes, FetchError> {
        match tokio::time::timeout(limit, self.get_unbounded(url, once)).await {
            Ok(result) => result,
            Err(_) => Err(FetchError::Timeout(url.to_owned())),
        }
    }

    async fn get_unbounded(&self, url: &str, once: bool) -> Result<Bytes, FetchError> {
        let transport = |reason: String| FetchError::Transport {
            url: url.to_owned(),
            reason,
        };
        let uri: Uri = url
            .parse()
            .map_err(|_| FetchError::Address(url.to_owned()))?;
        let mut request = Request::get(uri);
        if once {
            request = request.header(CONNECTION, "close");
        }
        let request = request
            .body(Empty::new())
            .map_err(|e| transport(e.to_string()))?;
        let response = self
            .inner
            .request(request)
            .await
            .map_err(|e| transport(e.to_string()))?;
        if response.status() != http::StatusCode::OK {
            return Err(FetchError::Status {
                url: url.to_owned(),
                status: response.status().as_u16(),
            });
        }
        let body = Limited::new(response.into_body(), MAX_BYTES)
            .collect()
            .await;
        Ok(body.map_err(|e| transport(e.to_string()))?.to_bytes())
    }
}
