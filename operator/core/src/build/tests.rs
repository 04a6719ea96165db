use super::*;
use crate::testing::checked;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Service as CoreService, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use serde::{Serialize, de::DeserializeOwned};

fn images() -> Images {
    Images {
        engine: "docker.io/pagoda/engine:dev".into(),
        pull_policy: "IfNotPresent".into(),
    }
}

fn build_spec(spec: Value) -> Children {
    build(&checked(spec), &images())
}

fn pod_spec(spec: Value) -> Value {
    let children = build_spec(spec);
    children.list.last().expect("a Deployment").object["spec"]["template"]["spec"].clone()
}

fn with_source(uri: &str, sha256: Option<&str>) -> Value {
    let mut source = json!({"uri": uri});
    if let Some(hash) = sha256 {
        source["sha256"] = hash.into();
    }
    json!({"model": {"source": source}})
}

const HASH: &str = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";

/// Holds when the typed object of the API has every field that was built, under that very name.
fn assert_fits<T: Serialize + DeserializeOwned>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).expect("fits its type");
    assert_eq!(&serde_json::to_value(typed).expect("JSON"), object);
}

#[test]
fn a_fetched_model_becomes_these_objects() {
    let children = build_spec(with_source("https://host/m.gguf", Some(HASH)));
    let objects: Vec<&Value> = children.list.iter().map(|c| &c.object).collect();
    insta::assert_yaml_snapshot!("fetched_model", objects);
}

#[test]
fn a_model_in_an_image_becomes_this_pod() {
    insta::assert_yaml_snapshot!(
        "image_model_pod",
        pod_spec(with_source("image://docker.io/acme/m:1//m.gguf", None))
    );
}

#[test]
fn a_simulated_service_becomes_this_pod() {
    insta::assert_yaml_snapshot!(
        "simulated_pod",
        pod_spec(json!({"engine": {"executor": "simulated"}}))
    );
}

#[test]
fn every_field_of_every_child_is_one_of_the_api() {
    for spec in [
        with_source("https://host/m.gguf", Some(HASH)),
        with_source("pvc://claim/m.gguf", None),
        with_source("image://acme/m:1//m.gguf", Some(HASH)),
        with_source("file:///models/m.gguf", Some(HASH)),
        json!({"engine": {"executor": "simulated"}, "hardware": {"accelerator": {"kind": "nvidia", "count": 2}}}),
    ] {
        for child in build_spec(spec).list {
            match child.kind {
                ChildKind::ConfigMap => assert_fits::<ConfigMap>(&child.object),
                ChildKind::ServiceAccount => assert_fits::<ServiceAccount>(&child.object),
                ChildKind::Service => assert_fits::<CoreService>(&child.object),
                ChildKind::PodDisruptionBudget => assert_fits::<PodDisruptionBudget>(&child.object),
                ChildKind::Deployment => assert_fits::<Deployment>(&child.object),
            }
        }
    }
}

#[test]
fn models_on_node_or_claim_are_read_in_place_and_copied_only_to_check_a_hash() {
    let in_place = pod_spec(with_source("pvc://claim/dir/m.gguf", None));
    assert_eq!(in_place.get("initContainers"), None);
    assert_eq!(
        in_place["volumes"][1]["persistentVolumeClaim"],
        json!({"claimName": "claim", "readOnly": true})
    );
    let copied = pod_spec(with_source("file:///models/m.gguf", Some(HASH)));
    let args = copied["initContainers"][0]["args"].to_string();
    assert!(
        args.contains("file:///source/m.gguf") && args.contains(&HASH.to_lowercase()),
        "{args}"
    );
    assert_eq!(copied["volumes"][1]["emptyDir"], json!({}));
    assert_eq!(copied["volumes"][2]["hostPath"]["path"], "/models");
}

