use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn service(namespace: &str, name: &str, created_seconds: i64, names: &[&str]) -> ServiceRecord {
    let names = names.iter().map(ToString::to_string).collect();
    ServiceRecord {
        key: ServiceKey::new(namespace, name),
        created_seconds,
        names,
        settings: Settings::default(),
    }
}

fn slice(namespace: &str, name: &str, service: &str, ports: &[u16]) -> SliceRecord {
    let ready = ports
        .iter()
        .map(|port| Endpoint {
            address: ([127, 0, 0, 1], *port).into(),
            pod_uid: format!("uid-{port}"),
            pod_name: format!("pod-{port}"),
        })
        .collect();
    SliceRecord {
        slice: ServiceKey::new(namespace, name),
        service: ServiceKey::new(namespace, service),
        ready,
    }
}

fn resolved(routes: &Routes, model: &str) -> Option<String> {
    routes.resolve(model).map(ToString::to_string)
}

fn ports(routes: &Routes, namespace: &str, name: &str) -> Vec<u16> {
    routes
        .ready_endpoints(&ServiceKey::new(namespace, name))
        .iter()
        .map(|endpoint| endpoint.address.port())
        .collect()
}

#[test]
fn a_key_gives_back_its_two_halves() {
    let key = ServiceKey::new("team-a", "chat");
    assert_eq!(
        (key.namespace(), key.name(), key.as_str()),
        ("team-a", "chat", "team-a/chat")
    );
}

#[test]
fn the_oldest_service_owns_a_contested_name_and_the_next_inherits_it() {
    let mut routes = Routes::default();
    routes.apply_service(service("b", "young", 20, &["chat"]));
    routes.apply_service(service("a", "old", 10, &["chat"]));
    assert_eq!(resolved(&routes, "chat").as_deref(), Some("a/old"));
    routes.remove_service(&ServiceKey::new("a", "old"));
    assert_eq!(resolved(&routes, "chat").as_deref(), Some("b/young"));
    routes.remove_service(&ServiceKey::new("b", "young"));
    assert_eq!(resolved(&routes, "chat"), None);
    assert_eq!(resolved(&routes, "b/young"), None);
}

#[test]
fn equal_ages_are_settled_by_qualified_name() {
    let mut routes = Routes::default();
    routes.apply_service(service("b", "one", 10, &["chat"]));
    routes.apply_service(service("a", "two", 10, &["chat"]));
    assert_eq!(resolved(&routes, "chat").as_deref(), Some("a/two"));
}

#[test]
fn a_qualified_name_cannot_be_taken_over_by_a_served_name() {
    let mut routes = Routes::default();
    routes.apply_service(service("evil", "thief", 1, &["bank/chat"]));
    routes.apply_service(service("bank", "chat", 99, &["chat"]));
    assert_eq!(resolved(&routes, "bank/chat").as_deref(), Some("bank/chat"));
    let names: Vec<_> = routes
        .served_models()
        .map(|model| model.name.to_owned())
        .collect();
    assert_eq!(names, ["chat"]);
}

#[test]
fn a_service_that_is_renamed_gives_up_its_former_name() {
    let mut routes = Routes::default();
    routes.apply_service(service("a", "one", 10, &["before"]));
    routes.apply_service(service("a", "one", 10, &["after"]));
    assert_eq!(resolved(&routes, "before"), None);
    assert_eq!(resolved(&routes, "after").as_deref(), Some("a/one"));
}

#[test]
fn endpoints_of_all_slices_are_joined_and_each_address_is_there_once() {
    let mut routes = Routes::default();
    routes.apply_slice(slice("a", "one-x", "one", &[2, 1]));
    routes.apply_slice(slice("a", "one-y", "one", &[2, 3]));
    routes.apply_slice(slice("b", "one-x", "one", &[9]));
    assert_eq!(ports(&routes, "a", "one"), [1, 2, 3]);
    routes.remove_slice(&ServiceKey::new("a", "one-x"));
    assert_eq!(ports(&routes, "a", "one"), [2, 3]);
}

