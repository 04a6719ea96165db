//! `pagoda simulate` as people call it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const SPEC: &str = "apiVersion: v1
kind: Secret
metadata: {name: other}
---
apiVersion: serving.pagoda.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {}
  engine: {executor: simulated, simulated: {loadSeconds: 20}}
  scaling:
    minReplicas: 0
    maxReplicas: 8
    idleSeconds: 60
    targets: [{metric: InFlightRequests, averageValue: \"8\"}]
";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    fn simulate(&self, trace: &str, spec: &str, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_pagoda"))
            .arg("simulate")
            .arg("--trace")
            .arg(self.file("trace", trace))
            .arg("--spec")
            .arg(self.file("isvc.yaml", spec))
            .args(arguments)
            .output()
            .expect("started")
    }

    fn refused(&self, trace: &str, spec: &str, arguments: &[&str]) -> String {
        let output = self.simulate(trace, spec, arguments);
        assert!(
            !output.status.success(),
            "{trace:.40} {spec:.40} {arguments:?}"
        );
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).expect("text")
    }
}

fn trace() -> String {
    (0..600).fold(String::new(), |mut text, nth| {
        let _ = writeln!(
            text,
            "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, \"hash_ids\": []}}",
            nth * 250,
            100 + nth % 7 * 50,
            10 + nth % 11 * 10
        );
        text
    })
}

fn text(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn a_table_tells_of_every_scaler_and_the_files_that_were_asked_for_are_written() {
    let folder = Folder::new();
    let plot = folder.0.path().join("plot.svg");
    let timeline = folder.0.path().join("timeline.csv");
    let (plot_argument, timeline_argument) = (plot.to_string_lossy(), timeline.to_string_lossy());
    let arguments = [
        "--scaler=pagoda,hpa,hpa-tuned,kpa,saturation",
        "--plot",
        &plot_argument,
        "--timeline",
        &timeline_argument,
    ];
    let table = text(&folder.simulate(&trace(), SPEC, &arguments));
    for word in [
        "pagoda",
        "hpa-tuned",
        "saturation",
        "requests within SLO",
        "GPU-hours",
    ] {
        assert!(table.contains(word), "{word} in {table}");
    }
    let svg = std::fs::read_to_string(plot).expect("a plot");
    assert!(svg.starts_with("<svg ") && svg.contains("kpa: replicas"));
    let csv = std::fs::read_to_string(timeline).expect("a time line");
    assert!(csv.lines().count() > 500);
}

#[test]
fn json_is_the_same_each_time_and_another_with_another_seed() {
    let folder = Folder::new();
    let run = |seed: &str| {
        let output = folder.simulate(&trace(), SPEC, &["--format=json", "--seed", seed]);
        text(&output)
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
    let json: Value = serde_json::from_str(&run("1")).expect("JSON");
    let run = &json["runs"][0];
    assert_eq!(run["requests"]["total"], 600);
    assert_eq!(run["events"][0]["from"], 0, "woken from zero");
}

#[test]
fn csv_has_a_line_for_each_scaler() {
    let folder = Folder::new();
    let csv = text(&folder.simulate(&trace(), SPEC, &["--format=csv", "--scaler=pagoda,kpa"]));
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("scaler,slo_attainment,") && lines[2].starts_with("kpa,"));
}

#[test]
fn a_bad_trace_is_refused_with_its_line_and_what_to_do() {
    let folder = Folder::new();
    assert!(
        folder
            .refused("", SPEC, &[])
            .contains("the trace has no request")
    );
    let bad = format!("{}nonsense\n", trace());
    let said = folder.refused(&bad, SPEC, &[]);
    assert!(
        said.contains("line 601") && said.contains("input_length"),
        "{said}"
    );
    let missing = folder.refused(&trace(), SPEC, &["--trace", "/nowhere"]);
    assert!(
        missing.contains("/nowhere") || missing.contains("cannot be used"),
        "{missing}"
    );
}

#[test]
fn a_bad_spec_is_refused_with_what_to_do() {
    let folder = Folder::new();
    let with = |from: &str, to: &str| SPEC.replace(from, to);
    for (spec, said) in [
        ("kind: ConfigMap\n".to_owned(), "no InferenceService in it"),
        (": {".to_owned(), "neither YAML nor JSON"),
        (
            with("idleSeconds", "idleSecond"),
            "spec.scaling.idleSecond is no field",
        ),
        (
            with("averageValue: \"8\"", "averageValue: \"0\""),
            "averageValue",
        ),
        (with("maxReplicas: 8", "maxReplicas: 0"), "maxReplicas"),
        (
            with("metric: InFlightRequests", "metric: Nothing"),
            "does not fit the API",
        ),
        (
            with(
                "executor: simulated, simulated: {loadSeconds: 20}",
                "image: vllm/vllm-openai:v0.11.0",
            ),
            "--pod-speed",
        ),
    ] {
        let error = folder.refused(&trace(), &spec, &[]);
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn without_targets_the_minimum_alone_counts() {
    let folder = Folder::new();
    let none = SPEC.replace(
        "targets: [{metric: InFlightRequests, averageValue: \"8\"}]",
        "targets: []",
    );
    let none = none.replace("minReplicas: 0", "minReplicas: 2");
    let json: Value =
        serde_json::from_str(&text(&folder.simulate(&trace(), &none, &["--format=json"])))
            .expect("JSON");
    assert_eq!(json["runs"][0]["most_replicas"], 2);
    assert_eq!(json["runs"][0]["events"].as_array().map(Vec::len), Some(0));
}

#[test]
fn an_argument_that_makes_no_sense_is_refused_with_an_example() {
    let folder = Folder::new();
    for (arguments, said) in [
        (["--pod-speed", "fast"], "such as 20000,15,0.2"),
        (["--hardware", "L40S"], "such as L40S=0.5:1"),
        (["--scale-load", "0"], "write a number from"),
        (["--scaler", "magic"], "hpa-tuned"),
    ] {
        let error = folder.refused(&trace(), SPEC, &arguments);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}

#[test]
fn help_teaches_by_examples() {
    let output = Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["simulate", "--help"])
        .output()
        .expect("started");
    let help = text(&output);
    for word in [
        "--scale-load",
        "Examples:",
        "status.scaling.capacity",
        "hpa-tuned",
    ] {
        assert!(help.contains(word), "{word}");
    }
}
