//! Files of OCI artifacts: a layer of a manifest, found by its title, fetched by its digest.

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, Response, StatusCode, Url};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::http::{HttpOrigin, is_unauthorized};
use super::registry::{self, Challenge, Layer, Manifest};
use super::transport::{self, Redirects};
use super::{Failure, Opened, Wanted, fatal, joined, transient};
use crate::credentials::{Credentials, Secret};
use crate::digest::Sha256Digest;
use crate::error::FetchError;
use crate::fetch::FetchRequest;
use crate::uri::{OciFile, is_loopback};

/// Registries themselves refuse larger manifests.
const MANIFEST_BYTES: usize = 4 << 20;
/// Manifests of an index that are looked into.
const INDEX_ENTRIES: usize = 16;
const MANIFEST_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// One file of one artifact.
pub(crate) struct OciOrigin {
    client: Client,
    /// `https://REGISTRY/v2/REPOSITORY/`.
    base: Url,
    file: OciFile,
    /// `user:password` in base64.
    basic: Option<Secret>,
    stall: Duration,
    /// The header that the registry took last.
    authorization: Mutex<Option<HeaderValue>>,
    found: tokio::sync::OnceCell<(Layer, HttpOrigin)>,
    expected: OnceLock<Sha256Digest>,
}

impl OciOrigin {
    pub(crate) fn new(
        request: &FetchRequest,
        file: &OciFile,
        credentials: &Credentials,
    ) -> Result<Self, String> {
        let config = credentials.first(&[".dockerconfigjson", "config.json"])?;
        let basic = match config {
            Some(config) => registry::basic_auth(&config, &file.registry)?,
            None => None,
        };
        Ok(Self {
            client: transport::client(request, Redirects::WithinBounds)?,
            base: base(file, request.endpoint.as_ref())?,
            file: file.clone(),
            basic,
            stall: request.retry.stall_timeout,
            authorization: Mutex::new(None),
            found: tokio::sync::OnceCell::new(),
            expected: OnceLock::new(),
        })
    }

    pub(crate) fn expected_sha256(&self) -> Option<Sha256Digest> {
        self.expected.get().copied()
    }

    pub(crate) async fn open(&self, wanted: Wanted<'_>) -> Result<Opened, Failure> {
        let (_, blob) = self.found.get_or_try_init(|| self.find()).await?;
        match blob.open(wanted).await {
            // Tokens live for minutes, downloads for longer.
            Err(failure) if is_unauthorized(&failure) => {
                let url = self.url(&["manifests", &self.file.reference])?;
                *self.authorization.lock().await = None;
                self.get(&url).await?;
                blob.authorize(self.authorization.lock().await.clone());
                blob.open(wanted).await
            }
            outcome => outcome,
        }
    }

    /// The layer, and where its bytes are.
    async fn find(&self) -> Result<(Layer, HttpOrigin), Failure> {
        let layer = self.layer().await?;
        self.expected.get_or_init(|| layer.sha256);
        let url = self.url(&["blobs", &format!("sha256:{}", layer.sha256)])?;
        let header = self.authorization.lock().await.clone();
        let blob = HttpOrigin::with_client(self.client.clone(), url, header);
        Ok((layer, blob))
    }

    async fn layer(&self) -> Result<Layer, Failure> {
        let not_found = |detail| {
            Failure::Fatal(FetchError::ModelNotFound {
                source_uri: String::new(),
                detail,
            })
        };
        let top = self.manifest(&self.file.reference).await?;
        let mut outcome = top.layer(&self.file.file);
        for entry in top.manifests.iter().take(INDEX_ENTRIES) {
            if outcome.is_ok() || registry::sha256(&entry.digest).is_none() {
                break;
            }
            outcome = self.manifest(&entry.digest).await?.layer(&self.file.file);
        }
        outcome.map_err(not_found)
    }

    /// A manifest; one that is asked for by its digest has that digest.
    async fn manifest(&self, reference: &str) -> Result<Manifest, Failure> {
        let url = self.url(&["manifests", reference])?;
        let body = read(self.get(&url).await?).await?;
        let found = Sha256Digest(Sha256::digest(&body).into());
        if registry::sha256(reference).is_some_and(|expected| expected != found) {
            return Err(fatal(format!(
                "the registry answers {reference} with a manifest of digest sha256:{found}; do not trust it"
            )));
        }
        serde_json::from_slice(&body)
            .map_err(|error| fatal(format!("the manifest {reference} cannot be read: {error}")))
    }

