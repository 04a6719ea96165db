use super::*;
use crate::testing::checked;
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{ConfigMap, Service as CoreService, ServiceAccount},
    policy::v1::PodDisruptionBudget,
};
use pagoda_crds::wire::{Guesses, KvType};
use serde::{Serialize, de::DeserializeOwned};

fn without_cache() -> Setup {
    Setup {
        images: Images {
            engine: "docker.io/pagoda/engine:dev".into(),
            pull_policy: "IfNotPresent".into(),
        },
        model_cache: None,
    }
}

fn with_cache() -> Setup {
    Setup {
        model_cache: Some(ModelCache {
            host_path: "/var/lib/pagoda/models".into(),
            bytes_per_namespace: 64 << 30,
        }),
        ..without_cache()
    }
}

fn build_spec(spec: Value) -> Children {
    build(&checked(spec), &without_cache())
}

fn pod_spec(spec: Value) -> Value {
    build_spec(spec).pod_template()["spec"].clone()
}

/// In the order to apply them.
fn all(children: &Children) -> Vec<Child> {
    let shared = children.shared.iter().cloned();
    let own = children.config_map.iter().cloned();
    shared
        .chain(own)
        .chain([children.deployment_with(2)])
        .collect()
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

/// Keys in order, whatever order this build keeps them in.
fn sorted(object: &Value) -> Value {
    let mut object = object.clone();
    object.sort_all_objects();
    object
}

#[test]
fn a_fetched_model_becomes_these_objects() {
    let children = build_spec(with_source("https://host/m.gguf", Some(HASH)));
    let objects: Vec<Value> = all(&children).into_iter().map(|c| c.object).collect();
    insta::assert_yaml_snapshot!("fetched_model", sorted(&objects.into()));
}

#[test]
fn a_model_in_an_image_becomes_this_pod() {
    insta::assert_yaml_snapshot!(
        "image_model_pod",
        sorted(&pod_spec(with_source(
            "image://docker.io/acme/m:1//m.gguf",
            None
        )))
    );
}

#[test]
fn a_simulated_service_becomes_this_pod() {
    insta::assert_yaml_snapshot!(
        "simulated_pod",
        sorted(&pod_spec(json!({"engine": {"executor": "simulated"}})))
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
        cached_source(),
        foreign(),
    ] {
        let (service, setup) = (checked(spec), with_cache());
        let children = build(&service, &setup);
        let job = prefetch_job(&service, &children, &["n1".into(), "n2".into()]);
        for child in all(&children).into_iter().chain(job) {
            match child.kind {
                ChildKind::Job => assert_fits::<Job>(&child.object),
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

fn config_of(children: &Children) -> pagoda_crds::wire::EngineConfig {
    let config = &children.config_map.as_ref().expect("there").object["data"]["engine.json"];
    serde_json::from_str(config.as_str().expect("text")).expect("a configuration")
}

#[test]
fn the_engine_is_told_where_its_model_lies() {
    let path = |spec: Value| -> Option<String> { config_of(&build_spec(spec)).model_path };
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
fn the_engine_is_told_of_its_cache_and_its_guesses_only_what_is_not_the_default() {
    let with = |engine: Value| {
        let mut spec = with_source("https://host/m.gguf", None);
        spec["engine"] = engine;
        build_spec(spec)
    };
    let changed = json!({"kvType": "int8", "prefixCache": false, "guesses": "off"});
    let config = config_of(&with(changed));
    assert_eq!(config.kv_type, KvType::Int8);
    assert_eq!((config.prefix_cache, config.guesses), (false, Guesses::Off));
    let same = json!({"kvType": "f16", "prefixCache": true, "guesses": "auto"});
    let (same, none) = (with(same), with(json!({})));
    assert_eq!(same.config_map, none.config_map);
    let text = none.config_map.expect("there").object["data"]["engine.json"].to_string();
    assert!(
        !text.contains("kvType") && !text.contains("prefixCache"),
        "{text}"
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
    let template = children.pod_template();
    assert_eq!(template["metadata"]["labels"]["team"], "a");
    assert_eq!(template["metadata"]["labels"][names::LABEL_SERVICE], "demo");
    let spec = &template["spec"];
    assert_eq!(
        spec["containers"][0]["image"],
        without_cache().images.engine
    );
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

fn cached_source() -> Value {
    json!({"model": {"source": {"uri": "s3://models/m.gguf", "endpoint": "https://minio:9000", "region": "eu-central-1",
        "credentials": {"secretName": "reader"}}}})
}

fn foreign() -> Value {
    json!({
        "model": {"names": ["smol", "small"], "source": {"uri": "hf://a/b/m.gguf"}},
        "hardware": {
            "accelerator": {"kind": "nvidia", "count": 2, "products": ["NVIDIA-H100-80GB-HBM3"]},
            "runtimeClassName": "nvidia",
            "topology": {"domainLabel": "nvidia.com/gpu.clique"}
        },
        "engine": {"image": "vllm/vllm-openai:v0.11.0", "command": ["vllm"], "args": ["serve", "$(PAGODA_MODEL_PATH)"], "port": 9000},
        "rollout": {"drainSeconds": 60}
    })
}

#[test]
fn a_cached_model_becomes_this_pod() {
    let children = build(&checked(cached_source()), &with_cache());
    insta::assert_yaml_snapshot!("cached_model_pod", sorted(children.pod_template()));
    let path = config_of(&children).model_path.expect("a path");
    let key = children.model_key.expect("a key");
    assert_eq!(path, format!("/model/{key}/model.gguf"));
}

#[test]
fn another_server_becomes_this_pod() {
    let children = build(&checked(foreign()), &with_cache());
    insta::assert_yaml_snapshot!("foreign_pod", sorted(children.pod_template()));
    assert_eq!(children.config_map, None);
}

#[test]
fn a_prefetch_becomes_this_job() {
    let service = checked(cached_source());
    let children = build(&service, &with_cache());
    let job = prefetch_job(&service, &children, &["n1".into(), "n2".into()]).expect("it fetches");
    insta::assert_yaml_snapshot!("prefetch_job", sorted(&job.object));
    let labels = &job.object["spec"]["template"]["metadata"]["labels"];
    assert_eq!(
        labels.get(names::LABEL_SERVICE),
        None,
        "no selector finds it"
    );
    let simulated = checked(json!({"engine": {"executor": "simulated"}}));
    let children = build(&simulated, &with_cache());
    assert_eq!(prefetch_job(&simulated, &children, &["n1".into()]), None);
}

#[test]
fn a_revision_names_its_objects_and_finds_its_own_pods_only() {
    let children = build_spec(json!({"engine": {"executor": "simulated"}}));
    let deployment = children.deployment_with(3).object;
    let name = names::revision_name("demo", &children.revision);
    assert_eq!(children.revision.len(), names::REVISION_DIGITS);
    assert_eq!(deployment["metadata"]["name"], name);
    assert_eq!(deployment["spec"]["replicas"], 3);
    let selector = &deployment["spec"]["selector"]["matchLabels"];
    assert_eq!(
        *selector,
        json!({names::LABEL_SERVICE: "demo", names::LABEL_REVISION: children.revision})
    );
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    for (key, value) in selector.as_object().expect("a map") {
        assert_eq!(labels[key], *value);
    }
    let volumes = &deployment["spec"]["template"]["spec"]["volumes"];
    assert_eq!(volumes[0]["configMap"]["name"], name);
    assert_eq!(children.config_map.expect("there").name, name);
}

#[test]
fn the_applied_hash_tells_numbers_of_pods_and_settings_of_the_rollout_apart() {
    let hash = |rollout: Value, replicas| {
        let children = build_spec(json!({"engine": {"executor": "simulated"}, "rollout": rollout}));
        let object = children.deployment_with(replicas).object;
        let hash = object["metadata"]["annotations"][names::ANNOTATION_APPLIED_HASH].clone();
        (children.revision, hash)
    };
    let (surge, ends_first) = (
        json!({"strategy": "Surge"}),
        json!({"strategy": "TerminateFirst"}),
    );
    assert_eq!(hash(surge.clone(), 1), hash(surge.clone(), 1));
    assert_ne!(hash(surge.clone(), 1), hash(surge.clone(), 2));
    let (one, other) = (hash(surge, 1), hash(ends_first, 1));
    assert_ne!(one.1, other.1);
    assert_eq!(
        one.0, other.0,
        "how a change rolls out is no change of the pods"
    );
}

#[test]
fn credentials_are_seen_by_the_container_that_fetches_and_by_no_other() {
    let pod = build(&checked(cached_source()), &with_cache()).pod_template()["spec"].clone();
    let mounts = |container: &Value| {
        container["volumeMounts"]
            .to_string()
            .contains("credentials")
    };
    assert!(mounts(&pod["initContainers"][0]));
    assert!(!mounts(&pod["containers"][0]));
    assert!(!pod.to_string().contains("secretKeyRef"));
}

#[test]
fn namespaces_see_their_own_directory_of_the_cache_only() {
    let pod = build(&checked(foreign()), &with_cache()).pod_template()["spec"].clone();
    let lists = [&pod["containers"], &pod["initContainers"]];
    let mounts = lists
        .into_iter()
        .flat_map(|list| list.as_array().expect("a list"))
        .flat_map(|c| c["volumeMounts"].as_array().expect("a list"));
    let of_model: Vec<&Value> = mounts.filter(|m| m["name"] == "model").collect();
    assert_eq!(of_model.len(), 3, "engine, model and model-lock");
    for mount in &of_model {
        assert_eq!(mount["subPathExpr"], "$(POD_NAMESPACE)");
    }
    let writing = of_model.iter().filter(|m| m.get("readOnly").is_none());
    assert_eq!(writing.count(), 1, "only the container that fetches writes");
}

#[test]
fn what_hardware_asks_is_added_to_what_the_user_asks() {
    let spec = json!({
        "engine": {"executor": "simulated"},
        "hardware": {"accelerator": {"kind": "nvidia", "resource": "nvidia.com/mig-1g.10gb", "products": ["A100"]}},
        "podTemplate": {"spec": {
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
            ]}}}
        }}
    });
    let pod = pod_spec(spec);
    let keys: Vec<&Value> = pod["tolerations"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|t| &t["key"])
        .collect();
    assert_eq!(keys, ["spot", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu"]);
    let required =
        &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    for term in required["nodeSelectorTerms"].as_array().expect("a list") {
        assert_eq!(
            term["matchExpressions"][1]["key"], "nvidia.com/gpu.product",
            "{term}"
        );
    }
}
