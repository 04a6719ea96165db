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
        ModelUri::Remote {
            scheme: RemoteScheme::Https,
            uri: "https://host/m.gguf".into()
        }
    );
    assert_eq!(checked.replicas, 1);
    assert_eq!(checked.engine.kv_bytes, 512 << 20);
}

#[test]
fn a_simulated_service_needs_no_source_and_gets_default_timings() {
    let checked = validate(&service(json!({"engine": {"executor": "simulated"}}))).expect("valid");
    assert_eq!(checked.source, None);
    assert_eq!(
        checked.engine.simulated,
        Some(pagoda_crds::wire::SimulatedConfig::default())
    );
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
        ("hf://owner/m.gguf", UriError::Hf),
        ("hf://owner/repo/", UriError::Hf),
        ("hf://owner/repo/m.gguf@", UriError::Hf),
        ("hf://owner/repo/m.gguf@a@b", UriError::Hf),
        ("hf://-/repo/m.gguf", UriError::Hf),
        ("s3://ab/m.gguf", UriError::Bucket),
        ("s3://Bucket/m.gguf", UriError::Bucket),
        ("gs://bucket", UriError::Bucket),
        ("gs://bucket/dir/", UriError::Bucket),
        ("az://acc/container", UriError::Az),
        ("az://Account/c/m.gguf", UriError::Az),
        ("oci://ghcr.io/acme/models:v1", UriError::Oci),
        ("oci://ghcr.io/acme/models@sha256:12//m.gguf", UriError::Oci),
        ("oci://ghcr.io/Acme//m.gguf", UriError::Oci),
        ("oci://ghcr.io:x/acme//m.gguf", UriError::Oci),
        ("s3://bucket/../m.gguf", UriError::Climbs),
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
fn every_remote_scheme_is_taken_as_it_is_written() {
    let digest = format!(
        "oci://ghcr.io/acme/models@sha256:{}//m.gguf",
        "0".repeat(64)
    );
    for (text, scheme) in [
        ("https://[::1]:8443/m.gguf?x=1", RemoteScheme::Https),
        ("hf://Acme/Smol_LM.2/dir/m.gguf", RemoteScheme::Hf),
        ("hf://a/b/m.gguf@refs/pr/1", RemoteScheme::Hf),
        ("s3://my-bucket/dir/m.gguf", RemoteScheme::S3),
        ("gs://my.bucket_1/m.gguf", RemoteScheme::Gs),
        ("az://account1/$web/dir/m.gguf", RemoteScheme::Az),
        (
            "oci://registry:5000/acme/models:v1.0//m.gguf",
            RemoteScheme::Oci,
        ),
        ("oci://ghcr.io/acme/models//dir/m.gguf", RemoteScheme::Oci),
        (&digest, RemoteScheme::Oci),
    ] {
        let expected = Ok(ModelUri::Remote {
            scheme,
            uri: text.to_owned(),
        });
        assert_eq!(ModelUri::parse(text), expected, "{text}");
    }
}

#[test]
fn what_stands_beside_an_address_must_go_with_it() {
    let refused = |source: Value| {
        let spec = json!({"model": {"source": source}});
        validate(&service(spec)).expect_err("invalid").to_string()
    };
    let hf = "hf://a/b/m.gguf";
    for (source, word) in [
        (
            json!({"uri": "https://h/m", "endpoint": "https://h"}),
            "goes with hf",
        ),
        (
            json!({"uri": hf, "endpoint": "ftp://h"}),
            "endpoint is written",
        ),
        (
            json!({"uri": hf, "endpoint": "https://user@h"}),
            "endpoint is written",
        ),
        (
            json!({"uri": hf, "endpoint": "https://h/x?y"}),
            "endpoint is written",
        ),
        (
            json!({"uri": hf, "region": "eu-central-1"}),
            "region goes with",
        ),
        (
            json!({"uri": "s3://bucket/m", "region": "EU"}),
            "region holds",
        ),
        (
            json!({"uri": "pvc://claim/m", "credentials": {"secretName": "s"}}),
            "credentials go with",
        ),
        (
            json!({"uri": hf, "credentials": {"secretName": "S!"}}),
            "secretName is the name",
        ),
        (json!({"uri": hf, "sha256": "12"}), "64 hexadecimal"),
    ] {
        let message = refused(source.clone());
        assert!(message.contains(word), "{source}: {message}");
    }
    let all = json!({"uri": "s3://bucket/m.gguf", "endpoint": "http://minio:9000/x", "region": "eu-central-1",
        "credentials": {"secretName": "reader"}});
    let source = validate(&service(json!({"model": {"source": all}})))
        .expect("valid")
        .source
        .expect("a source");
    assert_eq!(
        (source.endpoint.as_deref(), source.secret_name.as_deref()),
        (Some("http://minio:9000/x"), Some("reader"))
    );
    assert_eq!(
        source.cache_key(),
        Some(names::cache_key(
            "s3://bucket/m.gguf",
            Some("http://minio:9000/x"),
            None
        ))
    );
}

#[test]
fn another_server_needs_no_source_and_is_told_apart_from_pagodas_engine() {
    let checked = validate(&service(
        json!({"engine": {"image": "vllm/vllm-openai:v0.11.0", "args": ["--port", "9000"], "port": 9000}}),
    ))
    .expect("valid");
    let foreign = checked.foreign.expect("another server");
    assert_eq!(
        (foreign.port, foreign.health_path.as_str()),
        (9000, "/health")
    );
    assert_eq!(checked.source, None);
    for (engine, word) in [
        (
            json!({"executor": "simulated", "image": "a/b"}),
            "engine.executor chooses",
        ),
        (
            json!({"executor": "simulated", "args": ["x"]}),
            "set engine.image",
        ),
        (json!({"image": "a/b", "port": 0}), "engine.port"),
        (json!({"image": "a b"}), "reference of a container image"),
        (
            json!({"image": "a/b", "healthPath": "health"}),
            "engine.healthPath",
        ),
    ] {
        let message = validate(&service(json!({"engine": engine.clone()})))
            .expect_err("invalid")
            .to_string();
        assert!(message.contains(word), "{engine}: {message}");
    }
}

#[test]
fn hardware_that_cannot_be_asked_for_is_refused() {
    for (hardware, word) in [
        (
            json!({"accelerator": {"kind": "nvidia", "resource": "gpu"}}),
            "accelerator.resource",
        ),
        (
            json!({"accelerator": {"kind": "nvidia", "products": ["A 100"]}}),
            "accelerator.products",
        ),
        (json!({"runtimeClassName": "Nvidia"}), "runtimeClassName"),
        (
            json!({"topology": {"domainLabel": "a/b/c"}}),
            "topology.domainLabel",
        ),
        (
            json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
            "may not exceed limits",
        ),
    ] {
        let spec = json!({"engine": {"executor": "simulated"}, "hardware": hardware.clone()});
        let message = validate(&service(spec)).expect_err("invalid").to_string();
        assert!(message.contains(word), "{hardware}: {message}");
    }
}

#[test]
fn canary_steps_grow_within_their_range() {
    let with = |rollout: Value| {
        let spec = json!({"engine": {"executor": "simulated"}, "rollout": rollout});
        validate(&service(spec)).map(|s| s.rollout.canary.steps)
    };
    assert_eq!(with(json!({"strategy": "Canary"})), Ok(vec![5, 25, 50]));
    for steps in [
        json!([]),
        json!([5, 5]),
        json!([50, 5]),
        json!([0, 5]),
        json!([100]),
    ] {
        let rollout = json!({"strategy": "Canary", "canary": {"steps": steps}});
        assert!(with(rollout.clone()).is_err(), "{rollout}");
    }
    assert!(with(json!({"strategy": "Surge", "canary": {}})).is_err());
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
    fn no_address_panics(text in "(https|hf|s3|gs|az|oci|file|pvc|image|x)?(://)?[a-z@:/. é]{0,60}") {
        let _ = ModelUri::parse(&text);
    }
}
