use std::sync::Arc;

use pagoda_crds::api::CapacityStatus;
use proptest::prelude::*;

use super::play::{Engine, Pod, Requests, Speed};
use crate::autoscale::{
    PodReading, PodSeen,
    capacity::{Learner, queueing::PodModel},
    pod_reading::Work,
};

const WINDOW: u64 = 30_000;

/// Plays for so many seconds, looking each second.
fn watch(
    learner: &mut Learner,
    pods: &mut [Pod],
    requests: &Requests,
    seconds: std::ops::Range<u64>,
) {
    for second in seconds {
        for pod in &mut *pods {
            pod.play(second as f64, requests);
        }
        let seen: Vec<PodSeen> = pods.iter().map(Pod::seen).collect();
        learner.note(&seen, WINDOW, second * 1000);
    }
}

fn learned(learner: &Learner) -> PodModel {
    learner.model_of("one", "gpu").expect("enough was seen")
}

/// Error in the time of steps of so many sequences, and of a prompt token.
fn errors(model: &PodModel, speed: &Speed, batch: f64) -> (f64, f64) {
    let (told, truth) = (
        model.step_seconds + model.sequence_seconds * batch,
        speed.step + speed.sequence * batch,
    );
    (
        told / truth - 1.0,
        model.prompt_token_seconds * speed.prompt_rate - 1.0,
    )
}

const BUSY: Requests = Requests {
    rate: 2.0,
    prompt: 800.0,
    generated: 200.0,
    hit: 0.0,
};
const FAST: Speed = Speed {
    prompt_rate: 5_000.0,
    step: 0.02,
    sequence: 0.0005,
    noise: 0.1,
};

#[test]
fn learns_within_a_minute_what_steps_take() {
    let (mut learner, mut pods) = (Learner::default(), [Pod::new("a", FAST, Engine::Pagoda, 5)]);
    watch(&mut learner, &mut pods, &BUSY, 0..60);
    let (step, prompt) = errors(&learned(&learner), &FAST, 8.0);
    assert!(step.abs() < 0.05 && prompt.abs() < 0.1, "{step} {prompt}");
}

#[test]
fn learns_what_steps_take_of_an_engine_that_does_not_tell() {
    let (mut learner, mut pods) = (Learner::default(), [Pod::new("a", FAST, Engine::Vllm, 5)]);
    watch(
        &mut learner,
        &mut pods,
        &Requests { rate: 4.0, ..BUSY },
        0..300,
    );
    let (step, prompt) = errors(&learned(&learner), &FAST, 20.0);
    assert!(step.abs() < 0.15 && prompt.abs() < 0.3, "{step} {prompt}");
}

#[test]
fn a_pod_that_is_mostly_idle_tells_as_well_what_its_steps_take() {
    let (mut learner, mut pods) = (Learner::default(), [Pod::new("a", FAST, Engine::Pagoda, 5)]);
    watch(
        &mut learner,
        &mut pods,
        &Requests { rate: 0.1, ..BUSY },
        0..300,
    );
    let (step, prompt) = errors(&learned(&learner), &FAST, 1.0);
    assert!(step.abs() < 0.05 && prompt.abs() < 0.1, "{step} {prompt}");
}

#[test]
fn a_simulated_engine_is_learned_exactly() {
    let speed = Speed {
        prompt_rate: 2_000.0,
        step: 0.03,
        sequence: 0.0,
        noise: 0.0,
    };
    let (mut learner, mut pods) = (
        Learner::default(),
        [Pod::new("a", speed, Engine::Pagoda, 9)],
    );
    watch(
        &mut learner,
        &mut pods,
        &Requests { rate: 1.5, ..BUSY },
        0..60,
    );
    let model = learned(&learner);
    assert!(
        (model.prompt_token_seconds * 2_000.0 - 1.0).abs() < 0.001,
        "{model:?}"
    );
    assert!((model.step_seconds / 0.03 - 1.0).abs() < 0.001, "{model:?}");
    assert!(model.sequence_seconds < 1e-5, "{model:?}");
}

