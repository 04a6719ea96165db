//! The certificates that the APIs are served with: an authority of our own, which signs nothing else, and what it signed.
//!
//! Both live in a Secret, so that the next leader goes on with them. The API server learns the authority through the
//! `caBundle` of the APIServices. An authority is replaced long before it ends, and its predecessor stays in the bundle until
//! it has ended, so that no API server refuses whom another still has to learn.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::danger::ClientCertVerifier,
};
use time::{Duration, OffsetDateTime};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

const AUTHORITY_LIFE: Duration = Duration::days(5 * 365);
const CERTIFICATE_LIFE: Duration = Duration::days(90);
/// Clocks need not agree to the minute.
const BEFORE: Duration = Duration::hours(1);
/// Renewed when less than a third of a life is left.
const LATE: i32 = 3;
const AUTHORITY_NAME: &str = "pagoda-metrics-ca";

const BUNDLE: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Certificates and keys, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// Authorities, the newest first.
    bundle: String,
    authority_key: String,
    certificate: String,
    key: String,
}

/// A certificate cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// It cannot be made.
    #[error("failed to make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// It cannot be used.
    #[error("failed to use the certificate: {0}")]
    Use(#[from] rustls::Error),
    /// What lies in the Secret cannot be read.
    #[error("failed to read a certificate or key: {0}")]
    Read(String),
}

impl Keys {
    /// What lies in a Secret; none in one that is empty or lacks a part.
    pub fn read(data: &BTreeMap<String, ByteString>) -> Option<Self> {
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        Some(Self {
            bundle: text(BUNDLE)?,
            authority_key: text(AUTHORITY_KEY)?,
            certificate: text(CERTIFICATE)?,
            key: text(KEY)?,
        })
    }

    /// What to lay into a Secret.
    pub fn data(&self) -> BTreeMap<String, ByteString> {
        let parts = [
            (BUNDLE, &self.bundle),
            (AUTHORITY_KEY, &self.authority_key),
            (CERTIFICATE, &self.certificate),
            (KEY, &self.key),
        ];
        let entry = |(name, text): (&str, &String)| {
            (name.to_owned(), ByteString(text.clone().into_bytes()))
        };
        parts.map(entry).into()
    }

    /// Whom clients should believe.
    pub fn bundle(&self) -> &str {
        &self.bundle
    }

    /// How to serve with them.
    pub fn server(
        &self,
        clients: Arc<dyn ClientCertVerifier>,
    ) -> Result<ServerConfig, CertificateError> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .map_err(|error| CertificateError::Read(error.to_string()))?;
        let builder = ServerConfig::builder().with_client_cert_verifier(clients);
        let mut server = builder.with_single_cert(chain, key)?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(server)
    }
}

/// What should lie in the Secret in which `before` does, for a server of these names. The same, unless something is
/// missing, spoilt, late or made out to other names.
pub fn renewed(
    before: Option<&Keys>,
    names: &[String],
    now: OffsetDateTime,
) -> Result<Keys, CertificateError> {
    let usable = before.filter(|keys| is_timely(first(&keys.bundle).as_ref(), AUTHORITY_LIFE, now));
    let authority = usable.and_then(|keys| KeyPair::from_pem(&keys.authority_key).ok());
    let Some((keys, authority)) = usable.zip(authority) else {
        return anew(before, names, now);
    };
    let certificate = first(&keys.certificate);
    if is_timely(certificate.as_ref(), CERTIFICATE_LIFE, now)
        && certificate
            .as_ref()
            .is_some_and(|found| is_for(found, names))
        && KeyPair::from_pem(&keys.key).is_ok()
    {
        return Ok(keys.clone());
    }
    let (certificate, key) = sign(
        &Issuer::new(authority_parameters(now)?, authority),
        names,
        now,
    )?;
    Ok(Keys {
        certificate,
        key,
        ..keys.clone()
    })
}

/// A new authority; earlier ones are believed until they end.
fn anew(
    before: Option<&Keys>,
    names: &[String],
    now: OffsetDateTime,
) -> Result<Keys, CertificateError> {
    let parameters = authority_parameters(now)?;
    let key = KeyPair::generate()?;
    let mut bundle = parameters.self_signed(&key)?.pem();
    let former = before.and_then(|keys| first(&keys.bundle).map(|found| (keys, found)));
    if let Some((keys, found)) = former
        && ends(&found).is_some_and(|end| end > now.unix_timestamp())
    {
        bundle.push_str(first_text(&keys.bundle));
    }
    let authority_key = key.serialize_pem();
    let (certificate, key) = sign(&Issuer::new(parameters, key), names, now)?;
    Ok(Keys {
        bundle,
        authority_key,
        certificate,
        key,
    })
}

fn authority_parameters(now: OffsetDateTime) -> Result<CertificateParams, CertificateError> {
    let mut parameters = parameters(AUTHORITY_NAME, Vec::new(), AUTHORITY_LIFE, now)?;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(parameters)
}

/// Certificate and key.
fn sign(
    issuer: &Issuer<'_, KeyPair>,
    names: &[String],
    now: OffsetDateTime,
) -> Result<(String, String), CertificateError> {
    let common_name = names.first().map_or("pagoda-metrics", String::as_str);
    let mut parameters = parameters(common_name, names.to_vec(), CERTIFICATE_LIFE, now)?;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    Ok((
        parameters.signed_by(&key, issuer)?.pem(),
        key.serialize_pem(),
    ))
}

fn parameters(
    common_name: &str,
    names: Vec<String>,
    life: Duration,
    now: OffsetDateTime,
) -> Result<CertificateParams, CertificateError> {
    let mut parameters = CertificateParams::new(names)?;
    parameters.distinguished_name = DistinguishedName::new();
    // A name in a subject is at most 64 characters long.
    let common_name: String = common_name.chars().take(64).collect();
    parameters
        .distinguished_name
        .push(DnType::CommonName, common_name);
    // Of one authority no two certificates may have the same.
    let serial = now.unix_timestamp_nanos().unsigned_abs().to_be_bytes();
    parameters.serial_number = Some(SerialNumber::from_slice(&serial[4..]));
    parameters.not_before = now - BEFORE;
    parameters.not_after = now + life;
    Ok(parameters)
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| CertificateError::Read(error.to_string()))
}

fn first(pem: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).next()?.ok()
}

/// The text of the first certificate alone.
fn first_text(pem: &str) -> &str {
    const END: &str = "-----END CERTIFICATE-----";
    let end = pem.find(END).map_or(pem.len(), |at| at + END.len());
    pem.get(..end + 1).unwrap_or(pem)
}

fn is_timely(
    certificate: Option<&CertificateDer<'_>>,
    life: Duration,
    now: OffsetDateTime,
) -> bool {
    certificate.and_then(ends).is_some_and(|end| {
        let left = end - now.unix_timestamp();
        left > (life / LATE).whole_seconds()
    })
}

fn ends(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

fn is_for(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return false;
    };
    let Ok(Some(told)) = certificate.subject_alternative_name() else {
        return false;
    };
    let told: Vec<&str> = told
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        })
        .collect();
    told == names
}

#[cfg(test)]
mod tests;
