//! What a decision costs. Nothing is asserted; the figures are printed by
//! `cargo test -p pagoda-operator-core --release --lib -- --ignored --nocapture --test-threads 1 a_decision a_history`.

use super::*;
use crate::validate::PanicSettings;

/// A usual service: five pods, two targets, every rule in use.
fn usual() -> ScalingSettings {
    ScalingSettings {
        window_seconds: 30,
        panic: Some(PanicSettings {
            window_seconds: 6,
            threshold_percent: 200,
        }),
        follows_trend: true,
        targets: vec![
            each(Metric::InFlightRequests, 8000),
            each(Metric::TokensPerSecond, 900_000),
        ],
        ..settings(1, 20, 1)
    }
}

fn looked_at(second: u64) -> Observation {
    let reading = |i: u64| PodReading {
        running: 6 + (second * 7 + i) % 5,
        waiting: i % 2,
        finished: Some(second * 3 + i),
        generated_tokens: second * 800,
        prompt_tokens: Some(second * 1500),
        kv_usage_milli: Some(400),
        ..PodReading::default()
    };
    let pods = (0..5).map(|i| pod(i as usize, true, Some(reading(i))));
    look(
        5,
        vec![gateway(0, 32 + second % 9, second * 15); 2],
        pods.collect(),
    )
}

#[test]
#[ignore = "a measurement, not a test"]
fn a_decision_takes() {
    let settings = usual();
    let looks: Vec<_> = (0..300).map(looked_at).collect();
    let (mut history, mut spent) = (History::default(), std::time::Duration::ZERO);
    for (second, look) in looks.iter().cycle().take(30_000).enumerate() {
        let started = std::time::Instant::now();
        let (decision, next) = decide(&settings, look, history, at(second as u64 * 1000));
        spent += started.elapsed();
        std::hint::black_box(decision);
        history = next;
    }
    println!("{:.2} us a decision", spent.as_secs_f64() / 30_000.0 * 1e6);
}

#[test]
#[ignore = "a measurement, not a test"]
fn a_history_takes() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse::<u64>().ok());
        pages.unwrap_or(0) * 4096
    };
    let settings = usual();
    let looks: Vec<_> = (0..120).map(looked_at).collect();
    let run = || {
        looks
            .iter()
            .enumerate()
            .fold(History::default(), |history, (second, look)| {
                decide(&settings, look, history, at(second as u64 * 1000)).1
            })
    };
    std::hint::black_box(run());
    let before = resident();
    let all: Vec<History> = (0..2000).map(|_| run()).collect();
    let each = (resident() - before) / all.len() as u64;
    println!(
        "{each} bytes a history, of which {} are the struct itself",
        size_of::<History>()
    );
}
