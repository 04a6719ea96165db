//! What the derived schema cannot say by itself: schemas of foreign types, and the last touches that make
//! the CRD one that an API server takes without a warning.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

use crate::InferenceService;

/// A Quantity with a length, without which the cost of rules on it counts as unbounded.
pub fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true, "maxLength": 32})
}

/// Requests and limits; `claims` are left out because pods get no resource claims.
pub fn resource_requirements(_: &mut SchemaGenerator) -> Schema {
    let quantities = |about: &str| {
        serde_json::json!({
            "type": "object",
            "description": about,
            "maxProperties": 16,
            "additionalProperties": {"x-kubernetes-int-or-string": true, "maxLength": 32}
        })
    };
    json_schema!({
        "type": "object",
        "properties": {
            "requests": quantities("What a node must have free."),
            "limits": quantities("What the container may use at most.")
        }
    })
}

/// A PodSpec of which only what rules speak of is described; the API server checks the whole when the
/// operator applies the Deployment.
pub fn pod_spec_overlay(_: &mut SchemaGenerator) -> Schema {
    let containers = |about: &str| {
        serde_json::json!({
        "type": "array",
        "description": about,
        "maxItems": 32,
        "items": {
            "type": "object",
            "required": ["name"],
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "name": {"type": "string", "maxLength": 63, "description": "Which container it is, or the name of one to add."},
                "image": {"type": "string", "maxLength": 1024, "description": "Image of a container that is added."},
                "command": {"type": "array", "items": {"type": "string"}, "description": "What runs in a container that is added."},
                "args": {"type": "array", "items": {"type": "string"}, "description": "Arguments of what runs in a container that is added."}
            }
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"]
        })
    };
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "containers": containers("Sidecars to add, or changes to the container engine."),
            "initContainers": containers("Init containers to add, or changes to the operator's own: model, engine-binary."),
            "restartPolicy": {"type": "string", "maxLength": 16, "description": "Always, the only policy of a Deployment's pods."}
        }
    })
}

/// The CustomResourceDefinition to install.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = InferenceService::crd();
    for version in &mut crd.spec.versions {
        if let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|s| s.open_api_v3_schema.as_mut())
        {
            let mut value = serde_json::to_value(&*schema).expect("a schema is JSON");
            finish(&mut value);
            mark_unseen(&mut value);
            // Defaults are kept as they are written: in the same order whatever this build's maps do.
            value.sort_all_objects();
            *schema = serde_json::from_value(value).expect("still a schema");
        }
    }
    crd
}

/// The CRD as YAML, with what a chart adds to a bare definition.
pub fn crd_yaml() -> String {
    let yaml = serde_yaml_ng::to_string(&crd()).expect("a CRD is YAML");
    format!("# Generated from Rust types by crdgen. Do not edit.\n{yaml}")
}

/// A service that no operator has looked at yet is of no generation. Without this mark it has no status at all, which kstatus,
/// and Flux with it, takes for a service that is done.
fn mark_unseen(schema: &mut Value) {
    schema["properties"]["status"]["default"] = serde_json::json!({"observedGeneration": -1});
}

fn finish(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            drop_nullable(map);
            use_known_integer_formats(map);
            map.values_mut().for_each(finish);
        }
        Value::Array(items) => items.iter_mut().for_each(finish),
        _ => {}
    }
}

/// Without `nullable` the API server prunes a null before it applies defaults, so that `field:` in a manifest means
/// what leaving it out means, and rules never meet a null.
fn drop_nullable(map: &mut Map<String, Value>) {
    if map.get("nullable").is_some_and(Value::is_boolean) {
        map.remove("nullable");
    }
}

/// The API server warns of integer formats other than Kubernetes' own.
fn use_known_integer_formats(map: &mut Map<String, Value>) {
    if matches!(
        map.get("format").and_then(Value::as_str),
        Some("uint16" | "uint32")
    ) {
        map.insert("format".into(), "int64".into());
    }
    if let Some(bound) = map
        .get("minimum")
        .and_then(Value::as_f64)
        .filter(|b| b.fract() == 0.0)
    {
        map.insert("minimum".into(), (bound as i64).into());
    }
    if let Some(bound) = map
        .get("maximum")
        .and_then(Value::as_f64)
        .filter(|b| b.fract() == 0.0)
    {
        map.insert("maximum".into(), (bound as i64).into());
    }
}
