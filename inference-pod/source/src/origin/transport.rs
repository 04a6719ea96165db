//! HTTP as all origins speak it: trust, redirects, and what answers mean.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, LAST_MODIFIED, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url, redirect};

use super::{Failure, fatal, transient};
use crate::credentials::Secret;
use crate::error::FetchError;
use crate::fetch::FetchRequest;
use crate::journal::Validator;
use crate::tls;
use crate::uri::is_loopback;

const REDIRECT_LIMIT: usize = 10;

/// As much of an error's body as is looked at.
const ERROR_BODY_BYTES: usize = 16 << 10;

/// Which redirects are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redirects {
    /// A few, and none to a less secure connection. `Authorization` stays with the host it is for.
    WithinBounds,
    /// None: a signed request is for one host.
    Refused,
}

/// A client that resumes nothing by itself and tells nobody where it came from.
pub(crate) fn client(request: &FetchRequest, redirects: Redirects) -> Result<Client, String> {
    let tls = tls::client_config(request.extra_ca_file.as_deref())?;
    let policy = match redirects {
        Redirects::Refused => redirect::Policy::none(),
        Redirects::WithinBounds => redirect::Policy::custom(|attempt| {
            if !keeps_security(attempt.previous(), attempt.url()) {
                attempt.error(Refused("it redirects to a less secure connection"))
            } else if attempt.previous().len() > REDIRECT_LIMIT {
                attempt.error(Refused("it redirects too often"))
            } else {
                attempt.follow()
            }
        }),
    };
    Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(policy)
        // A referrer would carry the query, which may hold a token, to another host.
        .referer(false)
        // Multiplexed over one HTTP/2 connection, many ranges would share one window.
        .http1_only()
        .connect_timeout(request.retry.stall_timeout)
        .user_agent(concat!("pagoda-engine/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| error.to_string())
}

/// `SCHEME SECRET`, marked as not to be shown.
pub(crate) fn authorization(scheme: &str, secret: &Secret) -> Result<HeaderValue, String> {
    let value = HeaderValue::try_from(format!("{scheme} {}", secret.reveal()));
    let mut value =
        value.map_err(|_| "the credential holds characters that no header can carry".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
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

/// A refused redirect or an untrusted certificate stays so; anything else may pass.
pub(crate) fn connection_failure(error: &reqwest::Error) -> Failure {
    let message = chain(error);
    let mut cause = error.source();
    while let Some(current) = cause {
        if let Some(refused) = current.downcast_ref::<Refused>() {
            return fatal(format!("{refused}; use the final address if you trust it"));
        }
        if let Some(rustls::Error::InvalidCertificate(_)) = current.downcast_ref() {
            return fatal(format!(
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

/// An error and its causes, without the URL, which may hold secrets.
pub(crate) fn chain(error: &reqwest::Error) -> String {
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

/// What an answer without the file means.
pub(crate) async fn refusal(response: Response) -> Failure {
    let (status, wish) = (response.status(), retry_after(response.headers()));
    let said = said(response).await;
    let message = format!("the server answers {status}{said}");
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Failure::Fatal(FetchError::ModelNotFound {
            source_uri: String::new(),
            detail: message,
        }),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let detail = format!("{message}; it wants credentials, or others than it was given");
            Failure::Fatal(FetchError::Unauthorized {
                source_uri: String::new(),
                detail,
            })
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Failure::Transient { message, wish }
        }
        status if status.is_server_error() => Failure::Transient { message, wish },
        status if status.is_redirection() => fatal(format!(
            "{message}, which leads elsewhere; correct region and endpoint"
        )),
        _ => fatal(format!("{message}; check the URI")),
    }
}

/// The code that the server gives with an error, in brackets: a word of its own, never what was sent to it.
async fn said(mut response: Response) -> String {
    let header = response.headers().get("x-error-code").cloned();
    let header = header.and_then(|value| value.to_str().ok().map(str::to_owned));
    let mut body = Vec::new();
    // An error whose body does not come is still that error.
    while let Ok(Ok(Some(chunk))) =
        tokio::time::timeout(Duration::from_secs(5), response.chunk()).await
    {
        body.extend_from_slice(&chunk);
        if body.len() >= ERROR_BODY_BYTES {
            break;
        }
    }
    let code = header.or_else(|| error_code(&String::from_utf8_lossy(&body)));
    let is_word = |code: &String| {
        (1..=64).contains(&code.len())
            && code
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    code.filter(is_word)
        .map(|code| format!(" ({code})"))
        .unwrap_or_default()
}

/// What stands in the element `Code`, as object stores have it, or in the first field `code`, as registries have it.
fn error_code(body: &str) -> Option<String> {
    let element = body
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    if let Some((code, _)) = element {
        return Some(code.to_owned());
    }
    let value: serde_json::Value = serde_json::from_str(body).ok()?;
    value["errors"][0]["code"].as_str().map(str::to_owned)
}

/// What names this version strongly enough to resume it.
pub(crate) fn validator(headers: &HeaderMap) -> Option<Validator> {
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

/// Whether two versions are the same, as far as can be told.
pub(crate) fn is_same(new: Option<&Validator>, old: Option<&Validator>) -> bool {
    let (Some(new), Some(old)) = (new, old) else {
        return true;
    };
    let is_comparable = std::mem::discriminant(new) == std::mem::discriminant(old);
    !is_comparable || new == old
}

/// Start and total of `bytes 5-9/10`.
pub(crate) fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
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
pub(crate) fn unsatisfied_total(headers: &HeaderMap) -> Option<u64> {
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

    #[test]
    fn only_a_word_of_the_server_is_repeated() {
        let code = super::error_code;
        assert_eq!(
            code("<?xml?><Error><Code>AccessDenied</Code><X>secret</X></Error>").as_deref(),
            Some("AccessDenied")
        );
        assert_eq!(
            code(r#"{"errors":[{"code":"DENIED","message":"secret"}]}"#).as_deref(),
            Some("DENIED")
        );
        assert_eq!(code("<html>"), None);
    }
}
