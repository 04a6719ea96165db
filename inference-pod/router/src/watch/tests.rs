use serde_json::json;

use super::*;
use crate::core::choose::Policy;
use crate::core::routes::Settings;
use crate::core::traffic::Traffic;

fn slice(name: &str, endpoints: &serde_json::Value) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team", "labels": {LABEL_SERVICE: "chat"}},
        "addressType": "IPv4",
        "ports": [{"name": "metrics", "port": 9000}, {"name": "http", "port": 8000}],
        "endpoints": endpoints,
    }))
    .expect("a valid slice")
}

fn service(name: &str, spec: &serde_json::Value) -> DeserializeGuard<RoutedService> {
    serde_json::from_value(json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "team", "creationTimestamp": "2026-01-01T00:00:10Z"},
        "spec": spec,
    }))
    .expect("valid metadata")
}

fn resolves(routes: &Routes, model: &str) -> bool {
    routes.resolve(model).is_some()
}

#[test]
fn only_endpoints_that_may_get_requests_are_taken_at_the_http_port() {
    let record = slice_record(&slice(
        "chat-x",
        &json!([
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false}, "targetRef": {"kind": "Pod", "name": "chat-1", "uid": "u1"}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["10.0.0.4"], "conditions": {"ready": true, "terminating": true}},
            {"addresses": ["10.0.0.5"]},
            {"addresses": ["not-an-address.example"]},
        ]),
    ))
    .expect("belongs to a service");
    assert_eq!(record.service, ServiceKey::new("team", "chat"));
    let addresses: Vec<_> = record
        .ready
        .iter()
        .map(|endpoint| endpoint.address.to_string())
        .collect();
    assert_eq!(addresses, ["10.0.0.1:8000", "10.0.0.5:8000"]);
    assert_eq!(
        (
            record.ready[0].pod_name.as_str(),
            record.ready[0].pod_uid.as_str()
        ),
        ("chat-1", "u1")
    );
}

#[test]
fn a_slice_without_label_or_port_is_nobodys() {
    let mut unlabelled = slice("x", &json!([]));
    unlabelled.metadata.labels = None;
    assert_eq!(slice_record(&unlabelled), None);
    let mut portless = slice("x", &json!([]));
    portless.ports = None;
    assert_eq!(slice_record(&portless), None);
}

#[test]
fn a_service_is_known_by_its_own_name_unless_it_has_others() {
    let spec = json!({"model": {"source": {"uri": "file:///m.gguf"}}, "engine": {"maxSequences": 8}, "routing": {"hold": {"maxRequests": 5, "timeoutSeconds": 7}}});
    let record = service_record(&service("chat", &spec).0.expect("readable"));
    assert_eq!(record.names, ["chat"]);
    assert_eq!(record.created_seconds, 1_767_225_610);
    let expected = Settings {
        policy: Policy::TwoChoices,
        hold_max_requests: 5,
        hold_timeout: Duration::from_secs(7),
        early_stream: None,
        pod_capacity: 8,
        traffic: Traffic::default(),
        tells_ttft: false,
    };
    assert_eq!(record.settings, expected);
    let named = json!({"model": {"names": ["a", "b"]}});
    assert_eq!(
        service_record(&service("chat", &named).0.expect("readable")).names,
        ["a", "b"]
    );
}

#[test]
fn early_streams_and_times_to_first_token_are_as_the_spec_wants_them() {
    let spec = json!({
        "model": {},
        "routing": {"hold": {"earlyStreamSeconds": 8}},
        "scaling": {"targets": [{"metric": "TimeToFirstToken", "milliseconds": 500}]},
    });
    let settings = service_record(&service("chat", &spec).0.expect("readable")).settings;
    assert_eq!(settings.early_stream, Some(Duration::from_secs(8)));
    assert!(settings.tells_ttft);
    let off = json!({"model": {}, "routing": {"hold": {"earlyStreamSeconds": 0}}});
    let settings = service_record(&service("chat", &off).0.expect("readable")).settings;
    assert_eq!((settings.early_stream, settings.tells_ttft), (None, false));
}

#[test]
fn a_listing_after_an_outage_takes_over_additions_and_deletions() {
    let (mut routes, mut seen) = (Routes::default(), HashSet::new());
    let good = json!({"model": {}});
    let mut feed =
        |routes: &mut Routes, event| take_service(routes, &Scope::Cluster, &mut seen, &event);
    for event in [
        Event::Init,
        Event::InitApply(service("one", &good)),
        Event::InitApply(service("two", &good)),
        Event::InitDone,
    ] {
        feed(&mut routes, event);
    }
    assert!(resolves(&routes, "one") && resolves(&routes, "two"));
    for event in [Event::Init, Event::InitApply(service("two", &good))] {
        feed(&mut routes, event);
    }
    assert!(
        resolves(&routes, "one"),
        "an unfinished listing deletes nothing"
    );
    for event in [Event::InitApply(service("three", &good)), Event::InitDone] {
        feed(&mut routes, event);
    }
    assert!(!resolves(&routes, "one") && resolves(&routes, "two") && resolves(&routes, "three"));
    feed(&mut routes, Event::Delete(service("two", &good)));
    assert!(!resolves(&routes, "two"));
}

