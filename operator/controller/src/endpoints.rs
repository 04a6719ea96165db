//! Where gateways tell their load.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use pagoda_crds::names;
use std::{collections::BTreeSet, sync::Arc};

use crate::pod_address::host;

/// `HOST:PORT` of every gateway that serves, draining ones included: what they still forward is load. One that does not
/// serve forwards nothing.
pub fn gateway_addresses(slices: &[Arc<EndpointSlice>]) -> BTreeSet<String> {
    slices
        .iter()
        .flat_map(|slice| addresses_of(slice))
        .collect()
}

fn addresses_of(slice: &EndpointSlice) -> Vec<String> {
    let ports = slice.ports.iter().flatten();
    let admin = ports
        .filter(|p| p.name.as_deref() == Some(names::PORT_ADMIN))
        .find_map(|p| p.port);
    let Some(port) = admin else {
        return Vec::new();
    };
    let serving = slice.endpoints.iter().filter(|endpoint| serves(endpoint));
    serving
        .filter_map(|e| e.addresses.first())
        .map(|ip| format!("{}:{port}", host(ip)))
        .collect()
}

/// A missing `serving` means what `ready` says, and a missing `ready` means yes.
fn serves(endpoint: &Endpoint) -> bool {
    let Some(conditions) = &endpoint.conditions else {
        return true;
    };
    conditions.serving.or(conditions.ready).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(endpoints: serde_json::Value, ports: serde_json::Value) -> Arc<EndpointSlice> {
        let value =
            json!({"addressType": "IPv4", "metadata": {}, "endpoints": endpoints, "ports": ports});
        Arc::new(serde_json::from_value(value).expect("a slice of the test"))
    }

    #[test]
    fn gateways_that_serve_are_asked_while_they_drain_and_dead_ones_are_not() {
        let endpoints = json!([
            {"addresses": ["10.0.0.1"]},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": false, "serving": false}}
        ]);
        let ports = json!([{"name": "http", "port": 8080}, {"name": "admin", "port": 8081}]);
        let found = gateway_addresses(&[slice(endpoints, ports)]);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["10.0.0.1:8081", "10.0.0.2:8081"]
        );
    }

    #[test]
    fn a_service_without_an_admin_port_has_no_gateways() {
        let found = gateway_addresses(&[slice(
            json!([{"addresses": ["10.0.0.1"]}]),
            json!([{"name": "http", "port": 1}]),
        )]);
        assert!(found.is_empty());
    }
}
