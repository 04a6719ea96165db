//! What the programs may do in the cluster, which is as little as they need.

use std::collections::{BTreeMap, BTreeSet};

use pagoda_e2e::rendered::identity;
use serde_json::{Value, json};

use crate::{objects, strings, variants};

/// Namespace of a binding (none for the whole cluster), account, and the rules that it grants.
fn grants(objects: &[Value]) -> Vec<(Option<&str>, &str, &Vec<Value>)> {
    // Kubernetes' own Role, by which any server of the aggregation layer learns whom to believe.
    let own = "extension-apiserver-authentication-reader";
    let bindings = objects
        .iter()
        .filter(|object| object["roleRef"].is_object() && object["roleRef"]["name"] != own);
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
                // One that the chart makes for the operator to keep its certificates in is nobody else's.
                if rule["resourceNames"] == json!(["pagoda-metrics-tls"]) {
                    continue;
                }
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

#[test]
fn the_operator_reads_autoscalers_of_others_unless_it_is_told_not_to_and_writes_none() {
    for (values, reads) in [
        (json!({}), true),
        (json!({"watchNamespaces": ["team"]}), true),
        (json!({"rbac": {"autoscalers": false}}), false),
    ] {
        let objects = objects(&values);
        let granted = grants(&objects).into_iter();
        let rules = granted.flat_map(|(_, _, rules)| rules.iter());
        let of_autoscalers: Vec<_> = rules
            .filter(|rule| strings(&rule["apiGroups"]).contains("autoscaling"))
            .collect();
        assert_eq!(!of_autoscalers.is_empty(), reads, "{values}");
        for rule in of_autoscalers {
            assert_eq!(strings(&rule["verbs"]), READS.into(), "{rule}");
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
