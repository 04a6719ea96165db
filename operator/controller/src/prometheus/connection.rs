//! A client for one server, made anew when the files that it stands on change: tokens are renewed under our feet.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::HeaderValue;
use prometheus_http_query::Client;
use reqwest::redirect::Policy;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::config::{Credentials, Server, read_bounded};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const IDLE: Duration = Duration::from_secs(30);
const IDLE_CONNECTIONS: usize = 4;
const MOST_AUTHORITIES: u64 = 1 << 20;
const MOST_SECRET: u64 = 64 << 10;

/// Why no client can be made. Holds nothing of what stands in the files.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// A file cannot be read.
    #[error("failed to read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What went wrong.
        source: io::Error,
    },
    /// The authorities are none.
    #[error("{0} holds no certificate in PEM form")]
    Authorities(String),
    /// A token, name or password cannot stand in a header.
    #[error("{0} is empty or holds characters that no header can")]
    Secret(String),
    /// The client cannot be made.
    #[error("failed to set up the connection: {0}")]
    Client(String),
}

/// What one question needs.
pub struct Connection {
    /// Speaks with the server.
    pub client: Client,
    /// Shows who asks.
    pub authorization: Option<HeaderValue>,
    /// Whether the server takes no POST.
    pub takes_get_only: AtomicBool,
    files: Vec<Option<(u64, u64, i64, i64)>>,
}

/// The present client of a server.
pub struct Connections {
    server: Server,
    present: Mutex<Option<Arc<Connection>>>,
}

impl Connections {
    /// None yet.
    pub fn to(server: Server) -> Self {
        Self {
            server,
            present: Mutex::default(),
        }
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// A client that knows what stands in the files now.
    pub fn get(&self) -> Result<Arc<Connection>, ConnectionError> {
        let files = self.fingerprint();
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = present.as_ref().filter(|c| c.files == files) {
            return Ok(connection.clone());
        }
        let made = Arc::new(Connection {
            client: client(&self.server)?,
            authorization: authorization(&self.server.credentials)?,
            takes_get_only: AtomicBool::new(false),
            files,
        });
        *present = Some(made.clone());
        Ok(made)
    }

    /// What changes when a file is written anew or, as in a mounted Secret, replaced.
    fn fingerprint(&self) -> Vec<Option<(u64, u64, i64, i64)>> {
        let of = |path: &std::path::PathBuf| {
            let metadata = fs::metadata(path).ok()?;
            Some((
                metadata.ino(),
                metadata.size(),
                metadata.mtime(),
                metadata.mtime_nsec(),
            ))
        };
        let authorities = self.server.ca_file.iter();
        let secrets = match &self.server.credentials {
            Credentials::None => vec![],
            Credentials::BearerToken(token) => vec![token],
            Credentials::Basic(files) => vec![&files.username_file, &files.password_file],
        };
        authorities.chain(secrets).map(of).collect()
    }
}

impl Connection {
    /// Remembers that the server takes no POST.
    pub fn use_get(&self) {
        self.takes_get_only.store(true, Ordering::Relaxed);
    }
}

fn client(server: &Server) -> Result<Client, ConnectionError> {
    let failed = |error: &dyn std::error::Error| ConnectionError::Client(error.to_string());
    let tls =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(roots(server.ca_file.as_deref())?)
            .with_no_client_auth();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        // A redirect would show the credentials to whomever the server names.
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(server.timeout)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .user_agent(concat!("pagoda-operator/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| failed(&error))?;
    Client::from(client, server.url.as_str().trim_end_matches('/')).map_err(|error| failed(&error))
}

/// The authorities of the file, or else the public web's that the program carries: the image has no system's.
fn roots(file: Option<&Path>) -> Result<RootCertStore, ConnectionError> {
    let Some(file) = file else {
        return Ok(RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        });
    };
    let text = read(file, MOST_AUTHORITIES)?;
    let none = || ConnectionError::Authorities(file.display().to_string());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        roots
            .add(certificate.map_err(|_| none())?)
            .map_err(|_| none())?;
    }
    if roots.is_empty() {
        Err(none())
    } else {
        Ok(roots)
    }
}

fn authorization(credentials: &Credentials) -> Result<Option<HeaderValue>, ConnectionError> {
    let (text, path) = match credentials {
        Credentials::None => return Ok(None),
        Credentials::BearerToken(path) => (format!("Bearer {}", secret(path)?), path),
        Credentials::Basic(files) => {
            let user = secret(&files.username_file)?;
            let password = secret(&files.password_file)?;
            let pair = BASE64_STANDARD.encode(format!("{user}:{password}"));
            (format!("Basic {pair}"), &files.password_file)
        }
    };
    let unfit = |_| ConnectionError::Secret(path.display().to_string());
    let mut value = HeaderValue::from_str(&text).map_err(unfit)?;
    // Keeps it out of every debug output.
    value.set_sensitive(true);
    Ok(Some(value))
}

/// What stands in a file, without the end of line that editors add.
fn secret(path: &Path) -> Result<String, ConnectionError> {
    let unfit = || ConnectionError::Secret(path.display().to_string());
    let text = String::from_utf8(read(path, MOST_SECRET)?).map_err(|_| unfit())?;
    let text = text.trim_end_matches(['\n', '\r']).to_owned();
    if text.is_empty() {
        Err(unfit())
    } else {
        Ok(text)
    }
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, ConnectionError> {
    read_bounded(path, most).map_err(|source| ConnectionError::Read {
        path: path.display().to_string(),
        source,
    })
}
