//! Where pods answer.

use pagoda_crds::names;
use pagoda_operator_core::status::PodView;

/// `HOST:PORT` of a pod's server, once it has an address.
pub fn server(pod: &PodView) -> Option<String> {
    let port = if pod.port == 0 {
        names::ENGINE_PORT
    } else {
        pod.port
    };
    at(pod, port)
}

/// `HOST:PORT` of the container that fetches a pod's model: the engine's port is free until then.
pub fn fetcher(pod: &PodView) -> Option<String> {
    at(pod, names::ENGINE_PORT)
}

fn at(pod: &PodView, port: u16) -> Option<String> {
    Some(format!("{}:{port}", host(pod.ip.as_deref()?)))
}

/// An address as URLs write it.
pub fn host(ip: &str) -> String {
    if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    fn from_json(mut value: Value) -> Pod {
        value["metadata"] = json!({"name": "pod"});
        serde_json::from_value(value).expect("a pod of the test")
    }

    #[test]
    fn a_server_of_its_own_port_is_asked_there_and_its_fetcher_where_ours_would_be() {
        let pod = PodView::of(&from_json(json!({
            "spec": {"containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": 9000}]}]},
            "status": {"podIP": "fd00::1"}
        })));
        assert_eq!(server(&pod).as_deref(), Some("[fd00::1]:9000"));
        assert_eq!(fetcher(&pod).as_deref(), Some("[fd00::1]:8000"));
        assert_eq!(server(&PodView::of(&from_json(json!({})))), None);
    }
}
