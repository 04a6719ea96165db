//! Monitors, alerts, the dashboard, and the network policies that let metrics through.

use serde_json::{Value, json};

use crate::{chart, everything, objects, of_kind};

#[test]
fn a_monitor_asks_a_port_that_its_service_has_and_keeps_the_gateways_labels() {
    let objects = objects(
        &json!({"serviceMonitors": {"enabled": true, "labels": {"release": "prometheus"}}, "watchNamespaces": ["team"]}),
    );
    let services = of_kind(&objects, "Service");
    for monitor in of_kind(&objects, "ServiceMonitor") {
        let name = monitor["metadata"]["name"].as_str().unwrap();
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        let endpoint = &monitor["spec"]["endpoints"][0];
        if name == "pagoda-engines" {
            // Services that the operator builds: their one port is called http.
            assert_eq!(endpoint["port"], "http");
            assert_eq!(
                monitor["spec"]["namespaceSelector"],
                json!({"matchNames": ["team"]})
            );
            continue;
        }
        assert_eq!(endpoint["honorLabels"], true);
        let service = services
            .iter()
            .find(|service| service["metadata"]["name"] == name)
            .unwrap();
        let ports = service["spec"]["ports"].as_array().unwrap();
        assert!(
            ports.iter().any(|port| port["name"] == endpoint["port"]),
            "{name}"
        );
    }
}

#[test]
fn the_alerts_and_the_dashboard_are_installed_word_for_word() {
    let objects = objects(&everything());
    let read =
        |name: &str| std::fs::read_to_string(chart().folder().join("files").join(name)).unwrap();
    for (name, file) in [
        ("pagoda", "alerts.yaml"),
        ("pagoda-scaling", "recording-rules.yaml"),
    ] {
        let rules: Value = serde_yaml_ng::from_str(&read(file)).unwrap();
        let installed = of_kind(&objects, "PrometheusRule").into_iter();
        let mut named = installed.filter(|rule| rule["metadata"]["name"] == name);
        assert_eq!(named.next().unwrap()["spec"], rules, "{file}");
    }
    let maps = of_kind(&objects, "ConfigMap").into_iter();
    let mut boards = maps.filter(|map| map["data"]["pagoda.json"].is_string());
    let dashboard = boards.next().unwrap();
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let installed: Value =
        serde_json::from_str(dashboard["data"]["pagoda.json"].as_str().unwrap()).unwrap();
    assert_eq!(
        installed,
        serde_json::from_str::<Value>(&read("dashboard.json")).unwrap()
    );
}

#[test]
fn policies_name_the_collectors_port_whatever_form_its_address_has() {
    let cases = [
        ("http://collector.monitoring:4318", 4318),
        ("https://otel.example.com/v1", 443),
        ("http://otel.example.com", 80),
        ("http://[fd00::1]:4318/x", 4318),
    ];
    for (address, port) in cases {
        let values = json!({"networkPolicies": {"enabled": true}, "operator": {"telemetry": {"otlpEndpoint": address}}});
        let objects = objects(&values);
        let operator = of_kind(&objects, "NetworkPolicy")
            .into_iter()
            .find(|policy| policy["metadata"]["name"] == "pagoda-operator")
            .unwrap();
        let last = operator["spec"]["egress"]
            .as_array()
            .unwrap()
            .last()
            .unwrap();
        assert_eq!(
            last,
            &json!({"ports": [{"protocol": "TCP", "port": port}]}),
            "{address}"
        );
    }
}

#[test]
fn nobody_but_the_operator_reads_metrics_until_somebody_is_named() {
    let objects = objects(&json!({"networkPolicies": {"enabled": true}}));
    for policy in of_kind(&objects, "NetworkPolicy") {
        let rules = policy["spec"]["ingress"].as_array();
        let to_admin = rules
            .into_iter()
            .flatten()
            .filter(|rule| rule["ports"][0]["port"] == "admin");
        for rule in to_admin {
            let from = rule["from"].as_array().unwrap();
            assert_eq!(from.len(), 1, "{rule}");
            assert_eq!(
                from[0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"],
                "pagoda-operator"
            );
        }
    }
}
