//! Where bytes come from. Each origin answers the same question: these bytes of this version, please.

mod cloud;
mod file;
mod http;
mod hugging_face;
mod oci;
mod registry;
mod transport;

pub(crate) use transport::is_same as is_same_version;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use reqwest::Url;
use tokio::fs::File;

use crate::credentials::Credentials;
use crate::digest::Sha256Digest;
use crate::error::FetchError;
use crate::fetch::FetchRequest;
use crate::journal::Validator;
use crate::uri::ModelUri;

/// Why an attempt did not finish.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    /// Trying again may help.
    #[error("{message}")]
    Transient {
        message: String,
        /// The pause the server asks for.
        wish: Option<Duration>,
    },
    /// It will not.
    #[error(transparent)]
    Fatal(#[from] FetchError),
    /// What is in place belongs to another version, so it is worth nothing.
    #[error("{0}")]
    Stale(String),
}

pub(crate) fn transient(message: impl Into<String>) -> Failure {
    Failure::Transient {
        message: message.into(),
        wish: None,
    }
}

/// A fatal failure whose source is filled in by the caller's report.
pub(crate) fn fatal(detail: impl Into<String>) -> Failure {
    Failure::Fatal(FetchError::failed(detail))
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) start: u64,
    /// Where to stop; `None` for the end of the file.
    pub(crate) end: Option<u64>,
    /// The version that the bytes must be of.
    pub(crate) validator: Option<&'a Validator>,
}

impl Wanted<'_> {
    /// Whether a part is asked for rather than the whole.
    pub(crate) fn is_range(&self) -> bool {
        self.start > 0 || self.end.is_some()
    }

    fn range_header(&self) -> String {
        match self.end {
            Some(end) => format!("bytes={}-{}", self.start, end.saturating_sub(1)),
            None => format!("bytes={}-", self.start),
        }
    }
}

/// What an answer says of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Where they begin.
    pub(crate) start: u64,
    /// Bytes of the whole, if told.
    pub(crate) total: Option<u64>,
    pub(crate) validator: Option<Validator>,
    /// Whether they are a part because a part was asked for.
    pub(crate) is_ranged: bool,
    /// Whether the server says that it has no ranges.
    pub(crate) refuses_ranges: bool,
}

/// Bytes are coming.
pub(crate) struct Answer {
    pub(crate) terms: Terms,
    pub(crate) body: Body,
}

/// What an origin says.
pub(crate) enum Opened {
    Bytes(Answer),
    /// The file, of this length, ends before the range begins.
    Ended {
        total: Option<u64>,
    },
}

/// A body that is read chunk by chunk.
pub(crate) enum Body {
    Http(reqwest::Response),
    Stream(BoxStream<'static, Result<Bytes, Failure>>),
    File(File),
}

impl Body {
    /// The next bytes; `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Http(response) => response
                .chunk()
                .await
                .map_err(|error| transient(transport::chain(&error))),
            Self::Stream(stream) => stream.next().await.transpose(),
            Self::File(source) => file::chunk(source).await,
        }
    }
}

/// A source that is ready to be asked.
pub(crate) enum Origin {
    Http(http::HttpOrigin),
    Oci(Box<oci::OciOrigin>),
    Cloud(cloud::CloudOrigin),
    File(file::FileOrigin),
}

impl Origin {
    /// Prepares to ask; reads credentials, connects to nothing.
    pub(crate) fn new(request: &FetchRequest) -> Result<Self, FetchError> {
        let credentials = Credentials::new(request.credentials.as_deref());
        let made = match &request.uri {
            ModelUri::Http(url) => {
                http::HttpOrigin::new(request, url.clone(), &credentials, &["token"])
                    .map(Self::Http)
            }
            ModelUri::HuggingFace(file) => {
                let url = hugging_face::url(file, request.endpoint.as_ref());
                url.and_then(|url| {
                    http::HttpOrigin::new(request, url, &credentials, hugging_face::TOKEN_KEYS)
                })
                .map(Self::Http)
            }
            ModelUri::Oci(file) => oci::OciOrigin::new(request, file, &credentials)
                .map(Box::new)
                .map(Self::Oci),
            ModelUri::Object(object) => {
                cloud::CloudOrigin::new(request, object, &credentials).map(Self::Cloud)
            }
            ModelUri::File(path) => Ok(Self::File(file::FileOrigin::new(path.clone()))),
        };
        made.map_err(FetchError::failed)
    }

    /// Asks. The caller bounds the time.
    pub(crate) async fn open(&self, wanted: Wanted<'_>) -> Result<Opened, Failure> {
        match self {
            Self::Http(origin) => origin.open(wanted).await,
            Self::Oci(origin) => origin.open(wanted).await,
            Self::Cloud(origin) => origin.open(wanted).await,
            Self::File(origin) => origin.open(wanted).await,
        }
    }

    /// The hash that the source itself vouches for, once it was asked.
    pub(crate) fn expected_sha256(&self) -> Option<Sha256Digest> {
        match self {
            Self::Oci(origin) => origin.expected_sha256(),
            _ => None,
        }
    }

    /// Whether several connections can be faster than one.
    pub(crate) fn gains_by_connections(&self) -> bool {
        !matches!(self, Self::File(_))
    }
}

/// A sentence about a local file that cannot be read.
fn unreadable(path: &std::path::Path, error: &io::Error) -> FetchError {
    let detail = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound => FetchError::ModelNotFound {
            source_uri: String::new(),
            detail,
        },
        _ => FetchError::failed(detail),
    }
}

/// `base` with segments appended, each escaped.
fn joined<'a>(base: &Url, segments: impl IntoIterator<Item = &'a str>) -> Result<Url, String> {
    let mut url = base.clone();
    url.path_segments_mut()
        .map_err(|()| format!("{base} cannot be an endpoint"))?
        .pop_if_empty()
        .extend(segments);
    Ok(url)
}
