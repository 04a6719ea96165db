//! Trust: the public web's roots, and a private authority where the user names one.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// A client configuration, or a sentence that says what is wrong with the extra certificates.
pub(crate) fn client_config(extra_ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    if let Some(path) = extra_ca_file {
        let failed =
            |error: String| format!("cannot use the certificates in {}: {error}", path.display());
        for certificate in
            CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))?
        {
            let certificate = certificate.map_err(|error| failed(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| failed(error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
