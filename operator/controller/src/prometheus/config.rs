//! Which Prometheus servers there are: a file of the administrator's, never an object of a user's.
//!
//! A user's object names a server; its address and its credentials are the operator's. So nobody has the operator send a
//! request to an address of their choice, and the operator needs no right to read a Secret: what is secret is mounted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::Url;
use serde::Deserialize;

/// More than any list of servers.
const MAX_BYTES: u64 = 1 << 20;
const MAX_SERVERS: usize = 64;

/// Why the servers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there, or cannot be read.
    #[error("failed to read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// It is no configuration.
    #[error("{} is no configuration of Prometheus servers: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A server's entry cannot work.
    #[error("the Prometheus server {name} cannot be used: {reason}")]
    Server {
        /// Its name.
        name: String,
        /// What to change.
        reason: &'static str,
    },
    /// More than are kept.
    #[error("{0} Prometheus servers are named, and {MAX_SERVERS} may be")]
    TooMany(usize),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigFile {
    servers: Vec<ServerEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServerEntry {
    name: String,
    url: String,
    #[serde(default)]
    ca_file: Option<PathBuf>,
    #[serde(default)]
    bearer_token_file: Option<PathBuf>,
    #[serde(default)]
    basic_auth: Option<BasicAuthFiles>,
    #[serde(default = "ten_seconds")]
    timeout_seconds: u64,
    #[serde(default)]
    allowed_namespaces: BTreeSet<String>,
}

fn ten_seconds() -> u64 {
    10
}

/// Files with a name and a password.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BasicAuthFiles {
    /// File with the name.
    pub username_file: PathBuf,
    /// File with the password.
    pub password_file: PathBuf,
}

/// What the operator shows of itself to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Nothing.
    None,
    /// The token in this file.
    BearerToken(PathBuf),
    /// The name and password in these files.
    Basic(BasicAuthFiles),
}

/// A server that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Base address: `http` or `https`, without user, query or fragment.
    pub url: Url,
    /// Authorities to trust instead of the public web's: certificates as PEM.
    pub ca_file: Option<PathBuf>,
    /// What to show.
    pub credentials: Credentials,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Namespaces whose services may have it asked; empty for all.
    pub allowed_namespaces: BTreeSet<String>,
}

impl Server {
    /// Whether services of a namespace may have it asked.
    pub fn allows(&self, namespace: &str) -> bool {
        self.allowed_namespaces.is_empty() || self.allowed_namespaces.contains(namespace)
    }

    /// Whether what it shows of itself travels where others can read it.
    pub fn shows_secrets_in_the_clear(&self) -> bool {
        self.url.scheme() == "http" && self.credentials != Credentials::None
    }

    fn of(entry: &ServerEntry) -> Result<Self, &'static str> {
        let url: Url = entry.url.parse().map_err(|_| "url is no address")?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err("url must begin with http:// or https:// and name a host");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("url holds a user or password: use basicAuth");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("url must end before any ? or #");
        }
        if entry.ca_file.is_some() && url.scheme() == "http" {
            return Err("caFile is of no use with http: use https");
        }
        if !(1..=60).contains(&entry.timeout_seconds) {
            return Err("timeoutSeconds must be from 1 to 60");
        }
        let credentials = match (&entry.bearer_token_file, &entry.basic_auth) {
            (None, None) => Credentials::None,
            (Some(token), None) => Credentials::BearerToken(token.clone()),
            (None, Some(files)) => Credentials::Basic(files.clone()),
            (Some(_), Some(_)) => return Err("set bearerTokenFile or basicAuth, not both"),
        };
        Ok(Self {
            url,
            ca_file: entry.ca_file.clone(),
            credentials,
            timeout: Duration::from_secs(entry.timeout_seconds),
            allowed_namespaces: entry.allowed_namespaces.clone(),
        })
    }
}

/// Servers by the names that services call them by.
pub type Servers = BTreeMap<String, Server>;