#[test]
fn counters_that_start_anew_teach_nothing_false() {
    let (mut learner, mut pods) = (Learner::default(), [Pod::new("a", FAST, Engine::Pagoda, 5)]);
    for (life, second) in (0..10).zip((0..).step_by(20)) {
        watch(&mut learner, &mut pods, &BUSY, second..second + 20);
        pods = [Pod::new("a", FAST, Engine::Pagoda, 100 + life)];
        pods[0].play(second as f64 + 19.0, &Requests { rate: 0.0, ..BUSY });
    }
    let (step, prompt) = errors(&learned(&learner), &FAST, 8.0);
    assert!(step.abs() < 0.05 && prompt.abs() < 0.1, "{step} {prompt}");
}

#[test]
fn a_request_costs_what_requests_cost() {
    let requests = Requests { hit: 0.5, ..BUSY };
    for engine in [Engine::Pagoda, Engine::Vllm] {
        let (mut learner, mut pods) = (Learner::default(), [Pod::new("a", FAST, engine, 5)]);
        watch(&mut learner, &mut pods, &requests, 0..300);
        let cost = learner.request_cost().expect("hundreds of requests");
        assert!(
            (cost.uncached_prompt_tokens / 400.0 - 1.0).abs() < 0.2,
            "{engine:?} {cost:?}"
        );
        assert!(
            (cost.generated_tokens / 200.0 - 1.0).abs() < 0.2,
            "{engine:?} {cost:?}"
        );
    }
}

#[test]
fn a_cache_that_stops_helping_makes_requests_dearer_within_the_window() {
    for engine in [Engine::Pagoda, Engine::Vllm] {
        let (mut learner, mut pods) = (Learner::default(), [Pod::new("a", FAST, engine, 5)]);
        watch(
            &mut learner,
            &mut pods,
            &Requests { hit: 0.8, ..BUSY },
            0..300,
        );
        let before = learner
            .request_cost()
            .expect("known")
            .uncached_prompt_tokens;
        watch(
            &mut learner,
            &mut pods,
            &Requests { hit: 0.0, ..BUSY },
            300..330,
        );
        let after = learner
            .request_cost()
            .expect("known")
            .uncached_prompt_tokens;
        assert!(after > 2.0 * before, "{engine:?}: {before}, then {after}");
    }
}

#[test]
fn what_requests_cost_is_known_after_a_quiet_night() {
    let (mut learner, mut pods) = (Learner::default(), [Pod::new("a", FAST, Engine::Pagoda, 5)]);
    watch(&mut learner, &mut pods, &BUSY, 0..120);
    for minute in 2..600 {
        learner.note(&[], WINDOW, minute * 60_000);
    }
    let cost = learner.request_cost().expect("as it was");
    assert!(
        (cost.generated_tokens / 200.0 - 1.0).abs() < 0.3,
        "{cost:?}"
    );
}

#[test]
fn a_start_is_the_median_of_those_that_were_seen() {
    let mut learner = Learner::default();
    let pod = |name: &str, age: u64, ready: Option<u64>| PodSeen {
        name: name.into(),
        revision: "one".into(),
        hardware: "gpu".into(),
        ready: ready.is_some(),
        age_millis: age,
        ready_age_millis: ready,
        reading: None,
    };
    learner.note(&[pod("flaps", 9_000_000, Some(1_000))], WINDOW, 0);
    assert_eq!(
        learner.start_millis(),
        Some(8_999_000),
        "better than nothing"
    );
    for (at, took) in [(1, 40_000), (2, 42_000), (3, 41_000), (4, 600_000)] {
        let name = format!("pod-{at}");
        learner.note(&[pod(&name, 1_000, None)], WINDOW, at * 2_000);
        learner.note(
            &[pod(&name, took + 500, Some(500))],
            WINDOW,
            at * 2_000 + 1_000,
        );
    }
    assert_eq!(learner.start_millis(), Some(42_000));
    learner.note(
        &[pod("another-that-flaps", 9_000_000, Some(1_000))],
        WINDOW,
        20_000,
    );
    assert_eq!(
        learner.start_millis(),
        Some(42_000),
        "it was ready before it was seen"
    );
}

