use super::*;
use crate::testing::service;
use proptest::prelude::*;
use serde_json::json;

#[test]
fn a_source_alone_makes_a_service() {
    let checked = validate(&service(
        json!({"model": {"source": {"uri": "https://host/m.gguf"}}}),
    ))
    .expect("valid");
    assert_eq!(checked.model_names, ["demo"]);
    assert_eq!(
        checked.source.expect("source").uri,
        ModelUri::Https {
            url: "https://host/m.gguf".into()
        }
    );
    assert_eq!((checked.replicas, checked.terminate_first), (1, false));
    assert_eq!(checked.engine.kv_bytes, 512 << 20);
}

#[test]
fn a_simulated_service_needs_no_source_and_gets_default_timings() {
    let checked = validate(&service(json!({"engine": {"executor": "simulated"}}))).expect("valid");
    assert_eq!(checked.source, None);
    assert_eq!(checked.engine.simulated, Some(SimulatedConfig::default()));
}

#[test]
fn every_scheme_reads_into_its_parts() {
    let uri = |text: &str| ModelUri::parse(text).expect(text);
    assert_eq!(
        uri("file:///var/lib/m/a.gguf"),
        ModelUri::File {
            directory: "/var/lib/m".into(),
            file: "a.gguf".into()
        }
    );
    assert_eq!(
        uri("pvc://models/llama/a.gguf"),
        ModelUri::Pvc {
            claim: "models".into(),
            path: "llama/a.gguf".into()
        }
    );
    assert_eq!(
        uri("image://docker.io/acme/m:1.0//models/a.gguf"),
        ModelUri::Image {
            reference: "docker.io/acme/m:1.0".into(),
            path: "/models/a.gguf".into()
        }
    );
}

#[test]
fn each_malformed_address_says_how_it_is_written() {
    for (text, expected) in [
        ("smollm2", UriError::Scheme),
        ("ftp://host/x", UriError::Scheme),
        ("http://host/x", UriError::Scheme),
        ("https://host", UriError::Https),
        ("https:///x", UriError::Https),
        ("https://user:secret@host/x", UriError::Https),
        ("https://host/a b", UriError::Https),
        ("file://a.gguf", UriError::File),
        ("file:///a.gguf", UriError::File),
        ("file:///models/", UriError::File),
        ("pvc://claim", UriError::Pvc),
        ("pvc://Claim/x", UriError::Pvc),
        ("pvc:///x", UriError::Pvc),
        ("image://ref/path", UriError::Image),
        ("image:////path", UriError::Image),
        ("file:///models/../etc/shadow", UriError::Climbs),
        ("pvc://claim/../x", UriError::Climbs),
    ] {
        assert_eq!(ModelUri::parse(text), Err(expected), "{text}");
    }
}

#[test]
fn crossing_bounds_and_bad_sizes_are_refused() {
    let with = |spec: Value| validate(&service(spec)).expect_err("invalid").to_string();
    let base = json!({"executor": "simulated"});
    assert!(
        with(json!({"engine": base, "scaling": {"minReplicas": 3, "maxReplicas": 2}}))
            .contains("minReplicas (3)")
    );
    assert!(
        with(json!({"engine": {"executor": "simulated", "kvMemory": "-1Gi"}}))
            .contains("engine.kvMemory")
    );
    let target = json!([{"metric": "InFlightRequests", "averageValue": "0"}]);
    assert!(with(json!({"engine": base, "scaling": {"targets": target}})).contains("averageValue"));
    assert!(
        with(json!({"engine": base, "hardware": {"resources": {"requests": {"cpu": "-1"}}}}))
            .contains("hardware.resources")
    );
    assert!(with(json!({"model": {}})).contains("model.source is required"));
}

#[test]
fn replicas_stay_within_bounds_only_while_pagoda_owns_them() {
    let replicas = |managed_by: &str, asked: Value| {
        let scaling = json!({"minReplicas": 2, "maxReplicas": 4, "managedBy": managed_by});
        validate(&service(
            json!({"engine": {"executor": "simulated"}, "replicas": asked, "scaling": scaling}),
        ))
        .expect("valid")
        .replicas
    };
    assert_eq!(
        [
            replicas("Pagoda", json!(9)),
            replicas("Pagoda", json!(0)),
            replicas("Pagoda", Value::Null)
        ],
        [4, 2, 2]
    );
    assert_eq!(
        [
            replicas("External", json!(9)),
            replicas("External", json!(0)),
            replicas("External", Value::Null)
        ],
        [9, 0, 2]
    );
}

#[test]
fn a_service_that_may_go_to_zero_starts_with_one_pod() {
    let scaling = json!({"minReplicas": 0, "maxReplicas": 4});
    let checked = validate(&service(
        json!({"engine": {"executor": "simulated"}, "scaling": scaling}),
    ))
    .expect("valid");
    assert_eq!(checked.replicas, 1);
}

#[test]
fn gpus_end_old_pods_first_unless_told_otherwise() {
    let with = |strategy: &str| {
        let spec = json!({"engine": {"executor": "simulated"}, "hardware": {"accelerator": {"kind": "nvidia"}}, "rollout": {"strategy": strategy}});
        validate(&service(spec)).expect("valid").terminate_first
    };
    assert_eq!(
        [with("Auto"), with("Surge"), with("TerminateFirst")],
        [true, false, true]
    );
}

#[test]
fn an_overlay_that_is_no_pod_spec_is_refused_with_the_field() {
    let spec = json!({"engine": {"executor": "simulated"}, "podTemplate": {"spec": {"tolerations": "all"}}});
    assert!(
        validate(&service(spec))
            .expect_err("invalid")
            .to_string()
            .contains("podTemplate.spec")
    );
    let spec = json!({"engine": {"executor": "simulated"}, "podTemplate": {"spec": {"containers": [{"name": "engine", "image": "x"}]}}});
    assert_eq!(
        validate(&service(spec)),
        Err(ValidateError::Owned("image", "engine".into()))
    );
}

proptest! {
    #[test]
    fn no_address_panics(text in "(https|file|pvc|image|x)?(://)?.{0,60}") {
        let _ = ModelUri::parse(&text);
    }
}
