//! What a real API server says of every object that the charts can become, and whether the programs export what alerts and
//! dashboard read.
//!
//! ServiceMonitors and PrometheusRules are of a definition that this cluster has not: Go's own types of them are asked in
//! `e2e/judges/prometheus`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use pagoda_e2e::rendered::{Chart, identity};
use serde_json::{Value, json};

use crate::bed::{Bed, on_cluster, pod_name};
use crate::manifests::simulated;

fn charts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts")
}

#[test]
fn the_api_server_takes_every_object_that_the_charts_become() {
    on_cluster("charts", |bed| async move {
        let chart = Chart::at(&charts().join("pagoda"))?;
        let all = json!({
            "watchNamespaces": [bed.namespace],
            "operator": {"replicas": 2},
            "gateway": {"replicas": 2, "external": {"type": "NodePort"}},
            "modelCache": {"enabled": true},
            "imagePullSecrets": [{"name": "pull"}],
            "podDisruptionBudgets": {"enabled": true},
            "networkPolicies": {"enabled": true, "metricsFrom": [{"namespaceSelector": {}}], "clientsFrom": [{"ipBlock": {"cidr": "198.18.0.0/15"}}]},
            "serviceMonitors": {"enabled": true},
            "prometheusRules": {"enabled": true},
            "grafanaDashboard": {"enabled": true},
        });
        let mut objects = chart.objects(&json!({}))?;
        objects.extend(chart.objects(&all)?);
        objects.extend(Chart::at(&charts().join("pagoda-crds"))?.objects(&json!({}))?);
        let (foreign, known): (Vec<Value>, Vec<Value>) = objects
            .into_iter()
            .partition(|object| object["apiVersion"] == "monitoring.coreos.com/v1");
        ensure!(
            foreign.len() == 5 && known.len() > 30,
            "{} foreign and {} other objects",
            foreign.len(),
            known.len()
        );
        for object in known {
            let dry = [
                "apply",
                "--server-side",
                "--force-conflicts",
                "--dry-run=server",
                "--validate=strict",
                "--filename",
                "-",
            ];
            // Objects of the chart have their own namespace, so kubectl must not be told another.
            let (taken, said) = bed
                .kubectl_everywhere(&dry, Some(&object.to_string()))
                .await?;
            ensure!(taken, "{} was refused: {said}", identity(&object));
            ensure!(!said.contains("Warning"), "{}: {said}", identity(&object));
        }
        Ok(())
    });
}

#[test]
fn every_metric_that_alerts_and_dashboard_read_is_exported_by_the_programs() {
    on_cluster("metrics", |bed| async move {
        bed.apply(&simulated("measured")).await?;
        bed.ready("measured").await?;
        bed.answers("measured").await?;
        let mut exported = BTreeSet::new();
        for path in metrics_paths(&bed).await? {
            exported.extend(sample_names(
                &bed.client
                    .request_text(http::Request::get(path).body(Vec::new())?)
                    .await?,
            ));
        }
        let read = metrics_read()?;
        ensure!(read.len() > 20, "alerts and dashboard read only {read:?}");
        let registered = registered_names()?;
        let missing: Vec<&String> = read
            .difference(&exported)
            .filter(|name| !registered.iter().any(|own| is_of(name, own)))
            .collect();
        ensure!(missing.is_empty(), "nobody exports {missing:?}");
        Ok(())
    });
}

async fn metrics_paths(bed: &Bed) -> Result<[String; 3]> {
    let pods = bed.ready_pods("measured", 1).await?;
    let service = |name: &str, port: u16| {
        format!("/api/v1/namespaces/pagoda-system/services/{name}:{port}/proxy/metrics")
    };
    Ok([
        service("pagoda-operator", 8080),
        service("pagoda-gateway", 8081),
        format!(
            "/api/v1/namespaces/{}/pods/{}:8000/proxy/metrics",
            bed.namespace,
            pod_name(&pods[0])
        ),
    ])
}

/// Names of all samples that an exposition has or, where a metric has no series yet, could have by its type.
fn sample_names(exposition: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in exposition.lines() {
        let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let suffixes: &[&str] = match kind {
            // The older text format names a counter in full, OpenMetrics does not.
            "counter" if name.ends_with("_total") => &[""],
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        names.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
    }
    names
}

/// Metrics whose labels have no values yet have no line in an exposition: nothing failed so far. What the programs register
/// is looked up in their sources instead, where it stands in quotes.
fn registered_names() -> Result<BTreeSet<String>> {
    let sources = [
        ("pagoda_operator_", "operator/controller/src/metrics.rs"),
        ("pagoda_gateway_", "inference-pod/router/src/metrics.rs"),
    ];
    let mut names = BTreeSet::new();
    for (prefix, source) in sources {
        let text = std::fs::read_to_string(charts().join("..").join(source))?;
        let literals = text.split('"').skip(1).step_by(2);
        let are_names = literals.filter(|word| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        });
        names.extend(are_names.map(|name| format!("{prefix}{name}")));
    }
    Ok(names)
}

/// Whether a sample is one of the metric that was registered as `own`.
fn is_of(sample: &str, own: &str) -> bool {
    sample
        .strip_prefix(own)
        .is_some_and(|suffix| ["", "_total", "_bucket", "_sum", "_count"].contains(&suffix))
}

/// Every name in a query of ours that begins as ours do.
fn metrics_read() -> Result<BTreeSet<String>> {
    let files = charts().join("pagoda/files");
    let alerts: Value =
        serde_yaml_ng::from_str(&std::fs::read_to_string(files.join("alerts.yaml"))?)?;
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(files.join("dashboard.json"))?)?;
    let mut queries = Vec::new();
    collect("expr", &alerts, &mut queries);
    collect("expr", &dashboard, &mut queries);
    collect("definition", &dashboard, &mut queries);
    ensure!(queries.len() > 25, "only {} queries", queries.len());
    let names = queries.iter().flat_map(|query| words(query));
    Ok(names
        .filter(|word| word.starts_with("pagoda_") || word.starts_with("vllm:"))
        .map(str::to_owned)
        .collect())
}

fn words(query: &str) -> impl Iterator<Item = &str> {
    query
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')
        .filter(|word| !word.is_empty())
}

fn collect<'a>(wanted: &str, value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                match inner.as_str() {
                    Some(text) if key == wanted => found.push(text),
                    _ => collect(wanted, inner, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(wanted, item, found)),
        _ => {}
    }
}

/// The rights that the chart gives are enough, or a program's log would say so.
#[test]
fn no_program_of_pagoda_is_refused_a_right() {
    on_cluster("rights", |bed| async move {
        bed.apply(&simulated("allowed")).await?;
        bed.ready("allowed").await?;
        bed.answers("allowed").await?;
        for deployment in ["pagoda-operator", "pagoda-gateway"] {
            let name = format!("deployment/{deployment}");
            let log = ["logs", &name, "--namespace", "pagoda-system", "--tail=-1"];
            let (read, log) = bed.kubectl_everywhere(&log, None).await?;
            ensure!(read, "{log}");
            // Not every 403 is about rights: a namespace that is going, or a full quota, answers so too.
            let is_refusal = |line: &&str| {
                line.contains("system:serviceaccount:pagoda-system:") && line.contains("cannot")
            };
            let refusals: Vec<&str> = log.lines().filter(is_refusal).take(3).collect();
            ensure!(refusals.is_empty(), "{deployment}: {refusals:#?}");
        }
        Ok(())
    });
}
