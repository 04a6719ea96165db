//! Flags and environment.

use clap::Parser;
use pagoda_crds::names;
use std::net::SocketAddr;

/// Runs InferenceServices: applies their pods, scales them and tells their status.
#[derive(Clone, Debug, Parser)]
#[command(name = "pagoda-operator", version)]
pub struct Settings {
    /// Image of the engine, with its tag or digest
    #[arg(long, env = "ENGINE_IMAGE")]
    pub engine_image: String,
    /// When nodes pull the engine's image: Always, IfNotPresent or Never
    #[arg(long, env = "ENGINE_IMAGE_PULL_POLICY", default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub engine_image_pull_policy: String,
    /// Only look after this namespace; by default after all
    #[arg(long, env = "WATCH_NAMESPACE")]
    pub watch_namespace: Option<String>,
    /// Namespace of the operator and of the gateway
    #[arg(long, env = "POD_NAMESPACE", default_value = names::SYSTEM_NAMESPACE)]
    pub system_namespace: String,
    /// Service of the gateway in that namespace
    #[arg(long, env = "GATEWAY_SERVICE", default_value = names::GATEWAY_SERVICE)]
    pub gateway_service: String,
    /// Lease in that namespace that the active operator holds
    #[arg(long, env = "LEASE_NAME", default_value = "pagoda-operator")]
    pub lease_name: String,
    /// Name of this process in the Lease; by default the host's name
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, env = "LISTEN", default_value_t = SocketAddr::from(([0, 0, 0, 0], names::OPERATOR_PORT)))]
    pub listen: SocketAddr,
    /// Objects that are reconciled at once
    #[arg(long, env = "CONCURRENCY", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Log as JSON, one object a line, or as text
    #[arg(long, env = "LOG_FORMAT", default_value = "json", value_parser = ["json", "text"])]
    pub log_format: String,
}

impl Settings {
    /// Base address of the gateway inside the cluster.
    pub fn gateway_url(&self) -> String {
        format!(
            "http://{}.{}/v1",
            self.gateway_service, self.system_namespace
        )
    }
}