#[test]
fn what_the_status_tells_is_gone_on_with() {
    let (mut learner, mut pods) = (Learner::default(), [Pod::new("a", FAST, Engine::Pagoda, 5)]);
    watch(&mut learner, &mut pods, &BUSY, 0..120);
    let told = learner.entries();
    let again = Learner::restore(&told);
    let (before, after) = (learned(&learner), learned(&again));
    let close = |a: f64, b: f64| (a - b).abs() <= 0.02 * a.max(b) + 1e-6;
    assert!(
        close(before.prompt_token_seconds, after.prompt_token_seconds),
        "{before:?} {after:?}"
    );
    assert!(
        close(before.step_seconds, after.step_seconds),
        "{before:?} {after:?}"
    );
    assert!(
        close(before.sequence_seconds, after.sequence_seconds),
        "{before:?} {after:?}"
    );
    assert_eq!(again.start_millis(), learner.start_millis());
}

#[test]
fn a_revision_that_is_gone_is_forgotten_and_none_is_while_there_is_no_pod() {
    let known = |revision: &str| CapacityStatus {
        revision: revision.into(),
        hardware: "gpu".into(),
        decode_step_microseconds: Some(20_000),
        decode_sequence_microseconds: Some(0),
        start_milliseconds: Some(5_000),
        ..CapacityStatus::default()
    };
    let mut learner = Learner::restore(&[known("old"), known("one")]);
    for second in 0..3_600 {
        learner.note(&[], WINDOW, second * 1000);
    }
    assert_eq!(learner.entries().len(), 2);
    let pod = Pod::new("a", FAST, Engine::Pagoda, 5);
    for second in 3_600..4_300 {
        learner.note(&[pod.seen()], WINDOW, second * 1000);
    }
    let left: Vec<String> = learner.entries().into_iter().map(|e| e.revision).collect();
    assert_eq!(left, ["one"]);
}

#[test]
fn no_more_kinds_are_remembered_than_a_status_holds() {
    let mut learner = Learner::default();
    for second in 0..100_u64 {
        let mut pod = Pod::new("a", FAST, Engine::Pagoda, 5).seen();
        pod.revision = format!("r{second}").into();
        learner.note(&[pod], WINDOW, second * 1000);
    }
    assert!(learner.entries().len() <= 16);
}

prop_compose! {
    fn a_reading()(
        counts in proptest::array::uniform8(prop_oneof![0u64..100, any::<u64>()]),
        work in proptest::option::of(proptest::array::uniform6(prop_oneof![0u64..1_000_000, any::<u64>()])),
        kv in proptest::option::of(any::<u32>()),
        finished in any::<bool>(),
    ) -> PodReading {
        PodReading {
            running: counts[0],
            waiting: counts[1],
            finished: finished.then_some(counts[2]),
            generated_tokens: counts[3],
            prompt_tokens: finished.then_some(counts[4]),
            cache_queries: counts[5],
            cache_hits: counts[6],
            kv_usage_milli: kv,
            work: work.map(|w| Work {
                busy_micros: w[0], prefill_tokens: w[1], decode_steps: w[2], decode_tokens: w[3],
                most_sequences: w[4], most_step_tokens: w[5],
            }),
            latencies: None,
        }
    }
}

