//! Objects of S3, Google Cloud Storage and Azure Blob Storage, and of what speaks like them.
//!
//! `object_store` knows how to address and sign; the connection, the trust, and what to make of a refusal are ours.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures::StreamExt;
use http_body_util::BodyExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ClientOptions, GetOptions, GetRange, GetResult, ObjectStore, RetryConfig};
use reqwest::{Client, StatusCode};

use super::transport::{self, Redirects, unsatisfied_total};
use super::{Answer, Body, Failure, Opened, Terms, Wanted, transient};
use crate::credentials::Credentials;
use crate::fetch::FetchRequest;
use crate::journal::Validator;
use crate::uri::{Cloud, ObjectUri};

/// Signatures name a region; S3's default, and what compatible stores take too.
const DEFAULT_REGION: &str = "us-east-1";

/// One object.
pub(crate) struct CloudOrigin {
    store: Arc<dyn ObjectStore>,
    key: Path,
}

impl CloudOrigin {
    pub(crate) fn new(
        request: &FetchRequest,
        object: &ObjectUri,
        credentials: &Credentials,
    ) -> Result<Self, String> {
        let client = transport::client(request, Redirects::Refused)?;
        let key = Path::parse(&object.key)
            .map_err(|error| format!("the key {} cannot be asked for: {error}", object.key))?;
        let store = match &object.cloud {
            Cloud::S3 => s3(request, object, credentials, Connector(client)),
            Cloud::Google => google(request, object, credentials, Connector(client)),
            Cloud::Azure { account } => {
                azure(request, object, account, credentials, Connector(client))
            }
        }?;
        Ok(Self { store, key })
    }

    pub(crate) async fn open(&self, wanted: Wanted<'_>) -> Result<Opened, Failure> {
        match self.store.get_opts(&self.key, options(wanted)).await {
            Ok(result) => Ok(Opened::Bytes(answer(result, wanted))),
            Err(error) => match find::<Transport>(&error) {
                Some(Transport::Ended { total }) => Ok(Opened::Ended { total: *total }),
                Some(Transport::Failed(failure)) => Err(failure.clone()),
                None => Err(transient(causes(&error))),
            },
        }
    }
}

fn s3(
    request: &FetchRequest,
    object: &ObjectUri,
    credentials: &Credentials,
    connector: Connector,
) -> Result<Arc<dyn ObjectStore>, String> {
    let region = request.region.as_deref().unwrap_or(DEFAULT_REGION);
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&object.bucket)
        .with_region(region)
        .with_allow_http(true)
        .with_retry(no_retries())
        .with_http_connector(connector);
    builder = match &request.endpoint {
        // Compatible stores rarely have a name per bucket.
        Some(endpoint) => builder
            .with_endpoint(trimmed(endpoint))
            .with_virtual_hosted_style_request(false),
        None => builder.with_virtual_hosted_style_request(!object.bucket.contains('.')),
    };
    let keys = (
        credentials.get("AWS_ACCESS_KEY_ID")?,
        credentials.get("AWS_SECRET_ACCESS_KEY")?,
    );
    builder = match keys {
        (Some(id), Some(key)) => builder
            .with_access_key_id(id.reveal())
            .with_secret_access_key(key.reveal()),
        (None, None) => builder.with_skip_signature(true),
        _ => {
            return Err(
                "the credentials hold only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; \
                 give both"
                    .into(),
            );
        }
    };
    if let Some(token) = credentials.get("AWS_SESSION_TOKEN")? {
        builder = builder.with_token(token.reveal());
    }
    built(builder.build().map(|store| Arc::new(store) as _))
}

fn google(
    request: &FetchRequest,
    object: &ObjectUri,
    credentials: &Credentials,
    connector: Connector,
) -> Result<Arc<dyn ObjectStore>, String> {
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&object.bucket)
        .with_retry(no_retries())
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_http_connector(connector);
    if let Some(endpoint) = &request.endpoint {
        builder = builder.with_base_url(&trimmed(endpoint));
    }
    builder = match credentials.get("GOOGLE_SERVICE_ACCOUNT_KEY")? {
        Some(key) => builder.with_service_account_key(key.reveal()),
        None => builder.with_skip_signature(true),
    };
    built(builder.build().map(|store| Arc::new(store) as _))
}

fn azure(
    request: &FetchRequest,
    object: &ObjectUri,
    account: &str,
    credentials: &Credentials,
    connector: Connector,
) -> Result<Arc<dyn ObjectStore>, String> {
    let mut builder = MicrosoftAzureBuilder::new()
        .with_account(account)
        .with_container_name(&object.bucket)
        .with_allow_http(true)
        .with_retry(no_retries())
        .with_http_connector(connector);
    if let Some(endpoint) = &request.endpoint {
        builder = builder.with_endpoint(trimmed(endpoint));
    }
    let key = credentials.get("AZURE_STORAGE_ACCOUNT_KEY")?;
    let sas = credentials.get("AZURE_STORAGE_SAS_TOKEN")?;
    builder = match (key, sas) {
        (Some(key), _) => builder.with_access_key(key.reveal()),
        (None, Some(sas)) => builder.with_config(AzureConfigKey::SasKey, sas.reveal()),
        (None, None) => builder.with_skip_signature(true),
    };
    built(builder.build().map(|store| Arc::new(store) as _))
}

