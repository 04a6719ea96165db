//! Each switch of the values adds its objects and flags, and no other.

use serde_json::{Value, json};

use crate::{identities, objects, pod_templates};

#[test]
fn by_default_there_are_operator_and_gateway_with_their_rights_and_nothing_else() {
    let expected = [
        "ClusterRole pagoda-edit",
        "ClusterRole pagoda-gateway",
        "ClusterRole pagoda-operator",
        "ClusterRole pagoda-operator-nodes",
        "ClusterRole pagoda-view",
        "ClusterRoleBinding pagoda-gateway",
        "ClusterRoleBinding pagoda-operator",
        "ClusterRoleBinding pagoda-operator-nodes",
        "Deployment pagoda-system/pagoda-gateway",
        "Deployment pagoda-system/pagoda-operator",
        "Role pagoda-system/pagoda-operator-system",
        "RoleBinding pagoda-system/pagoda-operator-system",
        "Service pagoda-system/pagoda-gateway",
        "Service pagoda-system/pagoda-operator",
        "ServiceAccount pagoda-system/pagoda-gateway",
        "ServiceAccount pagoda-system/pagoda-operator",
    ];
    let found = identities(&json!({}));
    assert_eq!(found, expected.map(str::to_owned).into());
}

#[test]
fn each_switch_adds_or_takes_its_objects_and_no_other() {
    let cases: [(Value, &[&str], &[&str]); 10] = [
        (
            json!({"gateway": {"external": {"type": "LoadBalancer"}}}),
            &["Service pagoda-system/pagoda-gateway-external"],
            &[],
        ),
        (
            json!({"modelCache": {"enabled": true}}),
            &["DaemonSet pagoda-system/pagoda-model-cache"],
            &[],
        ),
        (
            json!({"rbac": {"aggregateRoles": false}}),
            &[],
            &["ClusterRole pagoda-view", "ClusterRole pagoda-edit"],
        ),
        (
            json!({"rbac": {"nodes": false}}),
            &[],
            &[
                "ClusterRole pagoda-operator-nodes",
                "ClusterRoleBinding pagoda-operator-nodes",
            ],
        ),
        (
            json!({"podDisruptionBudgets": {"enabled": true}}),
            &[
                "PodDisruptionBudget pagoda-system/pagoda-operator",
                "PodDisruptionBudget pagoda-system/pagoda-gateway",
            ],
            &[],
        ),
        (
            json!({"networkPolicies": {"enabled": true}}),
            &[
                "NetworkPolicy pagoda-system/pagoda-operator",
                "NetworkPolicy pagoda-system/pagoda-gateway",
            ],
            &[],
        ),
        (
            json!({"serviceMonitors": {"enabled": true}}),
            &[
                "ServiceMonitor pagoda-system/pagoda-operator",
                "ServiceMonitor pagoda-system/pagoda-gateway",
                "ServiceMonitor pagoda-system/pagoda-engines",
            ],
            &[],
        ),
        (
            json!({"prometheusRules": {"enabled": true}}),
            &[
                "PrometheusRule pagoda-system/pagoda",
                "PrometheusRule pagoda-system/pagoda-scaling",
            ],
            &[],
        ),
        (
            json!({"prometheus": {"servers": [{"name": "default", "url": "http://prometheus:9090"}]}}),
            &["ConfigMap pagoda-system/pagoda-prometheus-servers"],
            &[],
        ),
        (
            json!({"grafanaDashboard": {"enabled": true}}),
            &["ConfigMap pagoda-system/pagoda-dashboard"],
            &[],
        ),
    ];
    let without = identities(&json!({}));
    for (values, added, taken) in cases {
        let mut expected = without.clone();
        expected.extend(added.iter().map(|&name| name.to_owned()));
        for &name in taken {
            assert!(expected.remove(name), "{name} is not there by default");
        }
        assert_eq!(identities(&values), expected, "with {values}");
    }
}

#[test]
fn a_switch_that_is_off_leaves_no_flag_and_one_that_is_on_sets_it() {
    let flags = |values: &Value, deployment: &str| -> Vec<String> {
        let objects = objects(values);
        let wanted = format!("Deployment pagoda-system/{deployment}");
        let (_, template) = pod_templates(&objects)
            .into_iter()
            .find(|(name, _)| *name == wanted)
            .unwrap();
        let words = template["spec"]["containers"][0]["args"]
            .as_array()
            .unwrap();
        words
            .iter()
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        flags(&json!({}), "pagoda-operator"),
        [
            format!("--engine-image=pagoda/engine:{}", env!("CARGO_PKG_VERSION")),
            "--engine-image-pull-policy=IfNotPresent".to_owned(),
            "--concurrency=16".to_owned(),
        ]
    );
    let cases = [
        (
            json!({"watchNamespaces": ["b", "a"]}),
            "--watch-namespaces=b,a",
        ),
        (json!({"rbac": {"nodes": false}}), "--watch-nodes=false"),
        (
            json!({"modelCache": {"enabled": true, "hostPath": "/mnt/models"}}),
            "--model-cache-path=/mnt/models",
        ),
        (
            json!({"modelCache": {"enabled": true, "maxBytesPerNamespace": "1Ti"}}),
            "--model-cache-bytes=1Ti",
        ),
        (
            json!({"operator": {"telemetry": {"otlpEndpoint": "http://c:4318"}}}),
            "--otlp-endpoint=http://c:4318",
        ),
    ];
    for (values, flag) in cases {
        let found = flags(&values, "pagoda-operator");
        assert!(
            found.contains(&flag.to_owned()),
            "{flag} is not in {found:?}"
        );
    }
    let gateway = flags(&json!({"watchNamespaces": ["b", "a"]}), "pagoda-gateway");
    assert!(
        gateway.contains(&"--watch-namespaces=b,a".to_owned()),
        "{gateway:?}"
    );
}
