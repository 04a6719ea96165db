//! What a user lays over the pods that the operator builds.
//!
//! Maps are merged key by key. Lists of named things are merged by their key, in the order of the operator's own first:
//! containers and env by `name`, mounts by `mountPath`, ports by `containerPort`. A volume of the same name is replaced
//! whole, for a volume has one source. Every other list or value is replaced.

use serde_json::{Map, Value};

use crate::validate::Overlay;

/// Lays an overlay over a pod template.
pub(super) fn lay(template: &mut Value, overlay: &Overlay) {
    for (field, additions) in [
        ("labels", &overlay.labels),
        ("annotations", &overlay.annotations),
    ] {
        for (key, value) in additions {
            template["metadata"][field][key] = value.as_str().into();
        }
    }
    if let Some(spec) = template["spec"].as_object_mut() {
        merge_maps(spec, &overlay.spec);
    }
}

fn merge_maps(base: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (field, value) in over {
        match base.get_mut(field) {
            Some(existing) => merge(field, existing, value),
            None => {
                base.insert(field.clone(), value.clone());
            }
        }
    }
}

fn merge(field: &str, base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => merge_maps(base, over),
        (Value::Array(base), Value::Array(over)) if list_key(field).is_some() => {
            merge_lists(field, list_key(field).unwrap_or_default(), base, over);
        }
        (base, over) => *base = over.clone(),
    }
}

fn list_key(field: &str) -> Option<&'static str> {
    match field {
        "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets" => Some("name"),
        "volumeMounts" => Some("mountPath"),
        "ports" => Some("containerPort"),
        _ => None,
    }
}

fn merge_lists(field: &str, key: &str, base: &mut Vec<Value>, over: &[Value]) {
    for item in over {
        match base
            .iter_mut()
            .find(|existing| existing.get(key) == item.get(key))
        {
            Some(existing) if field == "volumes" => *existing = item.clone(),
            Some(existing) => merge("", existing, item),
            None => base.push(item.clone()),
        }
    }
}
