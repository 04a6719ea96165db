//! Where a model comes from.

use std::fmt;
use std::path::PathBuf;

use reqwest::Url;

/// Whether a model may come over a connection that anyone on the way can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainHttp {
    /// Only from this machine itself.
    LoopbackOnly,
    /// From anywhere, because the user said so.
    Allowed,
}

/// A source this crate fetches from. Shown and logged without user, password and query.
#[derive(Clone, PartialEq, Eq)]
pub enum ModelUri {
    /// `https://`, or `http://` where that is allowed.
    Http(Url),
    /// `file://` with an absolute path.
    File(PathBuf),
}

/// Why a text is no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Not a URI.
    #[error(
        "the model's source is not a URI: {reason}; write for example https://example.org/model.gguf"
    )]
    Malformed {
        /// What the parser said.
        reason: String,
    },
    /// A scheme that is fetched otherwise or not at all.
    #[error("cannot fetch a {scheme}:// source; https:// and file:// can be fetched")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// A plain connection to another machine.
    #[error(
        "refusing http://{host}: a model fetched without TLS can be replaced on the way; use https://, or allow plain HTTP explicitly"
    )]
    PlainHttp {
        /// The host.
        host: String,
    },
    /// A file on another machine, or a path that is not absolute.
    #[error(
        "a file:// source needs three slashes and an absolute path, as in file:///models/model.gguf"
    )]
    NotAbsolute,
}

impl ModelUri {
    /// Parses a source.
    pub fn parse(text: &str, plain_http: PlainHttp) -> Result<Self, UriError> {
        let url = Url::parse(text).map_err(|error| UriError::Malformed {
            reason: error.to_string(),
        })?;
        match url.scheme() {
            "https" => Ok(Self::Http(url)),
            "http" if plain_http == PlainHttp::Allowed || is_loopback(&url) => Ok(Self::Http(url)),
            "http" => Err(UriError::PlainHttp {
                host: url.host_str().unwrap_or_default().to_owned(),
            }),
            "file" => file_path(text, &url).map(Self::File),
            scheme => Err(UriError::Scheme {
                scheme: scheme.to_owned(),
            }),
        }
    }
}

/// The parser mends `file:relative` to an absolute path, which is not what was meant.
fn file_path(text: &str, url: &Url) -> Result<PathBuf, UriError> {
    let is_absolute = text
        .get(..8)
        .is_some_and(|head| head.eq_ignore_ascii_case("file:///"));
    if is_absolute {
        url.to_file_path().map_err(|()| UriError::NotAbsolute)
    } else {
        Err(UriError::NotAbsolute)
    }
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The URL without user, password, query and fragment.
fn redacted(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let query = if url.query().is_some() { "?..." } else { "" };
    format!("{}://{host}{port}{}{query}", url.scheme(), url.path())
}

impl fmt::Display for ModelUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(url) => f.write_str(&redacted(url)),
            Self::File(path) => write!(f, "file://{}", path.display()),
        }
    }
}

impl fmt::Debug for ModelUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelUri({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::{ModelUri, PlainHttp, UriError};

    fn parse(text: &str) -> Result<ModelUri, UriError> {
        ModelUri::parse(text, PlainHttp::LoopbackOnly)
    }

    #[test]
    fn credentials_and_queries_are_never_shown() {
        let uri =
            parse("https://user:secret@example.org:8443/a/model.gguf?token=secret#secret").unwrap();
        assert_eq!(uri.to_string(), "https://example.org:8443/a/model.gguf?...");
        assert!(!format!("{uri:?}").contains("secret"));
    }

    #[test]
    fn plain_http_is_for_loopback_unless_allowed() {
        for here in [
            "http://localhost:1/x",
            "http://127.0.0.1/x",
            "http://[::1]:8/x",
        ] {
            assert!(matches!(parse(here), Ok(ModelUri::Http(_))), "{here}");
        }
        let there = "http://example.org/model.gguf";
        assert_eq!(
            parse(there),
            Err(UriError::PlainHttp {
                host: "example.org".into()
            })
        );
        assert!(ModelUri::parse(there, PlainHttp::Allowed).is_ok());
        assert!(parse("http://localhost.example.org/x").is_err());
    }

    #[test]
    fn files_need_an_absolute_path() {
        assert_eq!(
            parse("file:///models/a%20b.gguf"),
            Ok(ModelUri::File("/models/a b.gguf".into()))
        );
        for wrong in [
            "file://models/a.gguf",
            "file:models/a.gguf",
            "file:/models/a.gguf",
        ] {
            assert_eq!(parse(wrong), Err(UriError::NotAbsolute), "{wrong}");
        }
    }

    #[test]
    fn other_schemes_are_named() {
        assert_eq!(
            parse("s3://bucket/x"),
            Err(UriError::Scheme {
                scheme: "s3".into()
            })
        );
        assert_eq!(
            parse("pvc://claim/x"),
            Err(UriError::Scheme {
                scheme: "pvc".into()
            })
        );
        assert!(matches!(
            parse("model.gguf"),
            Err(UriError::Malformed { .. })
        ));
    }
}