proptest! {
    #[test]
    fn whatever_pods_tell_nothing_negative_or_endless_is_learned(
        looks in proptest::collection::vec((a_reading(), 0u64..40_000), 1..40),
    ) {
        let mut learner = Learner::default();
        let mut now = 0;
        for (reading, later) in looks {
            now += later;
            let pod = PodSeen {
                name: "a".into(), revision: "one".into(), hardware: "gpu".into(), ready: true, age_millis: now,
                ready_age_millis: Some(now / 2), reading: Some(reading),
            };
            learner.note(&[pod], WINDOW, now);
            for entry in learner.entries() {
                let figures = [
                    entry.tokens_per_second, entry.prefill_tokens_per_second, entry.decode_step_microseconds,
                    entry.decode_sequence_microseconds, entry.start_milliseconds,
                ];
                prop_assert!(figures.iter().flatten().all(|f| (0..=1_000_000_000_000_000).contains(f)), "{entry:?}");
            }
            if let Some(cost) = learner.request_cost() {
                prop_assert!(cost.uncached_prompt_tokens.is_finite() && cost.uncached_prompt_tokens >= 0.0);
                prop_assert!(cost.generated_tokens.is_finite() && cost.generated_tokens >= 0.0);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_speed_is_learned_while_a_pod_is_in_use(
        prompt_rate in 1_000.0f64..30_000.0, step in 0.005f64..0.05, sequence in 0.0f64..0.001, noise in 0.0f64..0.2,
        prompt in 100.0f64..3_000.0, generated in 20.0f64..400.0, load in 0.2f64..0.9, seed in any::<u64>(),
    ) {
        let speed = Speed { prompt_rate, step, sequence, noise };
        let work = prompt / prompt_rate + generated * (step / 16.0 + sequence);
        let requests = Requests { rate: load / work, prompt, generated, hit: 0.0 };
        let (mut learner, mut pods) = (Learner::default(), [Pod::new("a", speed, Engine::Pagoda, seed)]);
        watch(&mut learner, &mut pods, &requests, 0..180);
        let batch = pods[0].seen().reading.map_or(1, |r| r.running).clamp(1, 64) as f64;
        let model = learner.model_of("one", "gpu").expect("enough was seen");
        let told = model.step_seconds + model.sequence_seconds * batch + model.prompt_token_seconds * prompt;
        let truth = step + sequence * batch + prompt / prompt_rate;
        prop_assert!((told / truth - 1.0).abs() < 0.12, "{model:?} for {speed:?}");
    }
}

#[test]
fn pods_of_two_kinds_are_told_apart() {
    let slow = Speed {
        prompt_rate: 2_500.0,
        step: 0.04,
        sequence: 0.001,
        noise: 0.1,
    };
    let mut pods = [
        Pod::new("a", FAST, Engine::Pagoda, 5),
        Pod::new("b", slow, Engine::Pagoda, 6),
    ];
    pods[1].hardware = Arc::from("old-gpu");
    let mut learner = Learner::default();
    watch(
        &mut learner,
        &mut pods,
        &Requests { rate: 1.0, ..BUSY },
        0..120,
    );
    let seen: Vec<PodSeen> = pods.iter().map(Pod::seen).collect();
    let relative = learner.relative_capacity(&seen).expect("both are known");
    let mean = relative.iter().sum::<f64>() / 2.0;
    assert!((mean - 1.0).abs() < 1e-9);
    assert!(
        (relative[0] / relative[1] / 2.0 - 1.0).abs() < 0.35,
        "{relative:?}"
    );
    assert_eq!(learner.relative_capacity(&seen[..1]), None, "all alike");
}

/// A figure for people, not a test of time: `cargo test --release ... -- --ignored --nocapture cost_of`.
#[test]
#[ignore = "prints a figure"]
fn cost_of_a_look() {
    use crate::{
        autoscale::capacity::Asked,
        validate::{TargetSetting, TargetValue},
    };
    let (mut learner, mut pods) = (Learner::default(), Vec::new());
    for i in 0..5 {
        pods.push(Pod::new(&format!("pod-{i}"), FAST, Engine::Pagoda, 5 + i));
    }
    let looks: Vec<Vec<PodSeen>> = (0..300)
        .map(|second| {
            for pod in &mut pods {
                pod.play(f64::from(second), &BUSY);
            }
            pods.iter().map(Pod::seen).collect()
        })
        .collect();
    let latency = TargetValue::Latency {
        percentile: 95,
        milliseconds: 800,
    };
    let target = TargetSetting {
        metric: pagoda_crds::api::Metric::TimeToFirstToken,
        value: latency,
    };
    let (mut note, mut recommend) = (std::time::Duration::ZERO, std::time::Duration::ZERO);
    for round in 0..20_u64 {
        for (second, look) in looks.iter().enumerate() {
            let now = (round * 300 + second as u64) * 1000;
            let began = std::time::Instant::now();
            learner.note(look, WINDOW, now);
            note += began.elapsed();
            let began = std::time::Instant::now();
            let asked = Asked {
                rate_milli: 10_000,
                queued: 0,
            };
            std::hint::black_box(learner.recommend(&target, asked, look, now));
            recommend += began.elapsed();
        }
    }
    println!(
        "note of 5 pods {:?}, recommend {:?}",
        note / 6_000,
        recommend / 6_000
    );
}