/// Reads a configuration: JSON, `{"servers": [{"name", "url", "caFile", "bearerTokenFile", "basicAuth": {"usernameFile",
/// "passwordFile"}, "timeoutSeconds", "allowedNamespaces"}]}`. An unknown field is an error: a misspelt `allowedNamespaces`
/// must not open a server to all.
pub fn read(path: &Path) -> Result<Servers, ConfigError> {
    let text = read_bounded(path, MAX_BYTES).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    let malformed = |error: serde_json::Error| ConfigError::Malformed {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    servers(serde_json::from_slice(&text).map_err(malformed)?)
}

fn servers(file: ConfigFile) -> Result<Servers, ConfigError> {
    if file.servers.len() > MAX_SERVERS {
        return Err(ConfigError::TooMany(file.servers.len()));
    }
    let mut servers = Servers::new();
    for entry in file.servers {
        let wrong = |reason: &'static str| ConfigError::Server {
            name: entry.name.clone(),
            reason,
        };
        if entry.name.is_empty() || entry.name.len() > 63 {
            return Err(wrong("name must have 1 to 63 characters"));
        }
        let server = Server::of(&entry).map_err(wrong)?;
        if servers.insert(entry.name.clone(), server).is_some() {
            return Err(wrong("another server has the same name"));
        }
    }
    Ok(servers)
}

/// A file that is no larger than `most` bytes.
pub(super) fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("it is larger than {most} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read_servers(servers_value: Value) -> Result<Servers, String> {
        let file = serde_json::from_value(json!({"servers": servers_value}));
        servers(file.map_err(|e| e.to_string())?).map_err(|e| e.to_string())
    }

    #[test]
    fn a_server_has_a_name_an_address_and_what_to_show() {
        let servers = read_servers(json!([
            {"name": "default", "url": "http://prometheus.monitoring:9090/prefix"},
            {"name": "far", "url": "https://metrics.example.com", "caFile": "/ca.crt", "timeoutSeconds": 3,
                "basicAuth": {"usernameFile": "/user", "passwordFile": "/password"}, "allowedNamespaces": ["team-a"]},
        ]))
        .expect("both can be used");
        let (near, far) = (&servers["default"], &servers["far"]);
        assert_eq!(near.timeout, Duration::from_secs(10));
        assert!(near.allows("anybody") && !near.shows_secrets_in_the_clear());
        assert!(far.allows("team-a") && !far.allows("team"));
        assert!(matches!(far.credentials, Credentials::Basic(_)));
    }

    #[test]
    fn what_cannot_work_is_refused_with_what_to_change() {
        let cases = [
            (json!({"name": "a", "url": "prometheus:9090"}), "http://"),
            (json!({"name": "a", "url": "ftp://host"}), "http://"),
            (json!({"name": "a", "url": "http://u:p@host"}), "basicAuth"),
            (
                json!({"name": "a", "url": "http://host/?x=1"}),
                "before any ?",
            ),
            (
                json!({"name": "a", "url": "http://host", "caFile": "/ca"}),
                "https",
            ),
            (
                json!({"name": "a", "url": "http://host", "timeoutSeconds": 0}),
                "from 1 to 60",
            ),
            (json!({"name": "", "url": "http://host"}), "1 to 63"),
            (
                json!({"name": "a", "url": "http://host", "insecureSkipVerify": true}),
                "unknown field",
            ),
            (
                json!({"name": "a", "url": "http://host", "allowedNamespace": ["x"]}),
                "unknown field",
            ),
            (
                json!({"name": "a", "url": "http://host", "bearerTokenFile": "/t",
                "basicAuth": {"usernameFile": "/u", "passwordFile": "/p"}}),
                "not both",
            ),
        ];
        for (entry, words) in cases {
            let refusal = read_servers(json!([entry])).expect_err("it is refused");
            assert!(refusal.contains(words), "{entry}: {refusal}");
            assert!(!refusal.contains("u:p"), "a password is told: {refusal}");
        }
        let twice = json!([{"name": "a", "url": "http://x"}, {"name": "a", "url": "http://y"}]);
        assert!(read_servers(twice).is_err_and(|e| e.contains("same name")));
    }

    #[test]
    fn a_credential_over_plain_http_is_noticed() {
        let servers =
            read_servers(json!([{"name": "a", "url": "http://x", "bearerTokenFile": "/t"}]));
        assert!(servers.is_ok_and(|s| s["a"].shows_secrets_in_the_clear()));
    }
}
