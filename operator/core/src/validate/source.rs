//! `spec.model.source`.

use pagoda_crds::{api::ModelSource, names};

use super::{ModelUri, RemoteScheme, ValidateError};

/// A model's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where it lies.
    pub uri: ModelUri,
    /// Its SHA-256 in lower-case digits.
    pub sha256: Option<String>,
    /// Address to ask instead of the usual one; only with schemes that take one.
    pub endpoint: Option<String>,
    /// Region of the bucket; only with s3.
    pub region: Option<String>,
    /// Secret with what proves who asks; only with remote sources.
    pub secret_name: Option<String>,
}

impl Source {
    /// Name of the file's directory in a node's cache; `None` when it is not downloaded.
    pub fn cache_key(&self) -> Option<String> {
        let (_, uri) = self.uri.remote()?;
        let (endpoint, sha256) = (self.endpoint.as_deref(), self.sha256.as_deref());
        Some(names::cache_key(uri, endpoint, sha256))
    }
}

pub(super) fn validate(source: &ModelSource) -> Result<Source, ValidateError> {
    let sha256 = source.sha256.as_ref().map(|hash| hash.to_ascii_lowercase());
    let is_hash = |h: &String| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit());
    if !sha256.iter().all(is_hash) {
        return Err(ValidateError::Sha256);
    }
    let checked = Source {
        uri: ModelUri::parse(&source.uri)?,
        sha256,
        endpoint: source.endpoint.clone(),
        region: source.region.clone(),
        secret_name: source.credentials.as_ref().map(|c| c.secret_name.clone()),
    };
    check_companions(&checked)?;
    Ok(checked)
}

/// What stands beside the address must be well-formed, and go with its scheme.
fn check_companions(source: &Source) -> Result<(), ValidateError> {
    let scheme = source.uri.remote().map(|(scheme, _)| scheme);
    let takes_endpoint = scheme.is_some_and(RemoteScheme::takes_endpoint);
    let rules = [
        (
            source.endpoint.is_none() || takes_endpoint,
            "model.source.endpoint goes with hf, s3, gs and az sources; in others the address is the uri's own",
        ),
        (
            source.endpoint.as_deref().is_none_or(is_endpoint),
            "model.source.endpoint is written https://HOST, or http://HOST inside a network that is trusted, without user or password",
        ),
        (
            source.region.is_none() || scheme == Some(RemoteScheme::S3),
            "model.source.region goes with s3 sources",
        ),
        (
            source.region.as_deref().is_none_or(is_region),
            "model.source.region holds lower-case letters, digits and hyphens, such as eu-central-1",
        ),
        (
            source.secret_name.is_none() || scheme.is_some(),
            "model.source.credentials go with sources that are downloaded: https, hf, s3, gs, az, oci; images are pulled with podTemplate.spec.imagePullSecrets",
        ),
        (
            source
                .secret_name
                .as_deref()
                .is_none_or(super::is_object_name),
            "credentials.secretName is the name of a Secret in this namespace",
        ),
    ];
    match rules.into_iter().find(|(holds, _)| !holds) {
        Some((_, what)) => Err(ValidateError::Field(what)),
        None => Ok(()),
    }
}

fn is_endpoint(endpoint: &str) -> bool {
    let address = endpoint
        .strip_prefix("https://")
        .or_else(|| endpoint.strip_prefix("http://"));
    let Some(address) = address.filter(|_| endpoint.len() <= 512) else {
        return false;
    };
    let (host, path) = address.split_once('/').unwrap_or((address, ""));
    let plain = |b: u8| b.is_ascii_alphanumeric() || b".-:[]".contains(&b);
    let path_is_plain =
        !path.contains(|c: char| c.is_whitespace() || c.is_control() || c == '?' || c == '#');
    !host.is_empty() && host.bytes().all(plain) && path_is_plain
}

fn is_region(region: &str) -> bool {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    region.len() <= 64
        && region.bytes().next().is_some_and(lower)
        && region.bytes().all(|b| lower(b) || b == b'-')
}
