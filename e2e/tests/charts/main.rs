//! What the charts become under each of their values. Needs helm (`pagoda-e2e cluster programs`) and no cluster, so
//! `cargo test` leaves it out and `./test lint` names it; what a real API server says of the objects is asked in
//! `tests/cluster/chart_objects.rs`.

mod metrics_api;
mod monitoring;
mod packaging;
mod pods;
mod prometheus_servers;
mod rights;
mod switches;
mod values;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pagoda_e2e::rendered::{Chart, identity};
use serde_json::{Value, json};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn chart() -> Chart {
    Chart::at(&repository().join("charts/pagoda")).unwrap()
}

fn former_chart() -> Chart {
    Chart::at(&repository().join("e2e/tests/data/charts-0.1.0/pagoda")).unwrap()
}

/// What helm says when it refuses `values`.
fn refusal(values: &Value) -> String {
    match chart().text(values) {
        Ok(_) => panic!("{values} is accepted"),
        Err(error) => error.to_string(),
    }
}

fn objects(values: &Value) -> Vec<Value> {
    chart().objects(values).unwrap()
}

fn identities(values: &Value) -> BTreeSet<String> {
    objects(values).iter().map(identity).collect()
}

/// Everything that can be turned on, on.
fn everything() -> Value {
    json!({
        "watchNamespaces": ["team-a", "team-b"],
        "operator": {"replicas": 2, "telemetry": {"otlpEndpoint": "http://collector.monitoring:4318"}},
        "gateway": {"replicas": 3, "external": {"type": "NodePort"}},
        "modelCache": {"enabled": true},
        "metricsApi": {"enabled": true},
        "keda": {"enabled": true},
        "podDisruptionBudgets": {"enabled": true},
        "networkPolicies": {"enabled": true, "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]},
        "prometheus": {"servers": [
            {"name": "default", "url": "http://prometheus.monitoring:9090"},
            {"name": "token", "url": "https://metrics.example.com/prefix", "ca": {"configMap": "authorities", "key": "ca.pem"},
                "bearerToken": {"secret": "prometheus-token", "key": "token"}, "timeoutSeconds": 3, "allowedNamespaces": ["team-a"]},
            {"name": "login", "url": "https://[fd00::1]:8443", "ca": {"secret": "authorities", "key": "ca"},
                "basicAuth": {"secret": "prometheus-login", "usernameKey": "user", "passwordKey": "pass"}},
        ]},
        "serviceMonitors": {"enabled": true},
        "prometheusRules": {"enabled": true},
        "grafanaDashboard": {"enabled": true},
    })
}

/// Values under which rights and pods differ.
fn variants() -> Vec<Value> {
    vec![
        json!({}),
        json!({"watchNamespaces": ["team-a"]}),
        json!({"watchNamespaces": ["team-a", "pagoda-system"], "rbac": {"nodes": false}}),
        json!({"modelCache": {"enabled": true}, "rbac": {"aggregateRoles": false}}),
        everything(),
    ]
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .collect()
}

fn strings(value: &Value) -> BTreeSet<&str> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).collect()
}

/// The pod template of each workload.
fn pod_templates(objects: &[Value]) -> Vec<(String, &Value)> {
    let workloads = objects
        .iter()
        .filter(|object| object["spec"]["template"].is_object());
    workloads
        .map(|object| (identity(object), &object["spec"]["template"]))
        .collect()
}

fn containers(template: &Value) -> impl Iterator<Item = &Value> {
    let spec = &template["spec"];
    let lists = [&spec["initContainers"], &spec["containers"]];
    lists.into_iter().filter_map(Value::as_array).flatten()
}
