use pagoda_crds::api::Metric;
use pagoda_operator_core::validate::{ScalingSettings, validate};
use proptest::prelude::*;

use crate::scaler::{
    FleetView, Hpa, HpaMetric, HpaSettings, Kpa, KpaSettings, Pagoda, Saturation,
    SaturationSettings, Scaler, Wish,
};
use crate::trace::{Arrival, Shape, Shaped};
use crate::{
    Hardware, MILLISECOND, PodProfile, Report, SECOND, Setup, SimulateError, report, simulate, tune,
};

/// Always the same number.
#[derive(Debug)]
pub(crate) struct Fixed(pub u32);

impl Scaler for Fixed {
    fn name(&self) -> String {
        "fixed".to_owned()
    }

    fn look(&mut self, seen: &FleetView<'_>) -> Option<Wish> {
        (seen.desired() != self.0).then(|| Wish {
            replicas: self.0,
            reason: "fixed".to_owned(),
        })
    }
}

pub(crate) fn setup() -> Setup {
    Setup {
        hardware: vec![Hardware {
            name: "simulated".into(),
            weight: 1,
            profile: PodProfile {
                prefill_tokens_per_second: 10_000.0,
                step_nanos: 20 * MILLISECOND,
                sequence_nanos: MILLISECOND / 2,
                step_tokens: 512,
                max_sequences: 16,
                max_waiting: 1024,
                block_tokens: 16,
                kv_blocks: 2000,
                context_tokens: 16_000,
                prefix_cache: true,
            },
        }],
        initial_replicas: 1,
        min_replicas: 1,
        max_replicas: 20,
        load: 20 * SECOND,
        load_jitter: 0.1,
        drain: 60 * SECOND,
        hold_requests: 100,
        hold_timeout: 30 * SECOND,
        decision_delay: SECOND / 2,
        slo_first_token: 2 * SECOND,
        slo_inter_token: SECOND / 10,
        gpus_per_pod: 1,
        cost_per_gpu_hour: 2.0,
        start_unix_seconds: 0,
        seed: 1,
    }
}

/// Requests that come at `per_second` for so many seconds, with the lengths of a simple pattern.
fn steady(per_second: u64, seconds: u64) -> Vec<Arrival> {
    (0..per_second * seconds)
        .map(|nth| Arrival {
            at: nth * SECOND / per_second,
            prompt_tokens: 200 + (nth * 7919 % 800) as u32,
            output_tokens: 20 + (nth * 104_729 % 100) as u32,
            prefix: Box::default(),
        })
        .collect()
}

fn play(setup: &Setup, arrivals: &[Arrival], scaler: &mut dyn Scaler) -> Report {
    let trace = arrivals.iter().cloned().map(Ok);
    simulate(setup, trace, scaler, &mut |_| ()).expect("runs")
}

fn settings(metric: &str) -> ScalingSettings {
    let manifest = serde_json::json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": { "name": "a", "namespace": "b", "uid": "c" },
        "spec": {
            "engine": { "executor": "simulated" },
            "model": {},
            "scaling": { "minReplicas": 0, "maxReplicas": 20, "idleSeconds": 60, "targets": [match metric {
                "InFlightRequests" => serde_json::json!({ "metric": metric, "averageValue": "8" }),
                _ => serde_json::json!({ "metric": metric, "milliseconds": 1500 }),
            }] },
        },
    });
    let object = serde_json::from_value(manifest).expect("a manifest");
    validate(&object).expect("a service").scaling
}

fn scalers() -> Vec<Box<dyn Scaler>> {
    vec![
        Box::new(Fixed(4)),
        Box::new(Pagoda::new(settings(Metric::InFlightRequests.as_str()))),
        Box::new(Pagoda::new(settings(Metric::TimeToFirstToken.as_str()))),
        Box::new(Hpa::new("hpa", HpaSettings::new(HpaMetric::InFlight, 8.0))),
        Box::new(Kpa::new(KpaSettings::new(8.0))),
        Box::new(Saturation::new(SaturationSettings::default())),
    ]
}