fn trimmed(endpoint: &reqwest::Url) -> String {
    endpoint.as_str().trim_end_matches('/').to_owned()
}

/// Builders refuse what they were given, so their words may repeat a secret: only the kind is passed on.
fn built<T>(outcome: object_store::Result<T>) -> Result<T, String> {
    outcome.map_err(|error| {
        tracing::debug!(kind = ?std::mem::discriminant(&error), "the store's client refuses");
        "the credentials cannot be used: check that each key of the Secret holds what its name says"
            .into()
    })
}

/// Retrying is for whoever knows what was received already.
fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

fn options(wanted: Wanted<'_>) -> GetOptions {
    let range = match wanted.end {
        Some(end) => Some(GetRange::Bounded(wanted.start..end)),
        None if wanted.start > 0 => Some(GetRange::Offset(wanted.start)),
        None => None,
    };
    let if_match = match wanted.validator {
        Some(Validator::ETag(tag)) if range.is_some() => Some(tag.clone()),
        _ => None,
    };
    GetOptions {
        range,
        if_match,
        ..GetOptions::default()
    }
}

fn answer(result: GetResult, wanted: Wanted<'_>) -> Answer {
    let tag = result.meta.e_tag.clone();
    let (start, total) = (result.range.start, result.meta.size);
    let stream = result.into_stream();
    let body = stream.map(|chunk| {
        chunk.map_err(|error| match find::<Transport>(&error) {
            Some(Transport::Failed(failure)) => failure.clone(),
            _ => transient(causes(&error)),
        })
    });
    Answer {
        terms: Terms {
            start,
            total: Some(total),
            validator: tag.filter(|tag| tag.starts_with('"')).map(Validator::ETag),
            is_ranged: wanted.is_range(),
            refuses_ranges: false,
        },
        body: Body::Stream(body.boxed()),
    }
}

/// What became of a request, carried through `object_store`'s own errors.
#[derive(Debug, thiserror::Error)]
enum Transport {
    #[error("the object ends before the range begins")]
    Ended { total: Option<u64> },
    #[error("{0}")]
    Failed(Failure),
}

impl From<Transport> for HttpError {
    fn from(transport: Transport) -> Self {
        // Of no kind that is tried again without us.
        Self::new(HttpErrorKind::Unknown, transport)
    }
}

fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut cause = Some(error);
    while let Some(current) = cause {
        if let Some(found) = current.downcast_ref() {
            return Some(found);
        }
        cause = current.source();
    }
    None
}

/// The innermost cause: outer ones repeat it with the address, which may be signed.
fn causes(error: &object_store::Error) -> String {
    let mut cause: &dyn StdError = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Our client, for `object_store` to send through.
struct Connector(Client);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Connector(self.0.clone())))
    }
}

#[async_trait::async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let sent = send(&self.0, request).await?;
        let response: http::Response<reqwest::Body> = sent.into();
        Ok(response.map(|body| {
            let body = body.map_err(|error| {
                HttpError::from(Transport::Failed(transient(transport::chain(&error))))
            });
            HttpResponseBody::new(body)
        }))
    }
}

/// Sends a request; every answer but a success is a failure of ours.
fn send(
    client: &Client,
    request: HttpRequest,
) -> Pin<Box<dyn Future<Output = Result<reqwest::Response, Transport>> + Send>> {
    let failed = |failure| Box::pin(std::future::ready(Err(Transport::Failed(failure))));
    let (parts, body) = request.into_parts();
    let Ok(url) = parts.uri.to_string().parse() else {
        return failed(super::fatal("the object's address is no URL"));
    };
    let mut request = reqwest::Request::new(parts.method, url);
    *request.headers_mut() = parts.headers;
    *request.body_mut() = body.as_bytes().cloned().map(reqwest::Body::from);
    let sent = client.execute(request);
    Box::pin(async move {
        let response = sent
            .await
            .map_err(|error| Transport::Failed(transport::connection_failure(&error)))?;
        match response.status() {
            status if status.is_success() => Ok(response),
            StatusCode::RANGE_NOT_SATISFIABLE => Err(Transport::Ended {
                total: unsatisfied_total(response.headers()),
            }),
            StatusCode::PRECONDITION_FAILED => Err(Transport::Failed(Failure::Stale(
                "the object changed in the store, starting anew".into(),
            ))),
            _ => Err(Transport::Failed(transport::refusal(response).await)),
        }
    })
}
