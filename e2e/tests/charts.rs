//! What the charts become under each of their values. Needs helm (`pagoda-e2e cluster programs`) and no cluster, so
//! `cargo test` leaves it out and `./test lint` names it; what a real API server says of the objects is asked in
//! `tests/cluster/chart_objects.rs`.

use std::collections::{BTreeMap, BTreeSet};
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
        "podDisruptionBudgets": {"enabled": true},
        "networkPolicies": {"enabled": true, "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]},
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
    let cases: [(Value, &[&str], &[&str]); 9] = [
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
            &["PrometheusRule pagoda-system/pagoda"],
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

/// Namespace of a binding (none for the whole cluster), account, and the rules that it grants.
fn grants(objects: &[Value]) -> Vec<(Option<&str>, &str, &Vec<Value>)> {
    let bindings = objects
        .iter()
        .filter(|object| object["roleRef"].is_object());
    bindings
        .map(|binding| {
            let namespace = binding["metadata"]["namespace"].as_str();
            let role = objects
                .iter()
                .find(|object| {
                    object["kind"] == binding["roleRef"]["kind"]
                        && object["metadata"]["name"] == binding["roleRef"]["name"]
                        && object["metadata"]["namespace"].as_str() == namespace
                })
                .unwrap_or_else(|| panic!("{} binds a role that is not there", identity(binding)));
            let subjects = binding["subjects"].as_array().unwrap();
            assert_eq!(subjects.len(), 1);
            assert_eq!(subjects[0]["namespace"], "pagoda-system");
            let account = subjects[0]["name"].as_str().unwrap();
            (namespace, account, role["rules"].as_array().unwrap())
        })
        .collect()
}

const READS: [&str; 3] = ["get", "list", "watch"];

#[test]
fn with_named_namespaces_no_program_may_write_anything_outside_of_them() {
    for nodes in [true, false] {
        let values = json!({"watchNamespaces": ["team-a", "team-b"], "rbac": {"nodes": nodes}, "modelCache": {"enabled": true}});
        let objects = objects(&values);
        let mut places = BTreeMap::<&str, BTreeSet<&str>>::new();
        for (namespace, account, rules) in grants(&objects) {
            let Some(namespace) = namespace else {
                assert!(nodes, "{account} may something in the whole cluster");
                for rule in rules {
                    assert_eq!(strings(&rule["resources"]), ["nodes"].into());
                    assert!(strings(&rule["verbs"]).is_subset(&READS.into()), "{rule}");
                }
                continue;
            };
            places.entry(account).or_default().insert(namespace);
        }
        let expected = BTreeMap::from([
            ("pagoda-gateway", BTreeSet::from(["team-a", "team-b"])),
            (
                "pagoda-operator",
                BTreeSet::from(["team-a", "team-b", "pagoda-system"]),
            ),
        ]);
        assert_eq!(places, expected);
    }
}

#[test]
fn the_same_rights_are_given_in_a_namespace_as_in_the_whole_cluster() {
    let rules_of = |values: &Value, account: &str, place: Option<&str>| {
        let objects = objects(values);
        let found = grants(&objects)
            .into_iter()
            .filter(|(namespace, name, rules)| {
                *namespace == place
                    && *name == account
                    && !strings(&rules[0]["resources"]).contains("nodes")
            })
            .map(|(_, _, rules)| rules.clone());
        found.collect::<Vec<_>>()
    };
    for account in ["pagoda-operator", "pagoda-gateway"] {
        let everywhere = rules_of(&json!({}), account, None);
        let named = rules_of(&json!({"watchNamespaces": ["team"]}), account, Some("team"));
        assert_eq!(everywhere.len(), 1);
        assert_eq!(everywhere, named, "{account}");
    }
}

#[test]
fn the_gateway_writes_nothing() {
    for values in variants() {
        for (_, account, rules) in grants(&objects(&values)) {
            for rule in rules.iter().filter(|_| account == "pagoda-gateway") {
                assert!(strings(&rule["verbs"]).is_subset(&READS.into()), "{rule}");
            }
        }
    }
}

#[test]
fn no_right_is_a_wildcard_or_leads_to_another_right() {
    let verbs = BTreeSet::from([
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    ]);
    for values in variants() {
        let objects = objects(&values);
        let roles = objects.iter().filter(|object| object["rules"].is_array());
        for role in roles {
            for rule in role["rules"].as_array().unwrap() {
                let place = format!("{}: {rule}", identity(role));
                assert!(strings(&rule["verbs"]).is_subset(&verbs), "{place}");
                let resources = strings(&rule["resources"]);
                assert!(!resources.iter().any(|name| name.contains('*')), "{place}");
                assert!(!strings(&rule["apiGroups"]).contains("*"), "{place}");
                // A Secret holds credentials, and a pod or a token can borrow another account's rights.
                for never in [
                    "secrets",
                    "serviceaccounts/token",
                    "pods/exec",
                    "pods/proxy",
                    "nodes/proxy",
                ] {
                    assert!(!resources.contains(never), "{place}");
                }
                assert!(rule["nonResourceURLs"].is_null(), "{place}");
            }
        }
    }
}

/// All that the operator may delete, so that a right which was added by the way is noticed.
#[test]
fn the_operator_deletes_nothing_but_revisions_and_fetches() {
    let objects = objects(&json!({}));
    let mut deleted = BTreeSet::new();
    let all = grants(&objects);
    for rule in all.iter().flat_map(|(_, _, rules)| rules.iter()) {
        if strings(&rule["verbs"]).contains("delete") {
            deleted.extend(strings(&rule["resources"]));
        }
    }
    assert_eq!(deleted, ["configmaps", "deployments", "jobs"].into());
}

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
            .map(|service| &service["spec"]["selector"]),
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
        "modelCache",
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

#[test]
fn a_budget_lets_the_only_replica_go() {
    let objects = objects(&json!({"podDisruptionBudgets": {"enabled": true}}));
    for budget in of_kind(&objects, "PodDisruptionBudget") {
        assert_eq!(budget["spec"]["maxUnavailable"], 1);
        assert!(budget["spec"]["minAvailable"].is_null());
        assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    }
}

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
    let rules: Value = serde_yaml_ng::from_str(&read("alerts.yaml")).unwrap();
    assert_eq!(of_kind(&objects, "PrometheusRule")[0]["spec"], rules);
    let dashboard = of_kind(&objects, "ConfigMap")[0];
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

#[test]
fn both_charts_have_one_version_and_the_programs_theirs() {
    let field = |chart: &str, field: &str| -> String {
        let text =
            std::fs::read_to_string(repository().join("charts").join(chart).join("Chart.yaml"))
                .unwrap();
        let meta: Value = serde_yaml_ng::from_str(&text).unwrap();
        meta[field].as_str().unwrap().to_owned()
    };
    assert_eq!(field("pagoda", "version"), field("pagoda-crds", "version"));
    for chart in ["pagoda", "pagoda-crds"] {
        assert_eq!(field(chart, "appVersion"), env!("CARGO_PKG_VERSION"));
    }
}

/// `kubectl apply` keeps the whole object in an annotation, and annotations are bounded.
#[test]
fn the_definition_fits_into_the_annotation_of_a_client_side_apply() {
    let folder = repository().join("charts/pagoda-crds");
    let objects = Chart::at(&folder).unwrap().objects(&json!({})).unwrap();
    assert_eq!(objects.len(), 1);
    assert!(objects[0].to_string().len() < 262_144);
}
