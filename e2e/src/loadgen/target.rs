//! Where load may go: this machine, and the cluster that runs on it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use reqwest::Url;
use thiserror::Error;

/// Why load is not sent somewhere.
#[derive(Debug, Error)]
pub enum TargetError {
    /// It is no address of an HTTP server.
    #[error("--url {0} is not an address such as http://127.0.0.1:8080")]
    NotHttp(String),
    /// Its name has no address.
    #[error("failed to find the address of {host}")]
    Resolve {
        /// The name.
        host: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It is elsewhere.
    #[error(
        "{host} is {address}, which is neither this machine (127.0.0.0/8, ::1) nor the local cluster (198.18.0.0/15); load on a server that is not yours is an attack: give --allow-any-target if it is yours"
    )]
    Elsewhere {
        /// The name or address given.
        host: String,
        /// Where it leads.
        address: IpAddr,
    },
}

/// A server that load may be sent to. Its addresses are fixed here, once: a name that changes its mind later changes nothing.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where chats go.
    pub chat_url: Url,
    /// The host as the URL names it.
    pub host: String,
    /// Where it leads.
    pub addresses: Vec<SocketAddr>,
}

impl Target {
    /// Checks `url` (the server's base, with or without `/v1`) and resolves its host.
    pub async fn resolve(url: &str, allow_any: bool) -> Result<Self, TargetError> {
        let not_http = || TargetError::NotHttp(url.to_owned());
        let base = Url::parse(url)
            .ok()
            .filter(|base| matches!(base.scheme(), "http" | "https"))
            .ok_or_else(not_http)?;
        let host = base.host_str().ok_or_else(not_http)?.to_owned();
        let port = base.port_or_known_default().ok_or_else(not_http)?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let resolved = tokio::net::lookup_host((bare, port)).await;
        let addresses: Vec<_> = resolved
            .map_err(|source| TargetError::Resolve {
                host: host.clone(),
                source,
            })?
            .collect();
        if let Some(elsewhere) = addresses
            .iter()
            .find(|address| !allow_any && !is_local(address.ip()))
        {
            return Err(TargetError::Elsewhere {
                host,
                address: elsewhere.ip(),
            });
        }
        Ok(Self {
            chat_url: chat_url(&base).ok_or_else(not_http)?,
            host,
            addresses,
        })
    }
}

fn chat_url(base: &Url) -> Option<Url> {
    let path = base.path().trim_end_matches('/').trim_end_matches("/v1");
    base.join(&format!("{path}/v1/chat/completions")).ok()
}

/// Loopback, or the range that RFC 2544 sets aside for benchmarks and the local cluster uses.
fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            address.is_loopback()
                || u32::from(address) >> 17 == u32::from(Ipv4Addr::new(198, 18, 0, 0)) >> 17
        }
        IpAddr::V6(address) => address.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_and_the_local_cluster_are_local() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "198.18.0.0",
            "198.19.255.255",
            "::ffff:127.0.0.1",
        ] {
            assert!(is_local(address.parse().expect("an address")), "{address}");
        }
        for address in [
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "198.17.255.255",
            "198.20.0.0",
            "8.8.8.8",
            "0.0.0.0",
            "::",
            "fe80::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!is_local(address.parse().expect("an address")), "{address}");
        }
    }

    #[tokio::test]
    async fn other_servers_are_refused_unless_allowed() {
        let refused = Target::resolve("http://10.1.2.3:80", false)
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("--allow-any-target"));
        Target::resolve("http://10.1.2.3:80", true)
            .await
            .expect("allowed");
        for url in ["10.1.2.3", "ftp://127.0.0.1", "http://"] {
            assert!(
                matches!(
                    Target::resolve(url, true).await,
                    Err(TargetError::NotHttp(_))
                ),
                "{url}"
            );
        }
    }

    #[tokio::test]
    async fn the_base_may_end_in_v1_or_not() {
        for (url, chat) in [
            (
                "http://127.0.0.1:1",
                "http://127.0.0.1:1/v1/chat/completions",
            ),
            (
                "http://127.0.0.1:1/v1/",
                "http://127.0.0.1:1/v1/chat/completions",
            ),
            (
                "http://[::1]:1/models/v1",
                "http://[::1]:1/models/v1/chat/completions",
            ),
        ] {
            assert_eq!(
                Target::resolve(url, false)
                    .await
                    .expect("local")
                    .chat_url
                    .as_str(),
                chat
            );
        }
    }
}