fn conserves(report: &Report, arrivals: &[Arrival]) {
    let counts = report.counts;
    assert_eq!(counts.requests, arrivals.len() as u64);
    assert_eq!(report.unfinished, 0);
    assert_eq!(
        counts.requests,
        counts.completed + report.lost() + counts.too_long,
        "{}: {counts:?}",
        report.scaler
    );
    assert!(counts.met <= counts.completed);
    let moments = &report.moments;
    // The last stretch, after the last look, is told nowhere.
    assert!(moments.iter().map(|m| m.arrived).sum::<u64>() <= counts.requests);
    assert!(moments.iter().map(|m| m.ended).sum::<u64>() <= counts.requests);
}

#[test]
fn the_same_input_gives_the_same_report_and_another_seed_another() {
    let arrivals = steady(12, 300);
    for index in 0..scalers().len() {
        let run = |seed| {
            let setup = Setup { seed, ..setup() };
            play(&setup, &arrivals, scalers()[index].as_mut())
        };
        let (first, second) = (run(1), run(1));
        assert_eq!(first, second, "{}", first.scaler);
        let rows = [first];
        assert_eq!(
            report::to_json(&rows).to_string(),
            report::to_json(&[second]).to_string()
        );
        assert_ne!(rows[0].first_token, run(2).first_token);
    }
}

#[test]
fn no_request_is_lost_or_counted_twice_whoever_decides() {
    let mut arrivals = steady(15, 200);
    arrivals.push(Arrival {
        prompt_tokens: 20_000,
        output_tokens: 1,
        ..arrivals[2999].clone()
    });
    for mut scaler in scalers() {
        let report = play(&setup(), &arrivals, scaler.as_mut());
        conserves(&report, &arrivals);
        assert_eq!(report.counts.too_long, 1);
        assert!(report.most_replicas <= 20);
    }
}

#[test]
fn a_service_at_zero_holds_its_requests_and_wakes() {
    let setup = Setup {
        initial_replicas: 0,
        min_replicas: 0,
        ..setup()
    };
    let arrivals = steady(1, 10);
    let mut pagoda = Pagoda::new(settings("InFlightRequests"));
    let report = play(&setup, &arrivals, &mut pagoda);
    conserves(&report, &arrivals);
    assert_eq!(report.lost(), 0);
    assert_eq!(
        (report.events[0].from, report.events[0].at / SECOND),
        (0, 0),
        "woken at once"
    );
    assert!(
        report.first_token.p50 > 10_000.0,
        "they waited for the pod to load"
    );
}

#[test]
fn an_idle_service_goes_to_zero_and_its_time_is_not_paid_for() {
    let setup = Setup {
        min_replicas: 0,
        ..setup()
    };
    let mut arrivals = steady(1, 5);
    arrivals.push(Arrival {
        at: 3600 * SECOND,
        ..arrivals[0].clone()
    });
    let mut pagoda = Pagoda::new(settings("InFlightRequests"));
    let report = play(&setup, &arrivals, &mut pagoda);
    assert_eq!(report.lost(), 0);
    assert!(report.gpu_hours < 0.1, "{} GPU-hours", report.gpu_hours);
}

#[test]
fn requests_that_are_held_too_long_or_too_many_are_refused() {
    let setup = Setup {
        initial_replicas: 0,
        min_replicas: 0,
        hold_requests: 5,
        load: 100 * SECOND,
        ..setup()
    };
    let report = play(&setup, &steady(10, 2), &mut Fixed(1));
    assert_eq!(
        (report.counts.hold_full, report.counts.hold_timeout),
        (15, 5)
    );
    assert!(report.attainment() < f64::EPSILON);
}

#[test]
fn pods_that_leave_end_their_streams_first_and_are_paid_for_until_then() {
    struct Down;
    impl Scaler for Down {
        fn name(&self) -> String {
            "down".to_owned()
        }
        fn look(&mut self, seen: &FleetView<'_>) -> Option<Wish> {
            (seen.now == SECOND).then(|| Wish {
                replicas: 1,
                reason: String::new(),
            })
        }
    }
    let long = |_| Arrival {
        at: 0,
        prompt_tokens: 100,
        output_tokens: 1000,
        prefix: Box::default(),
    };
    let arrivals: Vec<Arrival> = (0..20).map(long).collect();
    let setup_of = |drain| Setup {
        initial_replicas: 4,
        drain,
        decision_delay: 0,
        ..setup()
    };
    let drained = play(&setup_of(60 * SECOND), &arrivals, &mut Down);
    assert_eq!((drained.counts.completed, drained.lost()), (20, 0));
    let cut = play(&setup_of(5 * SECOND), &arrivals, &mut Down);
    assert!(cut.counts.cut > 0);
    conserves(&cut, &arrivals);
    assert!(cut.gpu_hours < drained.gpu_hours);
}

