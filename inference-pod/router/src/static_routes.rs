//! Routes from a file instead of a cluster: for benchmarks, and for pods that run without Kubernetes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use crate::core::routes::{Endpoint, Routes, ServiceKey, ServiceRecord, Settings, SliceRecord};
use crate::directory::Directory;

/// Why a file gives no routes.
#[derive(Debug, Error)]
pub enum StaticRoutesError {
    /// It cannot be read.
    #[error("failed to read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It is not what is expected.
    #[error(
        "{path} is not a list of services such as [{{\"namespace\": \"default\", \"name\": \"chat\", \"models\": [\"chat\"], \"endpoints\": [\"127.0.0.1:8000\"]}}]"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StaticService {
    namespace: String,
    name: String,
    models: Vec<String>,
    endpoints: Vec<SocketAddr>,
    hold_max_requests: Option<usize>,
    hold_timeout_seconds: Option<u64>,
    early_stream_seconds: Option<u64>,
    pod_capacity: Option<usize>,
}

/// Fills `directory` from the JSON file at `path`.
pub fn load(path: &Path, directory: &Directory) -> Result<(), StaticRoutesError> {
    let text = std::fs::read(path).map_err(|source| StaticRoutesError::Read {
        path: path.into(),
        source,
    })?;
    let services: Vec<StaticService> =
        serde_json::from_slice(&text).map_err(|source| StaticRoutesError::Parse {
            path: path.into(),
            source,
        })?;
    for service in services {
        directory.update(|routes| apply(routes, service));
    }
    directory.services_known();
    directory.endpoints_known();
    Ok(())
}

fn apply(routes: &mut Routes, service: StaticService) -> Vec<ServiceKey> {
    let key = ServiceKey::new(&service.namespace, &service.name);
    let defaults = Settings::default();
    let settings = Settings {
        hold_max_requests: service
            .hold_max_requests
            .unwrap_or(defaults.hold_max_requests),
        hold_timeout: service
            .hold_timeout_seconds
            .map_or(defaults.hold_timeout, Duration::from_secs),
        early_stream: service
            .early_stream_seconds
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
        pod_capacity: service.pod_capacity.unwrap_or(defaults.pod_capacity),
        ..defaults
    };
    let endpoint = |address| Endpoint {
        address,
        pod_uid: String::new(),
        pod_name: String::new(),
    };
    let ready = service.endpoints.into_iter().map(endpoint).collect();
    routes.apply_service(ServiceRecord {
        key: key.clone(),
        created_seconds: 0,
        names: service.models,
        settings,
    });
    routes.apply_slice(SliceRecord {
        slice: key.clone(),
        service: key,
        ready,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn load_text(name: &str, text: &str) -> (Directory, Result<(), StaticRoutesError>) {
        let path = std::env::temp_dir().join(format!(
            "pagoda-static-routes-{}-{name}.json",
            std::process::id()
        ));
        std::fs::write(&path, text).expect("written");
        let directory = Directory::new(Arc::default(), 100);
        let loaded = load(&path, &directory);
        std::fs::remove_file(&path).expect("removed");
        (directory, loaded)
    }

    #[test]
    fn a_file_gives_services_and_their_endpoints() {
        let text = r#"[{"namespace":"d","name":"chat","models":["m"],"endpoints":["127.0.0.1:8000","[::1]:8001"],"podCapacity":2}]"#;
        let (directory, loaded) = load_text("good", text);
        loaded.expect("loaded");
        assert!(directory.is_synced());
        assert_eq!(directory.lookup("m").expect("known").ready_pods(), 2);
        assert!(directory.lookup("d/chat").is_some());
    }

    #[test]
    fn a_bad_file_says_what_is_expected() {
        let (_, loaded) = load_text("bad", r#"[{"name":"chat","replica":1}]"#);
        assert!(loaded.expect_err("refused").to_string().contains("such as"));
    }
}
