use super::*;
use crate::autoscale::GatewayReading;
use proptest::prelude::*;

fn told(routes: Option<RouteView>, previous: &InferenceServiceStatus) -> InferenceServiceStatus {
    let seen = Observed {
        routes,
        ..Observed::default()
    };
    status(&service(1), REVISION, &seen, previous, &at(1))
}

fn routes_ready(status: &InferenceServiceStatus) -> (String, String) {
    let condition = find(status, ROUTES_READY).expect("always there");
    (condition.status.clone(), condition.reason.clone())
}

fn owned(pair: (&str, &str)) -> (String, String) {
    (pair.0.to_owned(), pair.1.to_owned())
}

#[test]
fn routes_are_ready_when_every_gateway_that_answers_knows_the_service() {
    let knows = Some(GatewayReading {
        route_pods: Some(0),
        ..GatewayReading::default()
    });
    let ignorant = Some(GatewayReading::default());
    let nothing = InferenceServiceStatus::default();
    for (gateways, expected) in [
        (vec![knows, knows], ("True", "Known")),
        (vec![knows, None], ("True", "Known")),
        (vec![knows, ignorant], ("False", "Spreading")),
        (vec![None], ("Unknown", "NoGateway")),
        (vec![], ("Unknown", "NoGateway")),
    ] {
        let view = RouteView::of(&gateways, vec![]);
        assert_eq!(routes_ready(&told(Some(view), &nothing)), owned(expected));
    }
    let before = told(Some(RouteView::of(&[knows], vec![])), &nothing);
    assert_eq!(
        routes_ready(&told(None, &before)),
        owned(("True", "Known")),
        "a restart is no news"
    );
    assert_eq!(
        routes_ready(&told(None, &nothing)),
        owned(("Unknown", "Starting"))
    );
}

#[test]
fn a_name_that_an_older_service_has_is_told() {
    let mut index = NameIndex::default();
    index.insert("b/old", 1, &["chat".into()]);
    index.insert("a/demo", 2, &["chat".into(), "own".into()]);
    let view = RouteView::of(&[], index.contested("a/demo"));
    let nothing = InferenceServiceStatus::default();
    let contested = told(Some(view), &nothing);
    assert_eq!(routes_ready(&contested), owned(("False", "NameContested")));
    assert!(
        find(&contested, ROUTES_READY)
            .expect("there")
            .message
            .contains("\"chat\" go to b/old")
    );
    assert!(
        transitions(&nothing, &contested)
            .iter()
            .any(|t| t.reason == "NameContested")
    );
    assert_eq!(
        index.remove("b/old"),
        ["a/demo"],
        "whose names lead home again"
    );
    assert_eq!(index.contested("a/demo"), []);
}

#[test]
fn a_name_that_reads_like_another_services_own_is_that_services() {
    let mut index = NameIndex::default();
    index.insert("a/demo", 1, &["b/other".into()]);
    assert_eq!(index.contested("a/demo"), []);
    assert_eq!(index.insert("b/other", 9, &["other".into()]), ["a/demo"]);
    assert_eq!(
        index.contested("a/demo"),
        [Contested {
            name: "b/other".into(),
            owner: "b/other".into()
        }]
    );
}

proptest! {
    /// Against the rule in one line: the least (creation, service) of all who claim a name has it.
    #[test]
    fn names_belong_to_the_oldest_whatever_the_order(
        changes in proptest::collection::vec((0_u8..5, 0_i64..3, proptest::collection::vec(0_u8..4, 0..3), any::<bool>()), 1..24)) {
        let mut index = NameIndex::default();
        let mut all = std::collections::BTreeMap::new();
        for (service, created, names, gone) in changes {
            let service = format!("ns/s{service}");
            let names: std::collections::BTreeSet<String> = names.iter().map(|n| format!("n{n}")).collect();
            let names: Vec<String> = names.into_iter().collect();
            let before: Vec<_> = all.keys().map(|s: &String| (s.clone(), index.contested(s))).collect();
            let touched = if gone {
                all.remove(&service);
                index.remove(&service)
            } else {
                all.insert(service.clone(), (created, names.clone()));
                index.insert(&service, created, &names)
            };
            for name in 0..4 {
                let name = format!("n{name}");
                let claims = all.iter().filter(|(_, (_, names))| names.contains(&name));
                let owner = claims.map(|(s, (created, _))| (*created, s.clone())).min().map(|(_, s)| s);
                prop_assert_eq!(index.owner(&name).map(str::to_owned), owner);
            }
            for (other, contested) in before {
                let changed = all.contains_key(&other) && index.contested(&other) != contested;
                prop_assert!(!changed || other == service || touched.contains(&other), "{} was not told", other);
            }
        }
    }
}
