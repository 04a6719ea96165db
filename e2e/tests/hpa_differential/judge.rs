//! Puts the same numbers through `decide`, and compares.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use pagoda_crds::InferenceService;
use pagoda_operator_core::autoscale::{
    GatewayReading, History, Moment, PodReading, PodSeen, QueryReading, ServiceReadings, decide,
    observe,
};
use pagoda_operator_core::validate::{ScalingSettings, validate};
use serde_json::json;

use crate::scenarios::{EACH_MILLI, SECONDS, STEPS, Scenario};
use crate::server::{Runs, Step};

/// An HPA has read its clock at the latest so long after we heard of it last.
const SLACK_MILLIS: u64 = 15;
/// Percent of the steps that a run must be able to compare.
const ENOUGH: usize = 80;

/// Steps whose moments lie clearly on one side of the end of every window that began at an earlier step. After the first that
/// does not, what an HPA remembers is not known any more.
fn clear(steps: &[Step]) -> usize {
    let doubtful = |i: usize| {
        steps[..i]
            .iter()
            .any(|earlier| is_doubtful(earlier, &steps[i]))
    };
    (0..steps.len())
        .find(|i| doubtful(*i))
        .unwrap_or(steps.len())
}

fn is_doubtful(earlier: &Step, later: &Step) -> bool {
    let least = later
        .at_millis
        .saturating_sub(earlier.until_millis + SLACK_MILLIS);
    let most = later.until_millis + SLACK_MILLIS - earlier.at_millis;
    SECONDS
        .iter()
        .any(|seconds| (least..=most).contains(&(seconds * 1000)))
}

/// Why these runs prove nothing, if they do not.
pub fn too_slow(runs: &Runs) -> Option<String> {
    let all: usize = runs.values().map(Vec::len).sum();
    let clear: usize = runs.values().map(|steps| clear(steps)).sum();
    println!("at {clear} of {all} steps the machine was quick enough to compare");
    (clear * 100 < all * ENOUGH).then(|| "the machine was too slow at the others".to_owned())
}

/// Fails where the two differ, with the steps that led there.
pub fn compare(scenarios: &[Scenario], runs: &Runs) -> Result<()> {
    let (mut differences, mut moves, mut compared) = (String::new(), 0, 0);
    for scenario in scenarios {
        let steps = runs.get(&scenario.name).context("a target without a run")?;
        moves += steps.iter().filter(|step| step.written.is_some()).count();
        let (agreed, difference) = judge(scenario, steps)?;
        compared += agreed;
        let _ = write!(differences, "{}", difference.unwrap_or_default());
    }
    let count = scenarios.len();
    println!("{count} HPAs, {compared} steps compared, {moves} changes of replicas");
    ensure!(
        moves > count * 3 && compared > count * STEPS / 2,
        "hardly anything moved: the test compares nothing"
    );
    ensure!(
        differences.is_empty(),
        "the HPA and decide differ:\n{differences}"
    );
    Ok(())
}

/// How many steps agree, and the first difference, told with what led to it.
///
/// One is wanted: a moment at which a metric was absent, of which an HPA keeps no memory, makes `decide` wait for a whole window
/// before it removes pods. So after such a moment it may keep pods that the HPA removes. From there on the two remember different
/// changes, and nothing more is compared.
fn judge(scenario: &Scenario, steps: &[Step]) -> Result<(usize, Option<String>)> {
    let settings = settings(scenario)?;
    let (mut history, mut gap) = (History::default(), false);
    let mut told = format!(
        "{}: {}..{} {}\n",
        scenario.name, scenario.min, scenario.max, scenario.behavior
    );
    for (number, pair) in steps.windows(2).take(clear(steps)).enumerate() {
        let (step, after) = (&pair[0], pair[1].replicas);
        let at = Moment {
            now: step.at_millis,
            unix_seconds: 1_800_000_000 + (step.at_millis / 1000) as i64,
        };
        let (decision, next) = decide(
            &settings,
            &observe(step.replicas, readings(step)),
            history,
            at,
        );
        history = next;
        let _ = writeln!(
            told,
            "  {number:3} at {:6} ms: {} pods, metrics {:?}: HPA {after}, decide {} ({decision})",
            step.at_millis, step.replicas, step.metrics, decision.replicas
        );
        gap |= step.metrics.contains(&None);
        if decision.replicas != after {
            let keeps = gap && (after..=step.replicas).contains(&decision.replicas);
            return Ok((number, (!keeps).then_some(told)));
        }
    }
    Ok((clear(steps).min(STEPS), None))
}

/// The same bounds and behavior, each metric as a figure that pods share, and nothing that an HPA has not.
fn settings(scenario: &Scenario) -> Result<ScalingSettings> {
    let query = |number: usize| json!({"name": format!("metric-{number}"), "query": "vector(0)", "averageValue": format!("{EACH_MILLI}m")});
    let queries: Vec<_> = (0..scenario.metrics.len()).map(query).collect();
    let service: InferenceService = serde_json::from_value(json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": scenario.name, "namespace": "default", "uid": "judge", "generation": 1},
        "spec": {
            "engine": {"executor": "simulated"},
            "scaling": {
                "minReplicas": scenario.min,
                "maxReplicas": scenario.max,
                "targets": [],
                "prometheus": {"queries": queries},
                "behavior": scenario.behavior,
                // What is averaged over: less than the pace, so the last figure alone, as for an HPA.
                "windowSeconds": 1,
                "panic": {"enabled": false, "windowSeconds": 1},
                "lookAhead": {"trend": false},
            },
        },
    }))?;
    Ok(validate(&service)?.scaling)
}

/// Everything answers, as it does for an HPA whose target has all of its pods.
fn readings(step: &Step) -> ServiceReadings {
    let pod = |number: u32| PodSeen {
        name: format!("judge-{number}").into(),
        revision: "r".into(),
        hardware: Arc::from("cpu"),
        ready: true,
        age_millis: 60_000,
        ready_age_millis: Some(60_000),
        reading: Some(PodReading::default()),
    };
    let query = |value: &Option<u64>| {
        value.map(|value_milli| QueryReading {
            value_milli,
            age_millis: 0,
        })
    };
    ServiceReadings {
        gateways: vec![Some(GatewayReading::default())],
        pods: (0..step.replicas).map(pod).collect(),
        queries: step.metrics.iter().map(query).collect(),
    }
}