#[test]
fn an_unreadable_object_leaves_its_last_readable_form_in_force() {
    let (mut routes, mut seen) = (Routes::default(), HashSet::new());
    take_service(
        &mut routes,
        &Scope::Cluster,
        &mut seen,
        &Event::Apply(service("one", &json!({"model": {}}))),
    );
    let unreadable = service("one", &json!({"model": 3}));
    assert!(unreadable.0.is_err());
    for event in [Event::Init, Event::InitApply(unreadable), Event::InitDone] {
        take_service(&mut routes, &Scope::Cluster, &mut seen, &event);
    }
    assert!(resolves(&routes, "one"));
}

#[test]
fn a_service_being_deleted_gives_its_name_up_at_once() {
    let (mut routes, mut seen) = (Routes::default(), HashSet::new());
    take_service(
        &mut routes,
        &Scope::Cluster,
        &mut seen,
        &Event::Apply(service("one", &json!({"model": {}}))),
    );
    let mut leaving = service("one", &json!({"model": {}}));
    leaving.meta_mut().deletion_timestamp = leaving.meta().creation_timestamp.clone();
    take_service(
        &mut routes,
        &Scope::Cluster,
        &mut seen,
        &Event::Apply(leaving),
    );
    assert!(!resolves(&routes, "one"));
}

#[test]
fn slices_follow_the_same_rules() {
    let (mut routes, mut seen) = (Routes::default(), HashSet::new());
    let key = ServiceKey::new("team", "chat");
    let one = slice("chat-x", &json!([{"addresses": ["10.0.0.1"]}]));
    let two = slice("chat-y", &json!([{"addresses": ["10.0.0.2"]}]));
    for event in [
        Event::Init,
        Event::InitApply(one),
        Event::InitApply(two.clone()),
        Event::InitDone,
    ] {
        take_slice(&mut routes, &Scope::Cluster, &mut seen, &event);
    }
    assert_eq!(routes.ready_endpoints(&key).len(), 2);
    for event in [Event::Init, Event::InitApply(two.clone()), Event::InitDone] {
        take_slice(&mut routes, &Scope::Cluster, &mut seen, &event);
    }
    assert_eq!(routes.ready_endpoints(&key).len(), 1);
    take_slice(&mut routes, &Scope::Cluster, &mut seen, &Event::Delete(two));
    assert!(routes.ready_endpoints(&key).is_empty());
}

#[test]
fn patience_grows_to_a_bound_and_starts_over_after_success() {
    let mut patience = Patience::default();
    let waits: Vec<_> = patience.by_ref().take(40).collect();
    assert!(waits[0] < Duration::from_millis(200));
    assert!(
        waits[10..]
            .iter()
            .all(|wait| *wait >= Duration::from_millis(2500) && *wait <= Duration::from_secs(5))
    );
    patience.reset();
    assert!(patience.next().expect("endless") < Duration::from_millis(200));
}

fn with_traffic(traffic: &serde_json::Value) -> RoutedService {
    let mut service = service("chat", &json!({"model": {}})).0.expect("readable");
    service.status =
        Some(json!({"rollout": {"phase": "OfANewerRelease", "traffic": traffic}, "unknown": [1]}));
    service
}

#[test]
fn a_canarys_shares_are_read_and_unknown_fields_beside_them_do_not_matter() {
    let told = json!([
        {"revision": "aaaaaaaaaa", "podPrefix": "chat-aaaaaaaaaa-", "percent": 80, "newField": {}},
        {"revision": "bbbbbbbbbb", "podPrefix": "chat-bbbbbbbbbb-", "percent": 20},
    ]);
    let traffic = service_record(&with_traffic(&told)).settings.traffic;
    let read: Vec<_> = traffic
        .shares()
        .iter()
        .map(|share| (&*share.revision, &*share.pod_prefix, share.percent))
        .collect();
    assert_eq!(
        read,
        [
            ("aaaaaaaaaa", "chat-aaaaaaaaaa-", 80),
            ("bbbbbbbbbb", "chat-bbbbbbbbbb-", 20)
        ]
    );
}

#[test]
fn shares_that_cannot_be_read_leave_all_pods_equal() {
    for told in [
        json!(null),
        json!({}),
        json!("all"),
        json!([1]),
        json!([{"revision": "a", "podPrefix": "a-"}]),
        json!([{"revision": "a", "podPrefix": "a-", "percent": -1}]),
        json!([{"revision": "a", "podPrefix": "a-", "percent": "20"}]),
        json!([{"revision": "a", "podPrefix": "a-", "percent": 101}]),
    ] {
        let record = service_record(&with_traffic(&told));
        assert_eq!(record.settings.traffic, Traffic::default(), "{told}");
    }
}

#[test]
fn namespaces_are_watched_one_by_one_and_none_means_all() {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(scopes(&[]), [Scope::Cluster]);
    assert_eq!(scopes(&names(&["", ""])), [Scope::Cluster]);
    let namespace = |name: &str| Scope::Namespace(name.into());
    assert_eq!(
        scopes(&names(&["b", "a", "", "b"])),
        [namespace("a"), namespace("b")]
    );
}

#[test]
fn all_is_known_once_each_list_has_ended_once() {
    let lists = Lists::of(&scopes(&["a".into(), "b".into()]));
    let (mut a, mut b) = (lists.one(), lists.one());
    assert!(!a.is_the_last() && !a.is_the_last());
    assert!(b.is_the_last());
    assert!(!b.is_the_last() && !a.is_the_last());
}