#[test]
fn the_engine_is_told_where_its_model_lies() {
    let path = |spec: Value| -> Option<String> {
        let config = &build_spec(spec).list[0].object["data"]["engine.json"];
        let config: pagoda_crds::wire::EngineConfig =
            serde_json::from_str(config.as_str().expect("text")).expect("a configuration");
        config.model_path
    };
    assert_eq!(
        path(with_source("pvc://claim/dir/m.gguf", None)).as_deref(),
        Some("/model/dir/m.gguf")
    );
    assert_eq!(
        path(with_source("file:///models/m.gguf", None)).as_deref(),
        Some("/model/m.gguf")
    );
    assert_eq!(
        path(with_source("pvc://claim/m.gguf", Some(HASH))).as_deref(),
        Some(names::MODEL_PATH)
    );
    assert_eq!(path(json!({"engine": {"executor": "simulated"}})), None);
}

#[test]
fn a_change_of_the_engine_changes_the_revision_and_a_change_of_scale_does_not() {
    let base = json!({"engine": {"executor": "simulated"}});
    let revision = |spec: Value| build_spec(spec).revision;
    assert_eq!(revision(base.clone()), revision(base.clone()));
    let scaled =
        json!({"engine": {"executor": "simulated"}, "replicas": 3, "scaling": {"maxReplicas": 5}});
    assert_eq!(revision(base.clone()), revision(scaled));
    assert_ne!(
        revision(base),
        revision(json!({"engine": {"executor": "simulated", "maxSequences": 2}}))
    );
}

#[test]
fn gpus_are_limits_beside_the_users_own() {
    let spec = json!({
        "model": {"source": {"uri": "https://host/m.gguf"}},
        "hardware": {"accelerator": {"kind": "nvidia", "count": 2}, "resources": {"limits": {"memory": "4Gi"}}}
    });
    let resources = pod_spec(spec)["containers"][0]["resources"].clone();
    assert_eq!(
        resources,
        json!({"limits": {"memory": "4Gi", "nvidia.com/gpu": "2"}})
    );
}

#[test]
fn default_memory_covers_the_kv_cache() {
    let spec =
        json!({"model": {"source": {"uri": "https://host/m.gguf"}}, "engine": {"kvMemory": "1Gi"}});
    assert_eq!(
        pod_spec(spec)["containers"][0]["resources"]["requests"]["memory"],
        "1536Mi"
    );
}

#[test]
fn an_overlay_adds_and_changes_by_name() {
    let spec = json!({
        "engine": {"executor": "simulated"},
        "podTemplate": {
            "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
            "spec": {
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "config", "emptyDir": {}}],
                "containers": [
                    {"name": "engine", "env": [{"name": "A", "value": "1"}], "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
                    {"name": "sidecar", "image": "acme/sidecar:1"}
                ]
            }
        }
    });
    let children = build_spec(spec);
    let template = &children.list.last().expect("a Deployment").object["spec"]["template"];
    assert_eq!(template["metadata"]["labels"]["team"], "a");
    assert_eq!(template["metadata"]["labels"][names::LABEL_SERVICE], "demo");
    let spec = &template["spec"];
    assert_eq!(spec["containers"][0]["image"], images().engine);
    assert_eq!(
        spec["containers"][0]["volumeMounts"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(spec["containers"][1]["name"], "sidecar");
    assert_eq!(
        spec["volumes"],
        json!([{"name": "config", "emptyDir": {}}, {"name": "scratch", "emptyDir": {}}])
    );
    assert_eq!(spec["tolerations"][0]["key"], "gpu");
}

#[test]
fn every_container_of_ours_is_locked_down() {
    let pod = pod_spec(with_source("image://acme/m:1//m.gguf", None));
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let lists = [&pod["containers"], &pod["initContainers"]];
    let containers: Vec<&Value> = lists
        .into_iter()
        .flat_map(|l| l.as_array().expect("a list"))
        .collect();
    assert_eq!(containers.len(), 3);
    for container in containers {
        let context = &container["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
    }
}

#[test]
fn pods_live_longer_than_their_drain() {
    let pod =
        pod_spec(json!({"engine": {"executor": "simulated"}, "rollout": {"drainSeconds": 60}}));
    assert_eq!(pod["terminationGracePeriodSeconds"], 75);
}
