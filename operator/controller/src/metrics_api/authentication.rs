//! Who asks: the API server's aggregation layer says it, and proves with a certificate that it is the one.
//!
//! The rules are those of Kubernetes' `requestheader` authenticator: the headers count only on a connection whose client
//! showed a certificate of the front proxy's authority with one of the allowed names.

use std::{collections::BTreeMap, sync::Arc};

use axum::http::HeaderMap;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The group of everybody who is known.
const AUTHENTICATED: &str = "system:authenticated";
/// No honest user is in more.
const MOST_GROUPS: usize = 1024;

/// How to know the aggregation layer, as the API server publishes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontProxy {
    authorities: String,
    /// Empty: every name of the authority.
    allowed_names: Vec<String>,
    user_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// Name.
    pub name: String,
    /// Groups, with that of everybody who is known.
    pub groups: Vec<String>,
    /// What else is known of them.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What the API server published cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The aggregation layer has no certificate authority.
    #[error(
        "{0} is not in ConfigMap kube-system/extension-apiserver-authentication: start the API server with --requestheader-client-ca-file and its kin"
    )]
    Missing(&'static str),
    /// A value is not what it should be.
    #[error("{key} of ConfigMap kube-system/extension-apiserver-authentication: {reason}")]
    Malformed {
        /// Whose value.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl FrontProxy {
    /// Reads ConfigMap `kube-system/extension-apiserver-authentication`.
    pub fn read(data: &BTreeMap<String, String>) -> Result<Self, TrustError> {
        const AUTHORITIES: &str = "requestheader-client-ca-file";
        let authorities = data
            .get(AUTHORITIES)
            .ok_or(TrustError::Missing(AUTHORITIES))?;
        let read = Self {
            authorities: authorities.clone(),
            allowed_names: list(data, "requestheader-allowed-names")?,
            user_headers: list(data, "requestheader-username-headers")?,
            group_headers: list(data, "requestheader-group-headers")?,
            extra_prefixes: list(data, "requestheader-extra-headers-prefix")?,
        };
        if read.user_headers.is_empty() {
            return Err(TrustError::Missing("requestheader-username-headers"));
        }
        Ok(read)
    }

    /// Lets in clients with a certificate of the authority, and, to be told that they are unknown, clients without one.
    pub fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, TrustError> {
        let wrong = |reason: String| TrustError::Malformed {
            key: "requestheader-client-ca-file",
            reason,
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.authorities.as_bytes()) {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| wrong(error.to_string()))?;
        }
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated();
        let verifier = verifier.build().map_err(|error| wrong(error.to_string()))?;
        Ok(verifier)
    }

    /// Who asks, by the headers of one whose certificate has this name. Nobody without a certificate, without an allowed
    /// name, or without a user.
    pub fn user(&self, common_name: Option<&str>, headers: &HeaderMap) -> Option<User> {
        let common_name = common_name?;
        let allowed = self.allowed_names.is_empty()
            || self.allowed_names.iter().any(|name| name == common_name);
        let name = self.user_headers.iter().find_map(|header| {
            let value = headers.get(header)?.to_str().ok()?;
            (!value.is_empty()).then(|| value.to_owned())
        })?;
        allowed.then(|| User {
            name,
            groups: self.groups(headers),
            extra: self.extra(headers),
        })
    }

    fn groups(&self, headers: &HeaderMap) -> Vec<String> {
        let told = self
            .group_headers
            .iter()
            .flat_map(|header| headers.get_all(header));
        let mut groups: Vec<String> = told
            .filter_map(|value| value.to_str().ok().map(str::to_owned))
            .take(MOST_GROUPS)
            .collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        groups
    }

    fn extra(&self, headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            let keys = self.extra_prefixes.iter().filter_map(|prefix| {
                let prefix = prefix.to_ascii_lowercase();
                name.as_str().strip_prefix(&*prefix)
            });
            let (Some(key), Ok(value)) = (keys.into_iter().next(), value.to_str()) else {
                continue;
            };
            let values = extra.entry(unescaped(key)).or_default();
            values.push(value.to_owned());
        }
        extra
    }
}

/// Keys of extras are percent-encoded in headers. One that is not is taken as it is.
fn unescaped(key: &str) -> String {
    let decoded = percent_encoding::percent_decode_str(key).decode_utf8();
    decoded.map_or_else(|_| key.to_owned(), std::borrow::Cow::into_owned)
}

fn list(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<String>, TrustError> {
    let Some(text) = data.get(key).filter(|text| !text.is_empty()) else {
        return Ok(Vec::new());
    };
    serde_json::from_str::<Option<Vec<String>>>(text)
        .map(Option::unwrap_or_default)
        .map_err(|error| TrustError::Malformed {
            key,
            reason: error.to_string(),
        })
}

/// The name that a certificate was made out to.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(names: &str) -> FrontProxy {
        let data = [
            ("requestheader-client-ca-file", "PEM"),
            ("requestheader-allowed-names", names),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            (
                "requestheader-extra-headers-prefix",
                r#"["X-Remote-Extra-"]"#,
            ),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value.to_owned()));
        FrontProxy::read(&data.into()).expect("what the API server publishes")
    }

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", "ann".parse().expect("a value"));
        headers.append("x-remote-group", "a".parse().expect("a value"));
        headers.append("x-remote-group", "b".parse().expect("a value"));
        headers.insert(
            "x-remote-extra-scopes%2fx",
            "read".parse().expect("a value"),
        );
        headers
    }

    #[test]
    fn the_aggregation_layer_is_believed_who_asks() {
        let user = proxy(r#"["front-proxy-client"]"#).user(Some("front-proxy-client"), &headers());
        let user = user.expect("it is the aggregation layer");
        assert_eq!(user.name, "ann");
        assert_eq!(user.groups, ["a", "b", AUTHENTICATED]);
        assert_eq!(user.extra["scopes/x"], ["read"]);
    }

    #[test]
    fn headers_of_others_count_for_nothing() {
        let strict = proxy(r#"["front-proxy-client"]"#);
        assert_eq!(strict.user(None, &headers()), None);
        assert_eq!(strict.user(Some("kubelet"), &headers()), None);
        assert_eq!(
            strict.user(Some("front-proxy-client"), &HeaderMap::new()),
            None
        );
        // No names: whoever has a certificate of the authority.
        assert!(proxy("[]").user(Some("anybody"), &headers()).is_some());
        assert_eq!(proxy("[]").user(None, &headers()), None);
    }

    #[test]
    fn an_api_server_without_an_aggregation_layer_is_said() {
        let error = FrontProxy::read(&BTreeMap::new()).expect_err("nothing is published");
        assert!(
            error.to_string().contains("--requestheader-client-ca-file"),
            "{error}"
        );
    }
}
