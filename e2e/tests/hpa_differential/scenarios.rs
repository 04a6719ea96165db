//! What is compared: bounds, a behavior, and the series of one or two metrics, for an HPA each.

use serde_json::{Value, json};

use super::script::{Random, Series, load, with_gaps};

/// Moments of a run. At the first everything is on target: `decide` removes no pod before it has watched for a while, and an HPA may.
pub const STEPS: usize = 40;
/// Windows and periods: odd numbers, which lie a second away from every time between two moments (see `server::PACE_MILLIS`).
pub const SECONDS: [u64; 6] = [1, 3, 5, 7, 9, 15];
/// Thousandths of a metric that each pod should carry.
pub const EACH_MILLI: u64 = 10_000;

/// One HPA.
#[derive(Debug)]
pub struct Scenario {
    /// Name of HPA, target and, with a number behind it, metrics.
    pub name: String,
    /// Fewest pods.
    pub min: u32,
    /// Most pods.
    pub max: u32,
    /// Pods at the beginning.
    pub start: u32,
    /// `behavior`, as HPA and InferenceService both take it.
    pub behavior: Value,
    /// The metrics.
    pub metrics: Vec<Series>,
}

/// All of them, with the same series for the same seed.
pub fn all(seed: u64) -> Vec<Scenario> {
    let named = named_behaviors().into_iter();
    let mut all: Vec<Scenario> = named
        .map(|(name, behavior)| scenario(seed, name, behavior))
        .collect();
    all.extend((0..12).map(|number| {
        let name = format!("random-{number}");
        let mut random = Random::new(seed, &format!("behavior-{name}"));
        scenario(seed, &name, random_behavior(&mut random))
    }));
    for (number, behavior) in named_behaviors().into_iter().take(4).enumerate() {
        all.push(with_two_metrics(seed, &format!("two-{number}"), behavior.1));
    }
    all.push(out_of_bounds(seed, "above", 40));
    all.push(out_of_bounds(seed, "below", 1));
    all
}

fn named_behaviors() -> Vec<(&'static str, Value)> {
    let policy = |kind: &str, value: u32, seconds: u32| json!({"type": kind, "value": value, "periodSeconds": seconds});
    let quick = json!({"stabilizationWindowSeconds": 0});
    vec![
        ("quick", json!({"scaleDown": quick})),
        (
            "defaults",
            json!({"scaleUp": {}, "scaleDown": {"stabilizationWindowSeconds": 300}}),
        ),
        (
            "windows",
            json!({
                "scaleUp": {"stabilizationWindowSeconds": 3},
                "scaleDown": {"stabilizationWindowSeconds": 5},
            }),
        ),
        (
            "pods",
            json!({
                "scaleUp": {"policies": [policy("Pods", 2, 3)]},
                "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [policy("Pods", 1, 3)]},
            }),
        ),
        (
            "percent",
            json!({
                "scaleUp": {"policies": [policy("Percent", 50, 5)]},
                "scaleDown": {"stabilizationWindowSeconds": 3, "policies": [policy("Percent", 10, 7)]},
            }),
        ),
        (
            "least",
            json!({
                "scaleUp": {"selectPolicy": "Min", "policies": [policy("Percent", 100, 3), policy("Pods", 3, 5)]},
                "scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Min", "policies": [policy("Percent", 50, 3), policy("Pods", 2, 7)]},
            }),
        ),
        (
            "most",
            json!({
                "scaleUp": {"policies": [policy("Pods", 1, 3), policy("Percent", 100, 7)]},
                "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [policy("Pods", 1, 1), policy("Percent", 20, 5)]},
            }),
        ),
        (
            "never-down",
            json!({"scaleDown": {"selectPolicy": "Disabled"}}),
        ),
        (
            "never-up",
            json!({
                "scaleUp": {"selectPolicy": "Disabled"},
                "scaleDown": {"stabilizationWindowSeconds": 1},
            }),
        ),
        (
            "tolerant",
            json!({
                "scaleUp": {"tolerance": "0"},
                "scaleDown": {"stabilizationWindowSeconds": 0, "tolerance": "0.3"},
            }),
        ),
    ]
}

fn random_behavior(random: &mut Random) -> Value {
    let rules = |random: &mut Random| {
        let policies: Vec<Value> = (0..=random.below(3))
            .map(|_| {
                let percent = random.once_in(2);
                let value = 1 + random.below(if percent { 150 } else { 5 });
                let kind = if percent { "Percent" } else { "Pods" };
                json!({"type": kind, "value": value, "periodSeconds": random.of(&SECONDS)})
            })
            .collect();
        let window = if random.once_in(3) {
            0
        } else {
            random.of(&SECONDS)
        };
        json!({
            "stabilizationWindowSeconds": window,
            "selectPolicy": random.of(&["Max", "Max", "Min"]),
            "policies": policies,
            "tolerance": random.of(&["0", "0.05", "0.1", "0.25"]),
        })
    };
    json!({"scaleUp": rules(random), "scaleDown": rules(random)})
}

fn scenario(seed: u64, name: &str, behavior: Value) -> Scenario {
    let mut random = Random::new(seed, name);
    let mut series = load(&mut random, STEPS, EACH_MILLI);
    if random.once_in(3) {
        series = with_gaps(&mut random, series);
    }
    let min = 1 + random.below(3) as u32;
    let start = min + random.below(6) as u32;
    Scenario {
        name: name.to_owned(),
        min,
        max: 20 + random.below(20) as u32,
        start,
        behavior,
        metrics: vec![begun(series, start)],
    }
}

fn begun(mut series: Series, start: u32) -> Series {
    series[0] = Some(u64::from(start) * EACH_MILLI);
    series
}

/// The larger recommendation counts; one that is absent keeps pods from going.
fn with_two_metrics(seed: u64, name: &str, behavior: Value) -> Scenario {
    let mut scenario = scenario(seed, name, behavior);
    let mut random = Random::new(seed, &format!("second-{name}"));
    let second = load(&mut random, STEPS, EACH_MILLI);
    let second = with_gaps(&mut random, second);
    scenario.metrics.push(begun(second, scenario.start));
    scenario
}

fn out_of_bounds(seed: u64, name: &str, start: u32) -> Scenario {
    let quick = json!({"scaleDown": {"stabilizationWindowSeconds": 0}});
    Scenario {
        min: 3,
        max: 12,
        start,
        ..scenario(seed, name, quick)
    }
}