#[test]
fn a_slice_that_moves_to_another_service_affects_both() {
    let mut routes = Routes::default();
    routes.apply_slice(slice("a", "s", "one", &[1]));
    let affected = routes.apply_slice(slice("a", "s", "two", &[1]));
    assert_eq!(
        affected,
        [ServiceKey::new("a", "one"), ServiceKey::new("a", "two")]
    );
    assert!(ports(&routes, "a", "one").is_empty());
}

#[test]
fn a_new_listing_drops_what_it_does_not_contain() {
    let mut routes = Routes::default();
    routes.apply_service(service("a", "one", 1, &["one"]));
    routes.apply_service(service("a", "two", 1, &["two"]));
    routes.apply_slice(slice("a", "one-x", "one", &[1]));
    let gone = routes.retain_services(
        &Scope::Cluster,
        &HashSet::from([ServiceKey::new("a", "one")]),
    );
    assert_eq!(gone, [ServiceKey::new("a", "two")]);
    assert_eq!(
        routes.retain_slices(&Scope::Cluster, &HashSet::new()),
        [ServiceKey::new("a", "one")]
    );
    assert_eq!(resolved(&routes, "two"), None);
    assert!(ports(&routes, "a", "one").is_empty());
}

#[test]
fn a_listing_of_one_namespace_says_nothing_of_the_others() {
    let mut routes = Routes::default();
    for namespace in ["a", "ab"] {
        routes.apply_service(service(namespace, "one", 1, &[namespace]));
        routes.apply_slice(slice(namespace, "one-x", "one", &[1]));
    }
    let scope = Scope::Namespace("a".into());
    let gone = [ServiceKey::new("a", "one")];
    assert_eq!(routes.retain_services(&scope, &HashSet::new()), gone);
    assert_eq!(routes.retain_slices(&scope, &HashSet::new()), gone);
    assert_eq!(resolved(&routes, "ab").as_deref(), Some("ab/one"));
    assert_eq!(ports(&routes, "ab", "one"), [1]);
}

#[derive(Clone, Debug)]
enum Change {
    Apply {
        service: u8,
        created: i64,
        names: Vec<u8>,
    },
    Remove {
        service: u8,
    },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let apply = (0..5u8, 0..4i64, proptest::collection::vec(0..4u8, 0..4)).prop_map(
        |(service, created, names)| Change::Apply {
            service,
            created,
            names,
        },
    );
    proptest::collection::vec(
        prop_oneof![3 => apply, 1 => (0..5u8).prop_map(|service| Change::Remove { service })],
        0..40,
    )
}

proptest! {
    #[test]
    fn after_any_history_a_name_belongs_to_the_oldest_living_claimant(history in changes()) {
        let mut routes = Routes::default();
        let mut living: HashMap<u8, (i64, Vec<u8>)> = HashMap::new();
        for change in history {
            match change {
                Change::Apply { service: id, created, names } => {
                    let served: Vec<String> = names.iter().map(|name| format!("m{name}")).collect();
                    let served: Vec<&str> = served.iter().map(String::as_str).collect();
                    routes.apply_service(service("ns", &format!("s{id}"), created, &served));
                    living.insert(id, (created, names));
                }
                Change::Remove { service: id } => {
                    routes.remove_service(&ServiceKey::new("ns", &format!("s{id}")));
                    living.remove(&id);
                }
            }
        }
        for name in 0..4u8 {
            let oldest = living
                .iter()
                .filter(|(_, (_, names))| names.contains(&name))
                .map(|(id, (created, _))| (*created, format!("ns/s{id}")))
                .min()
                .map(|(_, key)| key);
            prop_assert_eq!(resolved(&routes, &format!("m{name}")), oldest);
        }
        for id in 0..5u8 {
            let qualified = format!("ns/s{id}");
            prop_assert_eq!(resolved(&routes, &qualified).is_some(), living.contains_key(&id));
        }
    }
}
