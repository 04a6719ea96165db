//! The pods that the chart makes: locked down, with the images asked for, and selected by what stays.

use std::collections::{BTreeMap, BTreeSet};

use pagoda_e2e::rendered::{Chart, identity};
use serde_json::{Value, json};

use crate::{
    chart, containers, everything, former_chart, objects, of_kind, pod_templates, variants,
};

#[test]
fn every_container_is_locked_down_and_root_is_only_who_prepares_the_cache() {
    for values in variants() {
        let objects = objects(&values);
        for (name, template) in pod_templates(&objects) {
            let pod = &template["spec"]["securityContext"];
            assert_eq!(pod["seccompProfile"]["type"], "RuntimeDefault", "{name}");
            assert_eq!(
                (&pod["runAsNonRoot"], &pod["runAsUser"]),
                (&json!(true), &json!(65532)),
                "{name}"
            );
            for field in ["hostNetwork", "hostPID", "hostIPC", "hostUsers"] {
                assert!(template["spec"][field].is_null(), "{name} sets {field}");
            }
            for container in containers(template) {
                let place = format!("{name} {}", container["name"]);
                let context = &container["securityContext"];
                let expected = json!({"drop": ["ALL"]});
                assert_eq!(context["capabilities"], expected, "{place}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{place}");
                assert_eq!(context["allowPrivilegeEscalation"], false, "{place}");
                assert!(context["privileged"].is_null(), "{place}");
                let is_root = context["runAsUser"] == 0 || context["runAsNonRoot"] == false;
                assert_eq!(is_root, container["name"] == "prepare", "{place}");
                assert!(
                    container["resources"]["requests"]["memory"].is_string(),
                    "{place}"
                );
                assert!(
                    container["resources"]["limits"]["memory"].is_string(),
                    "{place}"
                );
            }
        }
    }
}

#[test]
fn whoever_speaks_to_no_api_server_has_no_token_for_one() {
    let objects = objects(&everything());
    for (name, template) in pod_templates(&objects) {
        let spec = &template["spec"];
        if spec["serviceAccountName"].is_null() {
            assert_eq!(spec["automountServiceAccountToken"], false, "{name}");
        }
    }
}

#[test]
fn images_tags_and_pull_secrets_reach_every_pod() {
    let mut values = everything();
    for (name, tag) in [("operator", "1"), ("gateway", "2"), ("engine", "3")] {
        values[name]["image"] = json!({"repository": format!("registry.example/{name}"), "tag": tag, "pullPolicy": "Always"});
    }
    values["imagePullSecrets"] = json!([{"name": "pull"}]);
    let objects = objects(&values);
    let mut images = BTreeMap::new();
    for (name, template) in pod_templates(&objects) {
        assert_eq!(
            template["spec"]["imagePullSecrets"], values["imagePullSecrets"],
            "{name}"
        );
        for container in containers(template) {
            assert_eq!(container["imagePullPolicy"], "Always", "{name}");
            images.insert(
                format!("{name} {}", container["name"].as_str().unwrap()),
                container["image"].as_str().unwrap().to_owned(),
            );
        }
    }
    let expected = [
        (
            "DaemonSet pagoda-system/pagoda-model-cache prepare",
            "registry.example/engine:3",
        ),
        (
            "DaemonSet pagoda-system/pagoda-model-cache wait",
            "registry.example/engine:3",
        ),
        (
            "Deployment pagoda-system/pagoda-gateway gateway",
            "registry.example/gateway:2",
        ),
        (
            "Deployment pagoda-system/pagoda-operator operator",
            "registry.example/operator:1",
        ),
    ];
    let expected = expected.map(|(name, image)| (name.to_owned(), image.to_owned()));
    assert_eq!(images, expected.into());
    let text = chart().text(&values).unwrap();
    assert!(text.contains("--engine-image=registry.example/engine:3"));
    assert!(text.contains("--engine-image-pull-policy=Always"));
}

/// Every map of labels by which something is selected.
fn selectors<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                if key == "matchLabels" {
                    found.push(inner);
                } else {
                    selectors(inner, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| selectors(item, found)),
        _ => {}
    }
}

#[test]
fn no_selector_holds_a_version_and_each_selects_the_pods_it_is_for() {
    let mut values = everything();
    values["networkPolicies"] = json!({"enabled": true});
    // KEDA's pods are not ours to select.
    values["keda"]["from"] = json!([]);
    let objects = objects(&values);
    let labels: Vec<&Value> = pod_templates(&objects)
        .into_iter()
        .map(|(_, template)| &template["metadata"]["labels"])
        .collect();
    let mut found = Vec::new();
    for object in &objects {
        selectors(object, &mut found);
    }
    found.extend(
        of_kind(&objects, "Service")
            .iter()
            .map(|service| &service["spec"]["selector"])
            // The operator stands behind pagoda-metrics by itself.
            .filter(|selector| !selector.is_null()),
    );
    assert!(found.len() > 12, "only {} selectors", found.len());
    for selector in found {
        let keys: BTreeSet<&str> = selector
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(
            keys,
            ["app.kubernetes.io/name", "app.kubernetes.io/part-of"].into()
        );
        let matching = labels.iter().filter(|labels| {
            selector
                .as_object()
                .unwrap()
                .iter()
                .all(|(key, value)| &labels[key] == value)
        });
        assert_eq!(
            matching.count(),
            1,
            "{selector} selects not exactly one kind of pod"
        );
    }
}

/// A Deployment's selector cannot be changed: an upgrade that tries is refused by the API server.
#[test]
fn selectors_are_those_of_the_former_chart() {
    let immutable = |chart: &Chart| -> BTreeMap<String, Value> {
        let objects = chart.objects(&json!({})).unwrap();
        let workloads = objects
            .iter()
            .filter(|object| object["spec"]["template"].is_object());
        workloads
            .map(|object| (identity(object), object["spec"]["selector"].clone()))
            .collect()
    };
    let former = immutable(&former_chart());
    assert_eq!(former.len(), 2);
    assert_eq!(immutable(&chart()), former);
}

#[test]
fn a_budget_lets_the_only_replica_go() {
    let objects = objects(&json!({"podDisruptionBudgets": {"enabled": true}}));
    for budget in of_kind(&objects, "PodDisruptionBudget") {
        assert_eq!(budget["spec"]["maxUnavailable"], 1);
        assert!(budget["spec"]["minAvailable"].is_null());
        assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    }
}