    /// An answer of the registry, after proving who asks if it wants that.
    async fn get(&self, url: &Url) -> Result<Response, Failure> {
        let response = self.send(url).await?;
        let response = match self.answered(&response).await? {
            None => response,
            Some(header) => {
                *self.authorization.lock().await = Some(header);
                self.send(url).await?
            }
        };
        match response.status() {
            status if status.is_success() => Ok(response),
            _ => Err(transport::refusal(response).await),
        }
    }

    async fn send(&self, url: &Url) -> Result<Response, Failure> {
        let mut builder = self.client.get(url.clone()).header(ACCEPT, MANIFEST_TYPES);
        if let Some(header) = self.authorization.lock().await.clone() {
            builder = builder.header(AUTHORIZATION, header);
        }
        self.within(builder).await
    }

    /// The header that answers a challenge; `None` where there is none.
    async fn answered(&self, response: &Response) -> Result<Option<HeaderValue>, Failure> {
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(None);
        }
        let challenges = response.headers().get_all(WWW_AUTHENTICATE).iter();
        let challenge = challenges
            .filter_map(|value| value.to_str().ok())
            .find_map(registry::challenge);
        let header = match challenge {
            Some(Challenge::Basic) => self.basic_header(),
            Some(Challenge::Bearer {
                realm,
                service,
                scope,
            }) => Some(self.token(&realm, service, scope).await?),
            None => None,
        };
        Ok(header)
    }

    fn basic_header(&self) -> Option<HeaderValue> {
        transport::authorization("Basic", self.basic.as_ref()?).ok()
    }

    async fn token(
        &self,
        realm: &str,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<HeaderValue, Failure> {
        let mut url = Url::parse(realm)
            .map_err(|error| fatal(format!("the registry's token server is no URL: {error}")))?;
        if url.scheme() != "https" && self.base.scheme() == "https" {
            return Err(fatal(
                "the registry sends credentials over plain HTTP; refusing to",
            ));
        }
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.file.repository));
        url.query_pairs_mut()
            .extend_pairs(service.map(|service| ("service", service)))
            .append_pair("scope", &scope);
        let mut builder = self.client.get(url);
        if let Some(header) = self.basic_header() {
            builder = builder.header(AUTHORIZATION, header);
        }
        let response = self.within(builder).await?;
        if !response.status().is_success() {
            return Err(transport::refusal(response).await);
        }
        let token = registry::token(&read(response).await?)
            .ok_or_else(|| fatal("the registry's token server gives no token"))?;
        transport::authorization("Bearer", &token).map_err(fatal)
    }

    async fn within(&self, builder: reqwest::RequestBuilder) -> Result<Response, Failure> {
        let sent = tokio::time::timeout(self.stall, builder.send()).await;
        let sent = sent.map_err(|_| transient(format!("no answer within {:?}", self.stall)))?;
        sent.map_err(|error| transport::connection_failure(&error))
    }

    fn url(&self, segments: &[&str]) -> Result<Url, Failure> {
        joined(&self.base, segments.iter().copied()).map_err(fatal)
    }
}

fn base(file: &OciFile, endpoint: Option<&Url>) -> Result<Url, String> {
    let host = match file.registry.as_str() {
        // The name of the image is not the name of the host.
        "docker.io" => "registry-1.docker.io",
        host => host,
    };
    let parse =
        |scheme| Url::parse(&format!("{scheme}://{host}")).map_err(|error| error.to_string());
    let secure = parse("https")?;
    let registry = match endpoint {
        Some(endpoint) => endpoint.clone(),
        // Registries of this machine have no certificates.
        None if is_loopback(&secure) => parse("http")?,
        None => secure,
    };
    let segments = std::iter::once("v2").chain(file.repository.split('/'));
    joined(&registry, segments)
}

/// A small body, whole.
async fn read(mut response: Response) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| transient(transport::chain(&error)))?
    {
        body.extend_from_slice(&chunk);
        if body.len() > MANIFEST_BYTES {
            return Err(fatal("the registry's manifest is larger than 4 MiB"));
        }
    }
    Ok(body)
}
