//! Whether an object in the cluster already is what would be applied.

use serde_json::Value;

use crate::quantity;

/// Fields whose values are quantities, which the API server writes in its own way.
const QUANTITY_FIELDS: [&str; 2] = ["requests", "limits"];

/// Fields of metadata that are ever looked at.
const KEPT_METADATA: [&str; 7] = [
    "annotations",
    "deletionTimestamp",
    "labels",
    "name",
    "namespace",
    "ownerReferences",
    "uid",
];

/// Notes of kubectl and of the Deployments' controller.
const DROPPED_ANNOTATIONS: [&str; 2] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/revision",
];

/// True when applying `desired` would change nothing: every field of it stands in `observed` with its value.
///
/// Fields that only `observed` has are defaults or another actor's. A field that an earlier apply set and this one no
/// longer has goes unseen here; the hash that each child carries of its last apply shows it, because `desired`
/// carries the hash as well.
pub fn contains(observed: &Value, desired: &Value) -> bool {
    contains_under("", observed, desired)
}

/// Reduces an observed child to what [`contains`] and a check of its owner can need, so that little is kept of each: its
/// status and the notes of other actors about it are dropped.
pub fn reduce(observed: &mut Value) {
    let Some(object) = observed.as_object_mut() else {
        return;
    };
    object.remove("status");
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    metadata.retain(|field, _| KEPT_METADATA.contains(&field.as_str()));
    if let Some(annotations) = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.retain(|key, _| !DROPPED_ANNOTATIONS.contains(&key.as_str()));
    }
}

fn contains_under(field: &str, observed: &Value, desired: &Value) -> bool {
    match (observed, desired) {
        (Value::Object(observed), Value::Object(desired)) => desired.iter().all(|(key, value)| {
            let below = if QUANTITY_FIELDS.contains(&field) {
                field
            } else {
                key
            };
            match observed.get(key) {
                Some(existing) => contains_under(below, existing, value),
                None => is_empty(value),
            }
        }),
        (Value::Array(observed), Value::Array(desired)) => {
            observed.len() == desired.len()
                && observed
                    .iter()
                    .zip(desired)
                    .all(|(o, d)| contains_under(field, o, d))
        }
        (Value::String(observed), Value::String(desired)) if QUANTITY_FIELDS.contains(&field) => {
            quantity::same(observed, desired)
        }
        _ => observed == desired,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn defaults_of_the_api_server_are_no_difference() {
        let observed = json!({"a": 1, "list": [{"name": "x", "default": true}], "status": {}});
        assert!(contains(
            &observed,
            &json!({"a": 1, "list": [{"name": "x"}], "absent": {}})
        ));
    }

    #[test]
    fn what_is_kept_of_a_child_is_enough_to_compare_it_and_to_know_its_owner() {
        let desired = json!({"kind": "Service", "metadata": {"name": "a", "labels": {"l": "1"}, "annotations": {"x": "1"},
            "ownerReferences": [{"uid": "u"}]}, "spec": {"type": "ClusterIP"}});
        let mut observed = desired.clone();
        observed["status"] = json!({"loadBalancer": {}});
        observed["metadata"]["managedFields"] = json!([{"manager": "m"}]);
        observed["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
            json!("{}");
        observed["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        reduce(&mut observed);
        assert!(contains(&observed, &desired));
        assert_eq!(observed.get("status"), None);
        assert_eq!(observed["metadata"].get("managedFields"), None);
        assert_eq!(observed["metadata"]["annotations"], json!({"x": "1"}));
        assert!(observed["metadata"].get("deletionTimestamp").is_some());
        reduce(&mut json!("text"));
    }

    #[test]
    fn a_changed_missing_or_extra_item_is_a_difference() {
        let desired = json!({"a": {"b": 1}, "list": [1, 2]});
        for observed in [
            json!({"a": {"b": 2}, "list": [1, 2]}),
            json!({"list": [1, 2]}),
            json!({"a": {"b": 1}, "list": [1, 2, 3]}),
        ] {
            assert!(!contains(&observed, &desired), "{observed}");
        }
    }

    #[test]
    fn quantities_compare_by_value_and_other_text_by_letter() {
        assert!(contains(
            &json!({"requests": {"cpu": "500m"}}),
            &json!({"requests": {"cpu": "0.5"}})
        ));
        assert!(!contains(
            &json!({"requests": {"cpu": "500m"}}),
            &json!({"requests": {"cpu": "0.6"}})
        ));
        assert!(!contains(
            &json!({"value": "500m"}),
            &json!({"value": "0.5"})
        ));
    }

    proptest! {
        #[test]
        fn everything_contains_itself(keys in proptest::collection::btree_map("[a-z]{1,4}", 0_i64..9, 0..6)) {
            let value = json!({"spec": keys, "list": [keys]});
            prop_assert!(contains(&value, &value));
        }
    }
}
