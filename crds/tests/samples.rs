//! Every rule has a manifest that trips it, and what was released can be read.

use std::{fs, path::Path};

use pagoda_crds::InferenceService;
use serde_json::Value;

fn samples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/samples")
}

fn texts(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).expect("the samples lie beside the crates");
    let files = entries.map(|entry| entry.expect("readable").path());
    let yaml = files.filter(|path| path.extension().is_some_and(|e| e == "yaml"));
    yaml.map(|path| {
        (
            path.display().to_string(),
            fs::read_to_string(&path).expect("text"),
        )
    })
    .collect()
}

fn messages(schema: &Value, found: &mut Vec<String>) {
    let rules = schema.get("x-kubernetes-validations");
    for rule in rules.and_then(Value::as_array).into_iter().flatten() {
        found.extend(rule["message"].as_str().map(str::to_owned));
    }
    match schema {
        Value::Object(map) => map.values().for_each(|v| messages(v, found)),
        Value::Array(list) => list.iter().for_each(|v| messages(v, found)),
        _ => {}
    }
}

#[test]
fn every_rule_has_a_manifest_that_trips_it() {
    let expected: Vec<String> = ["bad", "bad-updates"]
        .iter()
        .flat_map(|folder| texts(&samples().join(folder)))
        .filter_map(|(_, text)| {
            Some(
                text.lines()
                    .next()?
                    .strip_prefix("# expect: ")?
                    .trim()
                    .to_owned(),
            )
        })
        .collect();
    let mut found = Vec::new();
    messages(
        &serde_json::to_value(pagoda_crds::schema::crd()).expect("JSON"),
        &mut found,
    );
    assert!(found.len() > 30, "only {} rules found", found.len());
    let untried: Vec<_> = found
        .iter()
        .filter(|message| !expected.iter().any(|e| message.contains(e.as_str())))
        .collect();
    assert!(
        untried.is_empty(),
        "no manifest in e2e/samples/bad trips: {untried:#?}"
    );
}

#[test]
fn samples_and_manifests_of_earlier_releases_are_read_by_the_types() {
    let mut folders = vec![samples()];
    let releases = fs::read_dir(samples().join("released")).expect("released manifests");
    folders.extend(releases.map(|entry| entry.expect("readable").path()));
    let all: Vec<_> = folders.iter().flat_map(|folder| texts(folder)).collect();
    assert!(all.len() >= 10, "only {} manifests", all.len());
    for (file, text) in all {
        serde_yaml_ng::from_str::<InferenceService>(&text)
            .unwrap_or_else(|e| panic!("{file}: {e}"));
    }
}
