//! Versions, and the size of the definition.

use pagoda_e2e::rendered::Chart;
use serde_json::{Value, json};

use crate::repository;

#[test]
fn both_charts_have_one_version_and_the_programs_theirs() {
    let field = |chart: &str, field: &str| -> String {
        let text =
            std::fs::read_to_string(repository().join("charts").join(chart).join("Chart.yaml"))
                .unwrap();
        let meta: Value = serde_yaml_ng::from_str(&text).unwrap();
        meta[field].as_str().unwrap().to_owned()
    };
    assert_eq!(field("pagoda", "version"), field("pagoda-crds", "version"));
    for chart in ["pagoda", "pagoda-crds"] {
        assert_eq!(field(chart, "appVersion"), env!("CARGO_PKG_VERSION"));
    }
}

/// `kubectl apply` keeps the whole object in an annotation, and annotations are bounded.
#[test]
fn the_definition_fits_into_the_annotation_of_a_client_side_apply() {
    let folder = repository().join("charts/pagoda-crds");
    let objects = Chart::at(&folder).unwrap().objects(&json!({})).unwrap();
    assert_eq!(objects.len(), 1);
    assert!(objects[0].to_string().len() < 262_144);
}
