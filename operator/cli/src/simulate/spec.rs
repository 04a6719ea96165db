//! Reads an InferenceService as `kubectl apply` would, and checks it as the operator does.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use pagoda_crds::api::InferenceService;
use pagoda_operator_core::validate::{Service, validate};
use serde_json::Value;

/// No manifest is as large: etcd would refuse it.
const LARGEST: u64 = 2 << 20;

/// What is simulated.
pub struct Spec {
    /// As the user wrote it.
    pub object: InferenceService,
    /// As the operator understands it.
    pub service: Service,
}

/// Reads the first InferenceService of a YAML or JSON file.
pub fn read(path: &Path) -> Result<Spec> {
    let size = fs::metadata(path)?.len();
    if size > LARGEST {
        bail!("{size} bytes: no manifest is as large; give the file with the InferenceService");
    }
    let text = fs::read_to_string(path)?;
    let value = first_service(&text)?;
    parse(value)
}

fn first_service(text: &str) -> Result<Value> {
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let value = <Value as serde::Deserialize>::deserialize(document)
            .context("neither YAML nor JSON: correct it at the place named")?;
        if value.get("kind").and_then(Value::as_str) == Some("InferenceService") {
            return Ok(value);
        }
    }
    bail!("no InferenceService in it: give the manifest that you would apply")
}

fn parse(mut value: Value) -> Result<Spec> {
    // Where it would run plays no part.
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.entry("namespace").or_insert("default".into());
        metadata.entry("uid").or_insert("simulated".into());
    }
    let object: InferenceService =
        serde_json::from_value(value.clone()).context("the manifest does not fit the API")?;
    let known = serde_json::to_value(&object.spec)?;
    if let Some(given) = value.get("spec")
        && let Some(field) = unknown(given, &known, "spec")
    {
        bail!(
            "{field} is no field of an InferenceService: see kubectl explain inferenceservice.spec"
        );
    }
    let service = validate(&object)?;
    Ok(Spec { object, service })
}

/// The first field that was given and that nobody reads. What reads back as nothing may have been left out as empty.
fn unknown(given: &Value, known: &Value, path: &str) -> Option<String> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match known.get(key) {
                Some(known) => unknown(value, known, &path),
                None => (!is_empty(value)).then_some(path),
            }
        }),
        (Value::Array(given), Value::Array(known)) => given
            .iter()
            .zip(known)
            .enumerate()
            .find_map(|(index, (given, known))| unknown(given, known, &format!("{path}[{index}]"))),
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        _ => false,
    }
}
