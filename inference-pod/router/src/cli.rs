//! The command line, parsed once into what the parts need.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use pagoda_crds::names::{GATEWAY_ADMIN_PORT, GATEWAY_PORT};

use crate::access_log::AccessLog;
use crate::body::ReadLimits;
use crate::proxy::ProxyConfig;
use crate::server::ServerConfig;
use crate::upstream::UpstreamConfig;

/// Pagoda's gateway: takes OpenAI requests for every model of the cluster and passes each to the pod
/// that serves it, holding requests while a model has no pod.
///
/// It learns models and pods from the cluster it runs in, or from the current context of the kubeconfig.
#[derive(Clone, Debug, Parser)]
#[command(name = "pagoda-gateway", version)]
pub struct Args {
    /// Address to take requests on
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], GATEWAY_PORT)), value_name = "IP:PORT")]
    pub listen: SocketAddr,

    /// Address of /healthz, /readyz and /metrics
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], GATEWAY_ADMIN_PORT)), value_name = "IP:PORT")]
    pub admin_listen: SocketAddr,

    /// Context of the kubeconfig to use instead of the current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// Namespaces to watch, separated by commas; the whole cluster when empty
    #[arg(long, env = "WATCH_NAMESPACES", value_delimiter = ',', value_name = "NAMESPACES", value_parser = namespace)]
    pub watch_namespaces: Vec<String>,

    /// JSON file with models and pods, to run without a cluster: a list of objects with namespace, name, models and endpoints
    #[arg(long, value_name = "FILE", conflicts_with = "context")]
    pub static_routes: Option<PathBuf>,

    /// Largest request body, in bytes
    #[arg(long, default_value_t = 4 << 20, value_name = "BYTES")]
    pub max_body_bytes: usize,

    /// Most memory for request bodies of all clients, in bytes
    #[arg(long, default_value_t = 256 << 20, value_name = "BYTES")]
    pub body_memory_bytes: usize,

    /// Most memory for the held requests of one model, in bytes
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    pub hold_memory_bytes: usize,

    /// Most client connections at once; further ones wait
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub max_connections: usize,

    /// How often a request may be begun by a pod when pods fail before they answer
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10))]
    pub max_attempts: u32,

    /// Longest time for a client to send a request's head, idle time between requests included
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub client_head_timeout_seconds: u64,

    /// Longest silence of a client while it sends a body
    #[arg(long, default_value_t = 15, value_name = "SECONDS")]
    pub client_body_timeout_seconds: u64,

    /// Longest time that a client may take nothing of its response
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub client_write_timeout_seconds: u64,

    /// Longest time for a pod to begin its answer
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub pod_head_timeout_seconds: u64,

    /// Longest silence of a pod in the middle of its answer
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub pod_stall_timeout_seconds: u64,

    /// Longest time to connect to a pod
    #[arg(long, default_value_t = 2000, value_name = "MILLISECONDS")]
    pub pod_connect_timeout_milliseconds: u64,

    /// After SIGTERM: how long requests are still taken, for clients that learn of it late
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    pub shutdown_grace_seconds: u64,

    /// After that: how long open responses are waited for
    #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
    pub drain_seconds: u64,

    /// Which requests to log (never with their prompts)
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    pub access_log: AccessLog,

    /// Name the pod that answered in the response header X-Pagoda-Pod
    #[arg(long)]
    pub name_pod: bool,

    /// What to log, as in warn or info,pagoda_router=debug
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
}

/// A namespace's name, or nothing (an empty list has one empty element).
fn namespace(text: &str) -> Result<String, String> {
    let name = text.trim();
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.len() <= 63 && name.bytes().all(allowed) {
        Ok(name.to_owned())
    } else {
        Err("a namespace's name has at most 63 lower-case letters, digits and hyphens".into())
    }
}

/// A body may take this many times its longest silence in all.
const TOTAL_BODY_TIMEOUTS: u32 = 8;

impl Args {
    /// Bounds on clients.
    pub fn server(&self) -> ServerConfig {
        ServerConfig {
            max_connections: self.max_connections,
            head_timeout: Duration::from_secs(self.client_head_timeout_seconds),
            write_timeout: Duration::from_secs(self.client_write_timeout_seconds),
        }
    }

    /// How requests are proxied.
    pub fn proxy(&self) -> ProxyConfig {
        let idle_timeout = Duration::from_secs(self.client_body_timeout_seconds);
        ProxyConfig {
            body: ReadLimits {
                max_bytes: self.max_body_bytes,
                idle_timeout,
                total_timeout: idle_timeout * TOTAL_BODY_TIMEOUTS,
            },
            body_memory_bytes: self.body_memory_bytes,
            max_attempts: self.max_attempts,
            stall_timeout: Duration::from_secs(self.pod_stall_timeout_seconds),
            upstream: UpstreamConfig {
                connect_timeout: Duration::from_millis(self.pod_connect_timeout_milliseconds),
                head_timeout: Duration::from_secs(self.pod_head_timeout_seconds),
                ..UpstreamConfig::default()
            },
            access_log: self.access_log,
            name_pod: self.name_pod,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    fn watched(argument: &str) -> Option<Vec<String>> {
        let args = Args::try_parse_from(["pagoda-gateway", "--watch-namespaces", argument]).ok()?;
        Some(args.watch_namespaces)
    }

    #[test]
    fn namespaces_are_a_list_separated_by_commas_and_may_be_empty() {
        let named = watched("team-a, team-b").expect("accepted");
        assert_eq!(named, ["team-a", "team-b"]);
        assert_eq!(
            crate::watch::scopes(&watched("").expect("accepted")).len(),
            1
        );
        assert_eq!(watched("team-a/../x"), None);
        assert_eq!(watched("Team"), None);
    }
}
