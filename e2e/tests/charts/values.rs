//! Values that the chart refuses, what the schema says of each, and those of former charts.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{chart, former_chart, refusal};

/// Maps whose keys are the user's.
const FREE: [&str; 7] = [
    "nodeSelector",
    "affinity",
    "annotations",
    "labels",
    "requests",
    "limits",
    "global",
];

#[test]
fn a_value_that_the_chart_does_not_know_is_refused_wherever_it_stands() {
    let chart = chart();
    let paths = strict_paths(&chart.default_values().unwrap(), &mut Vec::new());
    assert!(paths.len() > 15, "only {} maps are strict", paths.len());
    for path in paths {
        let mut values = json!({});
        let mut place = &mut values;
        for key in &path {
            place = &mut place[key];
        }
        place["typo"] = json!("x");
        let said = refusal(&values);
        assert!(
            said.contains("additional properties 'typo' not allowed"),
            "{path:?}: {said}"
        );
    }
}

fn strict_paths(values: &Value, at: &mut Vec<String>) -> Vec<Vec<String>> {
    let mut found = vec![at.clone()];
    for (key, value) in values.as_object().into_iter().flatten() {
        if value.is_object() && !FREE.contains(&key.as_str()) {
            at.push(key.clone());
            found.extend(strict_paths(value, at));
            at.pop();
        }
    }
    found
}

#[test]
fn a_value_that_cannot_work_is_refused_and_the_refusal_names_it() {
    let cases = [
        (json!({"watchNamespaces": "team"}), "/watchNamespaces"),
        (json!({"watchNamespaces": ["Team"]}), "/watchNamespaces/0"),
        (json!({"watchNamespaces": ["a", "a"]}), "/watchNamespaces"),
        (json!({"operator": {"replicas": 0}}), "/operator/replicas"),
        (
            json!({"operator": {"telemetry": {"otlpEndpoint": "collector:4318"}}}),
            "/operator/telemetry/otlpEndpoint",
        ),
        (
            json!({"operator": {"resources": {"limits": {"memory": "lots"}}}}),
            "/operator/resources/limits/memory",
        ),
        (
            json!({"operator": {"tolerations": [{"operator": "Maybe"}]}}),
            "/operator/tolerations/0/operator",
        ),
        (
            json!({"gateway": {"args": ["max-connections=5"]}}),
            "/gateway/args/0",
        ),
        (
            json!({"gateway": {"external": {"type": "Ingress"}}}),
            "/gateway/external/type",
        ),
        (
            json!({"engine": {"image": {"pullPolicy": "Sometimes"}}}),
            "/engine/image/pullPolicy",
        ),
        (
            json!({"modelCache": {"hostPath": "models"}}),
            "/modelCache/hostPath",
        ),
        (
            json!({"modelCache": {"hostPath": "/"}}),
            "/modelCache/hostPath",
        ),
        (
            json!({"modelCache": {"hostPath": "/models/../etc"}}),
            "/modelCache/hostPath",
        ),
        // helm would write it as 1e+11.
        (
            json!({"modelCache": {"maxBytesPerNamespace": 100_000_000_000_u64}}),
            "/modelCache/maxBytesPerNamespace",
        ),
        (
            json!({"modelCache": {"maxBytesPerNamespace": "200 GB"}}),
            "/modelCache/maxBytesPerNamespace",
        ),
        (
            json!({"networkPolicies": {"metricsFrom": [{"namespace": "monitoring"}]}}),
            "/networkPolicies/metricsFrom/0",
        ),
        (
            json!({"networkPolicies": {"apiServerPorts": []}}),
            "/networkPolicies/apiServerPorts",
        ),
        (
            json!({"serviceMonitors": {"interval": 30}}),
            "/serviceMonitors/interval",
        ),
        (
            json!({"imagePullSecrets": ["registry"]}),
            "/imagePullSecrets/0",
        ),
    ];
    for (values, place) in cases {
        let said = refusal(&values);
        assert!(said.contains(&format!("'{place}'")), "{values}: {said}");
    }
}

#[test]
fn every_value_is_described_in_the_schema_and_every_default_is_in_it() {
    let text = std::fs::read_to_string(chart().folder().join("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    let mut missing = Vec::new();
    undescribed(
        &schema,
        &schema,
        &chart().default_values().unwrap(),
        "",
        &mut missing,
    );
    assert_eq!(missing, Vec::<String>::new());
}

fn undescribed(root: &Value, schema: &Value, values: &Value, at: &str, missing: &mut Vec<String>) {
    for (key, value) in values.as_object().into_iter().flatten() {
        let path = format!("{at}/{key}");
        let own = &schema["properties"][key];
        let target = [&own["$ref"], &own["allOf"][0]["$ref"]]
            .into_iter()
            .find_map(Value::as_str)
            .and_then(|reference| root.pointer(reference.trim_start_matches('#')));
        let described = |schema: &Value| schema["description"].is_string();
        if !described(own) && !target.is_some_and(described) {
            missing.push(path.clone());
        }
        if !FREE.contains(&key.as_str()) {
            undescribed(root, target.unwrap_or(own), value, &path, missing);
        }
    }
}

#[test]
fn the_former_name_for_one_namespace_is_still_understood() {
    let strip = |values: Value| chart().text(&values).unwrap();
    assert_eq!(
        strip(json!({"operator": {"watchNamespace": "team"}})),
        strip(json!({"watchNamespaces": ["team"]}))
    );
    let both = json!({"operator": {"watchNamespace": "team"}, "watchNamespaces": ["team"]});
    let said = refusal(&both);
    assert!(said.contains("set watchNamespaces alone"), "{said}");
}

/// `helm upgrade --reuse-values` renders this chart with the former one's defaults alone.
#[test]
fn an_upgrade_that_leaves_out_new_defaults_stops_and_says_which_flag_to_use() {
    let gone = [
        "watchNamespaces",
        "prometheus",
        "modelCache",
        "metricsApi",
        "keda",
        "podDisruptionBudgets",
        "networkPolicies",
        "serviceMonitors",
        "prometheusRules",
        "grafanaDashboard",
    ];
    let former = former_chart().default_values().unwrap();
    for key in gone {
        assert!(former[key].is_null(), "{key} is not new");
        // A null takes the default away.
        let said = refusal(&json!({key: null}));
        assert!(said.contains("--reset-then-reuse-values"), "{key}: {said}");
    }
    let known: BTreeSet<String> = chart()
        .default_values()
        .unwrap()
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    let covered = former
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .chain(gone.map(str::to_owned));
    assert_eq!(covered.collect::<BTreeSet<_>>(), known);
}
