//! A control plane whose HPAs scale the judge's targets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagoda_e2e::{cache::Cache, cluster::ControlPlane, kubectl::Kubectl, progress::Progress};
use serde_json::{Value, json};

use crate::scenarios::{EACH_MILLI, STEPS, Scenario};
use crate::server::{GROUP, Judge, NAMESPACE, PACE_MILLIS, Runs};

/// Every address of the cluster's ranges is local in a sandbox.
const ADDRESS: ([u8; 4], u16) = ([198, 18, 0, 20], 8443);
const PATIENCE: Duration = Duration::from_mins(2);

/// One run of all scenarios at once.
pub fn run(scenarios: &[Scenario]) -> Result<Runs> {
    let runtime = tokio::runtime::Runtime::new()?;
    let mut plane =
        ControlPlane::start_with_flags(&Cache::from_env()?, 1, flags(), &Progress::start())?;
    let judge = Judge::new(scenarios);
    runtime.block_on(judge.clone().serve(SocketAddr::from(ADDRESS)))?;
    let kubectl = plane.kubectl();
    kubectl.apply_text(NAMESPACE, &list(&apis()))?;
    wait_for_apis(&kubectl)?;
    // Its idea of which kinds there are is half a minute old at times; a new one has none.
    plane.restart("controller-manager")?;
    let hpas: Vec<Value> = scenarios.iter().map(hpa).collect();
    kubectl.apply_text(NAMESPACE, &list(&hpas))?;
    wait_for_the_end(&judge, &kubectl)?;
    Ok(judge.runs())
}

/// An HPA looks soon after it has looked, so that it is the targets that keep the pace. Its client speaks JSON, which the judge
/// reads. The tolerance of a direction is behind a gate in this version.
fn flags() -> Vec<(&'static str, String)> {
    let gate = "--feature-gates=HPAConfigurableTolerance=true";
    vec![
        ("apiserver", gate.to_owned()),
        ("controller-manager", gate.to_owned()),
        (
            "controller-manager",
            "--horizontal-pod-autoscaler-sync-period=500ms".to_owned(),
        ),
        (
            "controller-manager",
            "--concurrent-horizontal-pod-autoscaler-syncs=100".to_owned(),
        ),
        (
            "controller-manager",
            "--kube-api-content-type=application/json".to_owned(),
        ),
    ]
}

fn apis() -> Vec<Value> {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "judge", "labels": {"kubernetes.io/service-name": "judge"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [std::net::Ipv4Addr::from(ADDRESS.0)], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": ADDRESS.1, "protocol": "TCP"}],
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "judge"},
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": ADDRESS.1}]},
    });
    let groups = [("external.metrics.k8s.io", "v1beta1"), (GROUP, "v1")];
    let apis = groups.map(|(group, version)| {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": true,
                "service": {"name": "judge", "namespace": NAMESPACE, "port": 443},
            },
        })
    });
    [slice, service].into_iter().chain(apis).collect()
}

fn hpa(scenario: &Scenario) -> Value {
    let metric = |number: usize| {
        json!({
            "type": "External",
            "external": {
                "metric": {"name": format!("{}.{number}", scenario.name)},
                "target": {"type": "AverageValue", "averageValue": format!("{EACH_MILLI}m")},
            },
        })
    };
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": scenario.name},
        "spec": {
            "scaleTargetRef": {"apiVersion": format!("{GROUP}/v1"), "kind": "Target", "name": scenario.name},
            "minReplicas": scenario.min,
            "maxReplicas": scenario.max,
            "metrics": (0..scenario.metrics.len()).map(metric).collect::<Vec<_>>(),
            "behavior": scenario.behavior,
        },
    })
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn wait_for_apis(kubectl: &Kubectl) -> Result<()> {
    let query = "jsonpath={.items[?(@.spec.service.name==\"judge\")].status.conditions[?(@.type==\"Available\")].status}";
    let until = Instant::now() + PATIENCE;
    loop {
        let told = kubectl.run(&["get", "apiservices", "--output", query])?;
        if told == "True True" {
            return Ok(());
        }
        ensure!(
            Instant::now() < until,
            "the aggregation layer does not find the judge: {told}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn wait_for_the_end(judge: &Arc<Judge>, kubectl: &Kubectl) -> Result<()> {
    let steps = Duration::from_millis(PACE_MILLIS * (STEPS as u64 + 1));
    let until = Instant::now() + steps * 2 + PATIENCE;
    while !judge.is_over() {
        if Instant::now() > until {
            let said = kubectl
                .run(&["get", "events,hpa"])
                .context("and the API server is gone")?;
            bail!("the HPAs do not come to an end:\n{said}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}
