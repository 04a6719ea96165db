//! One attempt at a download over HTTP.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::{
    CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, LAST_MODIFIED, RANGE, RETRY_AFTER,
};
use reqwest::{Client, Response, StatusCode, Url, redirect};

use crate::disk;
use crate::error::FetchError;
use crate::fetch::FetchRequest;
use crate::partial::{Partial, Validator};
use crate::retry::RetryPolicy;
use crate::tls;
use crate::uri::is_loopback;

const REDIRECT_LIMIT: usize = 10;

/// Why an attempt did not finish.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Trying again may help.
    Transient {
        message: String,
        /// The pause the server asks for.
        wish: Option<Duration>,
    },
    /// It will not.
    Fatal(FetchError),
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        Self::Fatal(error)
    }
}

fn transient(message: impl Into<String>) -> Failure {
    Failure::Transient {
        message: message.into(),
        wish: None,
    }
}

/// A client that follows redirects within bounds and never from TLS to a plain connection.
pub(crate) fn client(request: &FetchRequest) -> Result<Client, String> {
    let tls = tls::client_config(request.extra_ca_file.as_deref())?;
    let policy = redirect::Policy::custom(|attempt| {
        if !keeps_security(attempt.previous(), attempt.url()) {
            attempt.error(Refused("it redirects to a less secure connection"))
        } else if attempt.previous().len() > REDIRECT_LIMIT {
            attempt.error(Refused("it redirects too often"))
        } else {
            attempt.follow()
        }
    });
    Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(policy)
        .connect_timeout(request.retry.stall_timeout)
        .user_agent(concat!("pagoda-engine/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| error.to_string())
}

/// A plain connection may follow only plain ones, and leave this machine or enter it only as the
/// user's own URI does.
fn keeps_security(previous: &[Url], next: &Url) -> bool {
    let is_plain = |url: &Url| url.scheme() == "http";
    let same_side = previous
        .first()
        .is_none_or(|first| is_loopback(first) == is_loopback(next));
    next.scheme() == "https" || is_plain(next) && previous.iter().all(is_plain) && same_side
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(&'static str);

/// Asks for what is missing and appends it.
pub(crate) async fn attempt(
    client: &Client,
    url: &Url,
    request: &FetchRequest,
    partial: &mut Partial,
    progress: &mut (dyn FnMut(u64, Option<u64>) + Send),
) -> Result<(), Failure> {
    let response = send(
        client,
        url,
        &request.retry,
        partial,
        request.sha256.is_some(),
    )
    .await?;
    let Some(total) = accept(&response, request, partial).await? else {
        return Ok(());
    };
    let outcome = receive(response, total, request, partial, progress).await;
    partial.flush().await?;
    outcome
}

async fn send(
    client: &Client,
    url: &Url,
    retry: &RetryPolicy,
    partial: &mut Partial,
    is_verified: bool,
) -> Result<Response, Failure> {
    // Without a version to compare and a hash to check at the end, two versions could be mixed.
    if partial.bytes() > 0 && partial.validator().is_none() && !is_verified {
        partial.restart(None).await?;
    }
    let mut builder = client.get(url.clone());
    if partial.bytes() > 0 {
        builder = builder.header(RANGE, format!("bytes={}-", partial.bytes()));
        if let Some(validator) = partial.validator() {
            builder = builder.header(IF_RANGE, validator.header_value());
        }
    }
    let answer = tokio::time::timeout(retry.stall_timeout, builder.send()).await;
    let answer =
        answer.map_err(|_| transient(format!("no answer within {:?}", retry.stall_timeout)))?;
    answer.map_err(|error| connection_failure(&error))
}

/// A refused redirect or an untrusted certificate stays so; anything else may pass.
fn connection_failure(error: &reqwest::Error) -> Failure {
    let message = chain(error);
    let mut cause = error.source();
    while let Some(current) = cause {
        if let Some(refused) = current.downcast_ref::<Refused>() {
            return failed(format!("{refused}; use the final address if you trust it"));
        }
        if let Some(rustls::Error::InvalidCertificate(_)) = current.downcast_ref() {
            return failed(format!(
                "{message}; name the file of your certificate authority in SSL_CERT_FILE"
            ));
        }
        cause = inner(current);
    }
    transient(message)
}

/// The error inside. An I/O error that wraps another passes over it in `source`.
fn inner<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a (dyn std::error::Error + 'static)> {
    match error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref)
    {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// A fatal failure whose source is filled in by the caller's report.
fn failed(detail: String) -> Failure {
    Failure::Fatal(FetchError::DownloadFailed {
        source_uri: String::new(),
        detail,
    })
}

/// An error and its causes, without the URL, which may hold secrets.
fn chain(error: &reqwest::Error) -> String {
    let mut parts = Vec::new();
    let mut cause = error.source();
    while let Some(current) = cause {
        parts.push(current.to_string());
        cause = current.source();
    }
    parts.dedup();
    if parts.is_empty() {
        "the connection failed".into()
    } else {
        parts.join(": ")
    }
}

/// Judges an answer and brings the part in line with it. `Ok(None)`: nothing is missing;
/// `Ok(Some(total))`: the body goes on where the part ends, the whole having `total` bytes if known.
async fn accept(
    response: &Response,
    request: &FetchRequest,
    partial: &mut Partial,
) -> Result<Option<Option<u64>>, Failure> {
    let (status, headers) = (response.status(), response.headers());
    let total = match status {
        StatusCode::OK => {
            partial.restart(validator(headers)).await?;
            response.content_length()
        }
        StatusCode::PARTIAL_CONTENT => match content_range(headers) {
            Some((start, total)) if start == partial.bytes() && same_version(headers, partial) => {
                total
            }
            _ => {
                partial.restart(None).await?;
                return Err(transient("the file changed on the server, starting anew"));
            }
        },
        StatusCode::RANGE_NOT_SATISFIABLE => {
            if unsatisfied_total(headers) == Some(partial.bytes()) && partial.bytes() > 0 {
                return Ok(None);
            }
            partial.restart(None).await?;
            return Err(transient(
                "the server has fewer bytes than were fetched, starting anew",
            ));
        }
        _ => return Err(refusal(status, headers)),
    };
    if let Some(total) = total {
        check_size(total, request)?;
        disk::check_room(partial.path(), total.saturating_sub(partial.bytes()))?;
    }
    Ok(Some(total))
}

fn refusal(status: StatusCode, headers: &HeaderMap) -> Failure {
    let message = format!("the server answers {status}");
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Failure::Fatal(FetchError::ModelNotFound {
            source_uri: String::new(),
            detail: message,
        }),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => failed(format!(
            "{message}; it wants credentials, or others than the URI carries"
        )),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Failure::Transient {
                message,
                wish: retry_after(headers),
            }
        }
        status if status.is_server_error() => Failure::Transient {
            message,
            wish: retry_after(headers),
        },
        _ => failed(format!("{message}; check the URI")),
    }
}

async fn receive(
    mut response: Response,
    total: Option<u64>,
    request: &FetchRequest,
    partial: &mut Partial,
    progress: &mut (dyn FnMut(u64, Option<u64>) + Send),
) -> Result<(), Failure> {
    let stall = request.retry.stall_timeout;
    loop {
        let chunk = tokio::time::timeout(stall, response.chunk()).await;
        let chunk = chunk.map_err(|_| transient(format!("no bytes for {stall:?}")))?;
        let Some(chunk) = chunk.map_err(|error| transient(chain(&error)))? else {
            break;
        };
        let after = partial.bytes() + chunk.len() as u64;
        if total.is_some_and(|total| after > total) {
            partial.restart(None).await?;
            return Err(transient(
                "the server sends more bytes than it announced, starting anew",
            ));
        }
        check_size(after, request)?;
        partial.write(&chunk).await?;
        progress(after, total);
    }
    match total {
        Some(total) if partial.bytes() < total => Err(transient(format!(
            "the connection ended at byte {} of {total}",
            partial.bytes()
        ))),
        _ => Ok(()),
    }
}

fn check_size(bytes: u64, request: &FetchRequest) -> Result<(), FetchError> {
    match request.max_bytes {
        Some(limit_bytes) if bytes > limit_bytes => Err(FetchError::TooLarge {
            source_uri: request.uri.to_string(),
            bytes,
            limit_bytes,
        }),
        _ => Ok(()),
    }
}

/// What names this version strongly enough to resume it.
fn validator(headers: &HeaderMap) -> Option<Validator> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    let tag = text(ETAG).filter(|tag| tag.starts_with('"'));
    tag.map(Validator::ETag)
        .or_else(|| text(LAST_MODIFIED).map(Validator::LastModified))
}

/// Whether the answer is of the version the part is of, as far as it says.
fn same_version(headers: &HeaderMap, partial: &Partial) -> bool {
    let (Some(new), Some(old)) = (validator(headers), partial.validator()) else {
        return true;
    };
    let is_comparable = std::mem::discriminant(&new) == std::mem::discriminant(old);
    !is_comparable || new == *old
}

/// Start and total of `bytes 5-9/10`.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = headers
        .get(CONTENT_RANGE)?
        .to_str()
        .ok()?
        .strip_prefix("bytes ")?;
    let (range, total) = text.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    let total = if total == "*" {
        None
    } else {
        Some(total.parse().ok()?)
    };
    Some((start.parse().ok()?, total))
}

/// Total of `bytes */10`.
fn unsatisfied_total(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(CONTENT_RANGE)?
        .to_str()
        .ok()?
        .strip_prefix("bytes */")?
        .parse()
        .ok()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::keeps_security;

    #[test]
    fn redirects_never_lower_security() {
        let keeps = |from: &[&str], to: &str| {
            let from: Vec<Url> = from.iter().map(|url| Url::parse(url).unwrap()).collect();
            keeps_security(&from, &Url::parse(to).unwrap())
        };
        assert!(keeps(&["https://a"], "https://b"));
        assert!(keeps(&["http://a"], "https://b"));
        assert!(keeps(&["http://a"], "http://b"));
        assert!(keeps(&["http://127.0.0.1"], "http://localhost"));
        assert!(!keeps(&["https://a"], "http://b"));
        assert!(!keeps(&["http://a", "https://b"], "http://c"));
        assert!(!keeps(&["http://127.0.0.1"], "http://a"));
        assert!(!keeps(&["http://a"], "http://127.0.0.1"));
        assert!(!keeps(&["https://a"], "file:///etc/passwd"));
    }
}
