use std::sync::Arc;

use super::*;
use crate::autoscale::PodReading;
use pagoda_crds::api::LoadStatus;
use proptest::prelude::*;

fn counted(generated_tokens: u64, cache_queries: u64, cache_hits: u64) -> PodReading {
    PodReading {
        generated_tokens,
        cache_queries,
        cache_hits,
        ..PodReading::default()
    }
}

fn told(
    replicas: u32,
    load: Option<LoadReading>,
    previous: &InferenceServiceStatus,
) -> InferenceServiceStatus {
    let seen = Observed {
        load,
        ..Observed::default()
    };
    status(&service(replicas), REVISION, &seen, previous, &at(1))
}

fn at_rate(tokens: f64, previous: &InferenceServiceStatus) -> InferenceServiceStatus {
    let reading = LoadReading {
        tokens_per_second: Some(tokens),
        kv_hit_percent: None,
    };
    told(1, Some(reading), previous)
}

#[test]
fn load_is_the_growth_of_counters_over_a_window_whatever_pods_come_and_go() {
    let (mut meter, a, b) = (LoadMeter::default(), Arc::from("a"), Arc::from("b"));
    assert_eq!(meter.note(&[(&a, &counted(1000, 10, 0))], 0), None);
    assert_eq!(
        meter.note(
            &[(&a, &counted(1600, 110, 40)), (&b, &counted(900, 0, 0))],
            10_000
        ),
        None
    );
    // b counts from where it was first seen; a was started anew.
    let load = meter.note(
        &[(&a, &counted(300, 0, 0)), (&b, &counted(1200, 0, 0))],
        30_000,
    );
    let load = load.expect("a window is over");
    assert_eq!(load.tokens_per_second, Some(40.0));
    assert_eq!(load.kv_hit_percent, Some(40.0));
}

#[test]
fn a_quiet_service_carries_nothing_only_after_a_while() {
    let (mut meter, a) = (LoadMeter::default(), Arc::from("a"));
    let mut said = vec![];
    for window in 0..12 {
        said.extend(meter.note(&[(&a, &counted(5, 0, 0))], window * 30_000));
    }
    let rates: Vec<_> = said.iter().map(|l| l.tokens_per_second).collect();
    assert_eq!(rates[..9], [None; 9]);
    assert_eq!(rates[9], Some(0.0));
}

#[test]
fn a_service_that_was_never_asked_says_nothing_of_its_load() {
    let never = InferenceServiceStatus::default();
    assert_eq!(at_rate(0.0, &never).load, None);
    let asked = at_rate(50.0, &never);
    let quiet = at_rate(0.0, &asked).load.expect("it was asked before");
    assert_eq!(quiet.tokens_per_second, Some(0));
}

#[test]
fn small_changes_of_load_are_not_written() {
    let none = InferenceServiceStatus::default();
    let first = at_rate(1234.0, &none);
    let tokens = |s: &InferenceServiceStatus| s.load.as_ref().and_then(|l| l.tokens_per_second);
    assert_eq!(tokens(&first), Some(1200));
    assert_eq!(tokens(&at_rate(1400.0, &first)), Some(1200));
    assert_eq!(tokens(&at_rate(1600.0, &first)), Some(1600));
    assert_eq!(tokens(&told(1, None, &first)), Some(1200));
    assert_eq!(tokens(&at_rate(0.0, &first)), Some(0));
    assert_eq!(told(0, None, &first).load, None, "no pods carry nothing");
}

proptest! {
    /// Whatever is measured: telling it twice is no news, and what is told is within the tolerance of what was measured.
    #[test]
    fn what_is_told_is_near_and_stands(before in proptest::option::of(0_i64..100_000), tokens in 0.0_f64..100_000.0, hit in 0.0_f64..100.0) {
        let load = before.map(|tokens| LoadStatus { tokens_per_second: Some(tokens), kv_hit_percent: Some(50) });
        let previous = InferenceServiceStatus { load, ..InferenceServiceStatus::default() };
        let reading = Some(LoadReading { tokens_per_second: Some(tokens), kv_hit_percent: Some(hit) });
        let once = told(1, reading, &previous);
        prop_assert_eq!(&told(1, reading, &once).load, &once.load);
        let load = once.load.expect("told");
        let off = (load.tokens_per_second.unwrap_or(0) as f64 - tokens).abs();
        prop_assert!(off <= 0.31 * tokens + 1.0, "{off} off {tokens}");
        prop_assert!((f64::from(load.kv_hit_percent.expect("told")) - hit).abs() <= 5.0);
    }
}
