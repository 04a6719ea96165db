//! Figures for HPAs and for KEDA: nothing of it unless it is wanted, and then by name.

use std::collections::{BTreeMap, BTreeSet};

use pagoda_e2e::rendered::identity;
use serde_json::{Value, json};

use crate::{objects, of_kind, refusal, strings};

fn served(groups: &[&str]) -> Value {
    json!({"metricsApi": {"enabled": true, "groups": groups}})
}

fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    let mut found = of_kind(objects, kind).into_iter();
    found.find(|object| object["metadata"]["name"] == name)
}

fn operator(objects: &[Value]) -> &Value {
    let deployment = named(objects, "Deployment", "pagoda-operator").unwrap();
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn by_default_nothing_is_served_and_no_right_to_secrets_or_apis_is_asked_for() {
    let objects = objects(&json!({}));
    assert!(of_kind(&objects, "APIService").is_empty());
    assert!(
        objects
            .iter()
            .all(|object| !identity(object).contains("pagoda-metrics"))
    );
    let text = operator(&objects).to_string();
    assert!(!text.contains("--metrics-listen") && !text.contains("--keda-listen"));
}

#[test]
fn each_group_that_is_wanted_has_its_api_service_and_none_skips_verification() {
    let external = "v1beta1.external.metrics.k8s.io";
    let custom = "v1beta2.custom.metrics.k8s.io";
    let of = |groups: &[&str]| {
        let objects = objects(&served(groups));
        let services = of_kind(&objects, "APIService").into_iter();
        services
            .map(|service| {
                assert!(service["spec"]["insecureSkipTLSVerify"].is_null());
                assert_eq!(service["spec"]["service"]["name"], "pagoda-metrics");
                service["metadata"]["name"].as_str().unwrap().to_owned()
            })
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        of(&["external.metrics.k8s.io"]),
        [external.to_owned()].into()
    );
    assert_eq!(of(&["custom.metrics.k8s.io"]), [custom.to_owned()].into());
    let both = ["external.metrics.k8s.io", "custom.metrics.k8s.io"];
    assert_eq!(of(&both), [external, custom].map(str::to_owned).into());
    for groups in [json!([]), json!(["metrics.k8s.io"])] {
        let said = refusal(&json!({"metricsApi": {"enabled": true, "groups": groups}}));
        assert!(said.contains("groups"), "{said}");
    }
}

#[test]
fn what_the_operator_may_for_it_is_restricted_to_names_wherever_kubernetes_can() {
    let objects = objects(&served(&["external.metrics.k8s.io"]));
    let mut rights = BTreeMap::new();
    for kind in ["Role", "ClusterRole"] {
        let role = named(&objects, kind, "pagoda-operator-metrics").unwrap();
        for rule in role["rules"].as_array().unwrap() {
            let resource = rule["resources"][0].as_str().unwrap();
            let verbs = strings(&rule["verbs"]);
            let is_named = rule["resourceNames"].is_array();
            // Neither what is created nor a question has a name.
            assert!(is_named || verbs == ["create"].into(), "{rule}");
            let all: &mut BTreeSet<&str> = rights.entry(resource).or_default();
            all.extend(verbs);
        }
    }
    let expected: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::from([
        ("apiservices", ["get", "patch"].into()),
        ("endpointslices", ["create", "get", "patch"].into()),
        ("secrets", ["get", "update"].into()),
        ("services", ["get"].into()),
        ("subjectaccessreviews", ["create"].into()),
    ]);
    assert_eq!(rights, expected);
}

#[test]
fn keda_alone_needs_neither_certificates_nor_rights_over_the_cluster() {
    let objects = objects(&json!({"keda": {"enabled": true}}));
    for kind in ["APIService", "Secret"] {
        assert!(of_kind(&objects, kind).is_empty());
    }
    assert!(named(&objects, "ClusterRole", "pagoda-operator-metrics").is_none());
    let text = operator(&objects).to_string();
    assert!(text.contains("--keda-listen=0.0.0.0:9090") && !text.contains("--metrics-listen"));
}

#[test]
fn the_service_selects_nobody_and_its_ports_are_those_of_the_operator() {
    let objects = objects(&json!({"metricsApi": {"enabled": true}, "keda": {"enabled": true}}));
    let service = named(&objects, "Service", "pagoda-metrics").unwrap();
    assert!(service["spec"]["selector"].is_null());
    let ports = |list: &Value, port: &str| -> BTreeMap<String, u64> {
        let all = list.as_array().unwrap().iter();
        all.map(|p| {
            (
                p["name"].as_str().unwrap().to_owned(),
                p[port].as_u64().unwrap(),
            )
        })
        .collect()
    };
    let mut of_operator = ports(&operator(&objects)["ports"], "containerPort");
    of_operator.remove("admin");
    assert_eq!(ports(&service["spec"]["ports"], "targetPort"), of_operator);
    let environment = operator(&objects)["env"].as_array().unwrap();
    assert!(
        environment
            .iter()
            .any(|variable| variable["name"] == "POD_IP")
    );
}
