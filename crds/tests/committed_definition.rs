//! The committed CRD is the one that the types say, and one that every way of applying it can carry.

use std::{fs, path::Path};

use serde_json::Value;

fn committed() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../charts/pagoda-crds/templates/inferenceservices.yaml");
    fs::read_to_string(path).expect("the chart holds the definition")
}

fn each_property(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let path = format!("{path}.{name}");
        visit(&path, property);
        each_property(property, &path, visit);
        if let Some(items) = property.get("items") {
            each_property(items, &path, visit);
        }
    }
}

fn root() -> Value {
    let crd = serde_json::to_value(pagoda_crds::schema::crd()).expect("JSON");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn committed_definition_is_what_crdgen_prints() {
    assert!(
        committed() == pagoda_crds::schema::crd_yaml(),
        "run: cargo run -p pagoda-crds --bin crdgen charts/pagoda-crds/templates/inferenceservices.yaml"
    );
}

#[test]
fn definition_is_small_enough_for_client_side_apply() {
    // The annotation of a client-side apply carries the whole object and is bounded by 262144 bytes.
    assert!(committed().len() < 200_000);
}

#[test]
fn definition_holds_nothing_that_helm_would_render() {
    assert!(!committed().contains("{{"));
}

#[test]
fn every_field_is_documented() {
    let mut bare = Vec::new();
    each_property(
        &root()["properties"]["spec"],
        "spec",
        &mut |path, property| {
            // Fields of containers are Kubernetes' own, and described there.
            if property.get("description").is_none() && !path.contains("ontainers.") {
                bare.push(path.to_owned());
            }
        },
    );
    assert!(bare.is_empty(), "no description: {bare:?}");
}

#[test]
fn every_rule_has_a_message() {
    fn rules(value: &Value, mute: &mut Vec<String>) {
        if let Some(list) = value
            .get("x-kubernetes-validations")
            .and_then(Value::as_array)
        {
            mute.extend(
                list.iter()
                    .filter(|r| r.get("message").is_none() && r.get("messageExpression").is_none())
                    .map(ToString::to_string),
            );
        }
        match value {
            Value::Object(map) => map.values().for_each(|v| rules(v, mute)),
            Value::Array(list) => list.iter().for_each(|v| rules(v, mute)),
            _ => {}
        }
    }
    let mut mute = Vec::new();
    rules(&root(), &mut mute);
    assert!(mute.is_empty(), "no message: {mute:?}");
}

#[test]
fn null_means_what_leaving_out_means() {
    assert!(!root().to_string().contains("nullable"));
}
