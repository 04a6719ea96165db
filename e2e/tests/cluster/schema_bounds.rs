//! Every bound of the schema refuses the value just beyond it, and names the field.
//!
//! The cases are made from the committed definition, so that a new field is tested by being there. Rules in CEL have manifests of
//! their own in `e2e/samples/bad`.

use std::path::Path;

use anyhow::ensure;
use serde_json::{Value, json};

use crate::{bed::on_cluster, manifests::simulated};

/// A value that breaks one bound, and what the refusal says of it.
struct Case {
    /// Keys from the root; `0` is the first item of a list.
    path: Vec<String>,
    value: Value,
    says: &'static str,
}

#[test]
fn every_bound_of_the_schema_refuses_the_value_beyond_it_and_names_the_field() {
    on_cluster("bounds", |bed| async move {
        let definition: Value = serde_yaml_ng::from_str(&std::fs::read_to_string(definition())?)?;
        let schema =
            &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut cases = Vec::new();
        collect(schema, &mut vec!["spec".to_owned()], &mut cases);
        ensure!(cases.len() > 100, "only {} bounds found", cases.len());
        for case in cases {
            let mut manifest = simulated("bounds");
            set(&mut manifest, &case.path, case.value.clone());
            let text = serde_json::to_string(&manifest)?;
            let (accepted, output) = bed
                .kubectl(
                    &["create", "--dry-run=server", "--filename", "-"],
                    Some(&text),
                )
                .await?;
            let field = dotted(&case.path);
            ensure!(!accepted, "{field} = {} was accepted", case.value);
            ensure!(
                output.contains(&field) && output.contains(case.says),
                "{field} = {} was refused without naming it and '{}': {output}",
                shortened(&case.value),
                case.says
            );
        }
        Ok(())
    });
}

fn definition() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../charts/pagoda-crds/templates/inferenceservices.yaml")
}

/// As the API server writes paths.
fn dotted(path: &[String]) -> String {
    let mut text = String::new();
    for key in path {
        if key.parse::<usize>().is_ok() {
            text = format!("{text}[{key}]");
        } else if text.is_empty() {
            text.clone_from(key);
        } else {
            text = format!("{text}.{key}");
        }
    }
    text
}

fn shortened(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

fn set(manifest: &mut Value, path: &[String], value: Value) {
    let mut place = manifest;
    for key in path {
        if key == "0" {
            if !place.is_array() {
                *place = json!([null]);
            }
            place = &mut place[0];
        } else {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[key.as_str()];
        }
    }
    *place = value;
}

/// Walks the schema; fields below a free-form object are Kubernetes' own.
fn collect(schema: &Value, path: &mut Vec<String>, cases: &mut Vec<Case>) {
    let free = schema["x-kubernetes-preserve-unknown-fields"] == true;
    of_value(schema, path, cases);
    if free {
        return;
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        path.push(name.clone());
        collect(property, path, cases);
        path.pop();
    }
    if schema["items"].is_object() {
        path.push("0".to_owned());
        collect(&schema["items"], path, cases);
        path.pop();
    }
}

fn of_value(schema: &Value, path: &[String], cases: &mut Vec<Case>) {
    let mut case = |value: Value, says: &'static str| {
        cases.push(Case {
            path: path.to_vec(),
            value,
            says,
        });
    };
    if let Some(least) = schema["minimum"].as_i64() {
        case(json!(least - 1), "greater than or equal to");
    }
    if let Some(most) = schema["maximum"].as_i64() {
        case(json!(most + 1), "less than or equal to");
    }
    if schema["enum"].is_array() {
        case(json!("NoSuchWord"), "Unsupported value");
    }
    if schema["minLength"].as_u64() == Some(1) {
        case(json!(""), "at least 1 chars long");
    }
    if let Some(most) = schema["maxLength"].as_u64() {
        case(json!("a".repeat(most as usize + 1)), "Too long");
    }
    if schema["minItems"].as_u64() == Some(1) {
        case(json!([]), "at least 1 items");
    }
    if let Some(most) = schema["maxItems"].as_u64() {
        case(json!(vec![Value::Null; most as usize + 1]), "Too many");
    }
    if let Some(kind) = schema["type"].as_str() {
        case(of_another_type(kind), "must be of type");
    }
}

/// What no field of that type takes. Null would count as left out.
fn of_another_type(kind: &str) -> Value {
    match kind {
        "object" | "array" => json!("text"),
        _ => json!([]),
    }
}
