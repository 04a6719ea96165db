//! Prometheus servers that services may scale by: how they reach the operator, and what does not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{everything, objects, of_kind, refusal};

fn operator(objects: &[Value]) -> &Value {
    let deployments = of_kind(objects, "Deployment").into_iter();
    let mut named = deployments.filter(|d| d["metadata"]["name"] == "pagoda-operator");
    &named.next().unwrap()["spec"]["template"]
}

/// The list that the operator reads.
fn servers(objects: &[Value]) -> Value {
    let maps = of_kind(objects, "ConfigMap").into_iter();
    let mut named = maps.filter(|m| m["metadata"]["name"] == "pagoda-prometheus-servers");
    let text = named.next().unwrap()["data"]["servers.json"]
        .as_str()
        .unwrap();
    serde_json::from_str(text).unwrap()
}

/// Every file that the operator's volume brings, by its path, with the object and the key that it comes of.
fn files(template: &Value) -> BTreeMap<String, (String, String)> {
    let mount = &template["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["readOnly"], true);
    let folder = mount["mountPath"].as_str().unwrap();
    let sources = template["spec"]["volumes"][0]["projected"]["sources"]
        .as_array()
        .unwrap();
    let of_source = |source: &Value| {
        let (kind, source) = source.as_object().unwrap().iter().next().unwrap();
        let name = format!("{kind} {}", source["name"].as_str().unwrap());
        let items = source["items"].as_array().into_iter().flatten();
        let file = |item: &Value| {
            let path = format!("{folder}/{}", item["path"].as_str().unwrap());
            (
                path,
                (name.clone(), item["key"].as_str().unwrap().to_owned()),
            )
        };
        items.map(file).collect::<Vec<_>>()
    };
    sources.iter().flat_map(of_source).collect()
}

#[test]
fn each_server_has_its_address_and_the_files_that_it_names_are_mounted() {
    let objects = objects(&everything());
    let template = operator(&objects);
    let files = files(template);
    let list = servers(&objects);
    assert_eq!(
        list["servers"][0],
        json!({"name": "default", "url": "http://prometheus.monitoring:9090"})
    );
    assert_eq!(list["servers"][1]["timeoutSeconds"], 3);
    assert_eq!(list["servers"][1]["allowedNamespaces"], json!(["team-a"]));
    let named = [
        (
            &list["servers"][1]["caFile"],
            "configMap authorities",
            "ca.pem",
        ),
        (
            &list["servers"][1]["bearerTokenFile"],
            "secret prometheus-token",
            "token",
        ),
        (&list["servers"][2]["caFile"], "secret authorities", "ca"),
        (
            &list["servers"][2]["basicAuth"]["usernameFile"],
            "secret prometheus-login",
            "user",
        ),
        (
            &list["servers"][2]["basicAuth"]["passwordFile"],
            "secret prometheus-login",
            "pass",
        ),
    ];
    for (path, object, key) in named {
        let found = &files[path.as_str().unwrap()];
        assert_eq!((found.0.as_str(), found.1.as_str()), (object, key));
    }
    assert_eq!(
        files.len(),
        named.len(),
        "nothing else is mounted: {files:?}"
    );
    let arguments = template["spec"]["containers"][0]["args"]
        .as_array()
        .unwrap();
    assert!(arguments.contains(&json!(
        "--prometheus-config=/etc/pagoda/prometheus/servers.json"
    )));
}

#[test]
fn a_change_of_the_list_starts_the_operator_anew_and_without_servers_it_has_neither_flag_nor_volume()
 {
    let digest = |values: &Value| {
        let objects = objects(values);
        let annotations = &operator(&objects)["metadata"]["annotations"];
        annotations["serving.pagoda.dev/prometheus-servers"].clone()
    };
    let with = |url: &str| json!({"prometheus": {"servers": [{"name": "default", "url": url}]}});
    assert_ne!(digest(&with("http://a")), digest(&with("http://b")));
    assert_eq!(digest(&json!({})), Value::Null);
    let objects = objects(&json!({}));
    let template = operator(&objects);
    assert_eq!(template["spec"]["volumes"], Value::Null);
    assert!(!template.to_string().contains("prometheus"));
}

#[test]
fn policies_let_the_operator_out_to_each_servers_port() {
    let objects = objects(&everything());
    let policies = of_kind(&objects, "NetworkPolicy").into_iter();
    let mut operators = policies.filter(|p| p["metadata"]["name"] == "pagoda-operator");
    let egress = operators.next().unwrap()["spec"]["egress"]
        .as_array()
        .unwrap();
    let open = egress.iter().filter(|rule| rule["to"].is_null());
    let ports: BTreeSet<u64> = open
        .flat_map(|rule| rule["ports"].as_array().unwrap())
        .filter_map(|port| port["port"].as_u64())
        .collect();
    assert!(ports.is_superset(&[9090, 443, 8443].into()), "{ports:?}");
}

#[test]
fn a_server_that_cannot_work_is_refused() {
    let cases = [
        (json!({"name": "a"}), "url"),
        (
            json!({"name": "A b", "url": "http://x"}),
            "/prometheus/servers/0/name",
        ),
        (
            json!({"name": "a", "url": "prometheus:9090"}),
            "/prometheus/servers/0/url",
        ),
        (
            json!({"name": "a", "url": "http://user:pass@x"}),
            "/prometheus/servers/0/url",
        ),
        (
            json!({"name": "a", "url": "http://x?y=z"}),
            "/prometheus/servers/0/url",
        ),
        (
            json!({"name": "a", "url": "http://x", "insecureSkipVerify": true}),
            "additional properties",
        ),
        (
            json!({"name": "a", "url": "http://x", "timeoutSeconds": 0}),
            "timeoutSeconds",
        ),
        (
            json!({"name": "a", "url": "http://x", "ca": {"key": "k"}}),
            "/prometheus/servers/0/ca",
        ),
        (
            json!({"name": "a", "url": "http://x", "bearerToken": {"secret": "s", "key": "k"},
            "basicAuth": {"secret": "s", "usernameKey": "u", "passwordKey": "p"}}),
            "/prometheus/servers/0",
        ),
    ];
    for (server, names) in cases {
        let said = refusal(&json!({"prometheus": {"servers": [server]}}));
        assert!(said.contains(names), "{server}: {said}");
    }
    let twice = json!([{"name": "a", "url": "http://x"}, {"name": "a", "url": "http://y"}]);
    let said = refusal(&json!({"prometheus": {"servers": twice}}));
    assert!(said.contains("two servers are named a"), "{said}");
}