#[test]
fn more_pods_are_never_worse_on_average() {
    let arrivals = steady(20, 120);
    let mean = |pods: u32| {
        let of = |seed| {
            let setup = Setup {
                initial_replicas: pods,
                seed,
                ..setup()
            };
            play(&setup, &arrivals, &mut Fixed(pods)).attainment()
        };
        (0..8).map(of).sum::<f64>() / 8.0
    };
    let attained: Vec<f64> = [1, 2, 3, 4, 6, 10].map(mean).into();
    assert!(
        attained.is_sorted_by(|fewer, more| *more >= fewer - 0.005),
        "{attained:?}"
    );
    assert!(attained[0] < 0.5 && attained[5] > 0.99, "{attained:?}");
}

#[test]
fn ten_thousand_pods_run() {
    let setup = Setup {
        initial_replicas: 10_000,
        max_replicas: 10_000,
        ..setup()
    };
    let arrivals = steady(2000, 5);
    let report = play(&setup, &arrivals, &mut Fixed(10_000));
    conserves(&report, &arrivals);
    assert!(report.attainment() > 0.999);
}

#[test]
fn hardware_is_used_by_its_weight() {
    let one = setup().hardware[0].clone();
    let setup = Setup {
        hardware: vec![
            Hardware {
                name: "slow".into(),
                weight: 3,
                ..one.clone()
            },
            Hardware {
                name: "fast".into(),
                weight: 1,
                profile: one.profile.faster(3.0),
            },
        ],
        initial_replicas: 8,
        ..setup()
    };
    let report = play(
        &setup,
        &steady(10, 60),
        &mut Pagoda::new(settings("TimeToFirstToken")),
    );
    assert_eq!(report.lost(), 0);
}

#[test]
fn a_tuned_hpa_is_no_worse_than_any_of_its_grid() {
    let setup = setup();
    let arrivals = steady(12, 240);
    let open = || Ok::<_, SimulateError>(arrivals.iter().cloned().map(Ok));
    let (_, best) = tune::hpa(&setup, 0.9, open, |_, _| ()).expect("runs");
    let busy = tune::busy_seconds(&setup, arrivals.iter().cloned().map(Ok)).expect("runs");
    for settings in tune::grid(&setup, busy) {
        let other = play(&setup, &arrivals, &mut Hpa::new("hpa", settings));
        assert!(!tune::better(&other, &best, 0.9), "{settings:?}");
    }
}

#[test]
fn what_cannot_be_simulated_is_said() {
    let empty = Setup {
        hardware: vec![],
        ..setup()
    };
    let none = std::iter::empty();
    let error = simulate(&empty, none, &mut Fixed(1), &mut |_| ()).expect_err("refused");
    assert!(error.to_string().contains("hardware"));
    let bounds = Setup {
        min_replicas: 5,
        max_replicas: 2,
        ..setup()
    };
    assert!(bounds.check().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn requests_are_conserved_and_bounds_hold_for_any_load(
        per_second in 1_u64..40, seconds in 5_u64..60, load in 0_u64..40, drain in 0_u64..30, hold in 0_usize..50,
        scale_load in 0.3_f64..3.0, seed in any::<u64>(), min in 0_u32..3,
    ) {
        let setup = Setup {
            load: load * SECOND, drain: drain * SECOND, hold_requests: hold, seed, min_replicas: min, initial_replicas: min, ..setup()
        };
        let shape = Shape { scale_load, jitter: SECOND, seed, ..Shape::default() };
        let arrivals: Vec<Arrival> = Shaped::new(steady(per_second, seconds).into_iter().map(Ok), shape)
            .collect::<Result<_, _>>().expect("no fault");
        for mut scaler in scalers() {
            let report = play(&setup, &arrivals, scaler.as_mut());
            conserves(&report, &arrivals);
            prop_assert!(report.events.iter().all(|e| (min..=20).contains(&e.to)));
            prop_assert!(report.events.is_sorted_by_key(|e| e.at));
        }
    }
}
