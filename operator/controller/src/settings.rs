//! Flags and environment.

use clap::{ArgAction, Parser};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pagoda_crds::names;
use pagoda_operator_core::quantity::parse_whole;
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

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
    /// Namespaces to look after, separated by commas; all when empty
    #[arg(
        long,
        alias = "watch-namespace",
        env = "WATCH_NAMESPACES",
        value_delimiter = ','
    )]
    pub watch_namespaces: Vec<String>,
    /// Watch Nodes, to say when none can ever hold a service's pods
    #[arg(long, env = "WATCH_NODES", default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub watch_nodes: bool,
    /// Directory of each node in which pods share fetched models; without it each pod fetches for itself
    #[arg(long, env = "MODEL_CACHE_PATH", requires = "model_cache_bytes")]
    pub model_cache_path: Option<String>,
    /// Most bytes of that directory for each namespace and node, such as 200Gi
    #[arg(long, env = "MODEL_CACHE_BYTES", requires = "model_cache_path", value_parser = bytes)]
    pub model_cache_bytes: Option<u64>,
    /// File with the Prometheus servers that services may scale by, as JSON; none by default
    #[arg(long, env = "PROMETHEUS_CONFIG")]
    pub prometheus_config: Option<PathBuf>,
    /// Where traces of reconciles go (OTLP over HTTP, such as http://collector:4318); nowhere by default
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
    /// Seconds after which the API server ends a watch and it is begun anew
    #[arg(long, env = "WATCH_SECONDS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=600), hide = true)]
    pub watch_seconds: u32,
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
    /// Address of the metrics APIs external.metrics.k8s.io and custom.metrics.k8s.io, by TLS; not served by default
    #[arg(long, env = "METRICS_LISTEN")]
    pub metrics_listen: Option<SocketAddr>,
    /// Address of KEDA's external scaler, by gRPC; not served by default
    #[arg(long, env = "KEDA_LISTEN")]
    pub keda_listen: Option<SocketAddr>,
    /// Address at which others reach this process
    #[arg(long, env = "POD_IP")]
    pub pod_ip: Option<IpAddr>,
    /// Services that may start from zero at once in the whole cluster; the others wait their turn. 0 for as many as are asked for
    #[arg(long, env = "MAX_COLD_STARTS", default_value_t = 0)]
    pub max_cold_starts: usize,
    /// Objects that are reconciled at once
    #[arg(long, env = "CONCURRENCY", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Log as JSON, one object a line, or as text
    #[arg(long, env = "LOG_FORMAT", default_value = "json", value_parser = ["json", "text"])]
    pub log_format: String,
}

impl Settings {
    /// Namespaces to look after; `None` alone for all.
    pub fn scopes(&self) -> Vec<Option<&str>> {
        let named: BTreeSet<&str> = self
            .watch_namespaces
            .iter()
            .map(|n| n.trim())
            .filter(|n| !n.is_empty())
            .collect();
        if named.is_empty() {
            vec![None]
        } else {
            named.into_iter().map(Some).collect()
        }
    }

    /// Base address of the gateway inside the cluster.
    pub fn gateway_url(&self) -> String {
        format!(
            "http://{}.{}/v1",
            self.gateway_service, self.system_namespace
        )
    }
}

/// A Kubernetes quantity in whole bytes.
fn bytes(text: &str) -> Result<u64, String> {
    parse_whole(&Quantity(text.to_owned()))
        .ok()
        .and_then(|bytes| u64::try_from(bytes).ok())
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "must be a number of bytes above zero, such as 200Gi".to_owned())
}
