use super::*;
use crate::validate::{BehaviorSettings, RulesSettings};
use pagoda_crds::api::{PolicyKind, ScalingPolicy, SelectPolicy};
use proptest::prelude::*;

/// No limit to the pace; both directions with the same tolerance.
fn behavior(tolerance_percent: u32, down_window_seconds: u32) -> BehaviorSettings {
    let rules = |window_seconds| RulesSettings {
        tolerance_milli: tolerance_percent * 10,
        window_seconds,
        select: SelectPolicy::Max,
        policies: vec![ScalingPolicy {
            kind: PolicyKind::Pods,
            value: 1_000_000,
            period_seconds: 1,
        }],
    };
    BehaviorSettings {
        up: rules(0),
        down: rules(down_window_seconds),
    }
}

fn settings(min: u32, max: u32, target_milli: u64) -> ScalingSettings {
    ScalingSettings {
        min_replicas: min,
        max_replicas: max,
        idle_seconds: 30,
        window_seconds: 1,
        prometheus: None,
        behavior: behavior(10, 60),
        panic: None,
        follows_trend: false,
        expects_recurrence: false,
        targets: vec![TargetSetting {
            metric: Metric::InFlightRequests,
            value: TargetValue::Each {
                milli: target_milli,
            },
        }],
        managed_by_pagoda: true,
    }
}

/// Everybody answered: the gateway holds `held`, and pods run `in_flight`.
fn seen(current: u32, held: u64, in_flight: u64) -> Observation {
    let gateway = GatewayReading {
        held,
        in_flight,
        finished: 0,
        ..GatewayReading::default()
    };
    let pods = (0..current).map(|_| Some(PodReading::default())).collect();
    observe(
        current,
        current,
        &ServiceReadings {
            gateways: vec![Some(gateway)],
            pods,
        },
    )
}

fn blind(current: u32) -> Observation {
    observe(
        current,
        current,
        &ServiceReadings {
            gateways: vec![None],
            pods: vec![None; current as usize],
        },
    )
}

/// One look after another, a second apart; returns the last decision. Replicas follow decisions.
fn run(settings: &ScalingSettings, looks: impl IntoIterator<Item = Observation>) -> Decision {
    let mut history = History::default();
    let mut last = None;
    for (second, look) in looks.into_iter().enumerate() {
        let (decision, next) = decide(settings, &look, history, second as u64 * 1000);
        history = next;
        last = Some(decision);
    }
    last.expect("at least one look")
}

fn steady(settings: &ScalingSettings, look: &Observation, seconds: usize) -> Decision {
    run(settings, std::iter::repeat_n(look.clone(), seconds + 1))
}

#[test]
fn follows_hpas_vectors_for_average_values() {
    // (current, demand in thousandths, target in thousandths, replicas)
    for (current, demand, target, expected) in [
        (3, 3 * 900, 500, 6),
        (1, 1100, 1000, 1),
        (1, 1101, 1000, 2),
        (10, 10 * 899, 1000, 9),
        (10, 10 * 900, 1000, 10),
        (4, 2 * 3000, 1000, 6),
        (1, 0, 1000, 0),
    ] {
        assert_eq!(
            by_ratio(demand, target, current, 10),
            expected,
            "{current} pods, {demand} of {target}"
        );
    }
}

#[test]
fn grows_at_once_to_what_the_demand_needs() {
    let decision = run(&settings(1, 10, 8000), [seen(1, 0, 30)]);
    assert_eq!(
        (decision.replicas, decision.reason),
        (4, Reason::Above(Metric::InFlightRequests))
    );
    assert_eq!(
        decision.to_string(),
        "AboveTarget: InFlightRequests 30, target 8 a pod"
    );
}

#[test]
fn held_requests_count_as_demand() {
    assert_eq!(run(&settings(1, 10, 8000), [seen(1, 20, 8)]).replicas, 4);
}

#[test]
fn bounds_hold() {
    let at_max = run(&settings(1, 3, 1000), [seen(2, 0, 50)]);
    assert_eq!(
        (at_max.replicas, at_max.reason),
        (3, Reason::AtMaximum(Metric::InFlightRequests))
    );
    assert_eq!(run(&settings(2, 3, 1000), [seen(1, 0, 0)]).replicas, 2);
    assert_eq!(run(&settings(1, 3, 1000), [seen(5, 0, 5)]).replicas, 3);
    assert_eq!(
        steady(&settings(2, 3, 1000), &seen(2, 0, 0), 100).reason,
        Reason::AtMinimum
    );
}

#[test]
fn shrinks_only_when_fewer_were_wanted_for_the_whole_window() {
    let settings = settings(1, 10, 1000);
    assert_eq!(
        steady(&settings, &seen(4, 0, 2), 59).reason,
        Reason::Stabilizing
    );
    let after = steady(&settings, &seen(4, 0, 2), 60);
    assert_eq!((after.replicas, after.reason), (2, Reason::Below));
}

#[test]
fn shrinks_to_the_largest_wish_of_the_window() {
    let settings = settings(1, 10, 1000);
    let looks = (0..100).map(|second| seen(6, 0, if second == 70 { 4 } else { 1 }));
    assert_eq!(run(&settings, looks).replicas, 4);
}

#[test]
fn a_new_controller_shrinks_nothing_before_it_has_watched_a_whole_window() {
    for second in 0..60 {
        let decision = steady(&settings(0, 10, 1000), &seen(9, 0, 1), second);
        assert_eq!(decision.replicas, 9, "after {second} s");
    }
}

#[test]
fn blindness_never_shrinks_and_starts_the_window_anew() {
    let settings = settings(1, 10, 1000);
    let gap = (0..120).map(|second| {
        if second == 100 {
            blind(4)
        } else {
            seen(4, 0, 2)
        }
    });
    assert_eq!(run(&settings, gap).replicas, 4);
    assert_eq!(steady(&settings, &blind(4), 1000).reason, Reason::NoMetrics);
}

#[test]
fn partial_knowledge_may_grow_and_never_shrinks() {
    let settings = settings(1, 10, 1000);
    let partial = |in_flight: u64| {
        let gateway = GatewayReading {
            held: 0,
            in_flight,
            finished: 0,
            ..GatewayReading::default()
        };
        observe(
            4,
            4,
            &ServiceReadings {
                gateways: vec![Some(gateway)],
                pods: vec![None; 4],
            },
        )
    };
    assert_eq!(
        steady(&settings, &partial(1), 500).reason,
        Reason::PartialMetrics
    );
    assert_eq!(steady(&settings, &partial(1), 500).replicas, 4);
    assert_eq!(run(&settings, [partial(9)]).replicas, 9);
}

#[test]
fn no_gateway_means_that_nothing_is_known_to_be_idle() {
    let lone = observe(
        1,
        1,
        &ServiceReadings {
            gateways: vec![],
            pods: vec![Some(PodReading::default())],
        },
    );
    assert_eq!(steady(&settings(0, 3, 1000), &lone, 1000).replicas, 1);
}

#[test]
fn goes_to_zero_after_idle_time_and_not_before() {
    let settings = settings(0, 3, 1000);
    assert_eq!(steady(&settings, &seen(1, 0, 0), 29).replicas, 1);
    let after = steady(&settings, &seen(1, 0, 0), 30);
    assert_eq!((after.replicas, after.reason), (0, Reason::Idle));
    assert_eq!(
        steady(&super::tests::settings(1, 3, 1000), &seen(1, 0, 0), 1000).replicas,
        1
    );
}

#[test]
fn a_request_between_two_looks_is_seen_in_the_arrivals() {
    let looks = (0..45).map(|second| {
        let gateway = GatewayReading {
            held: 0,
            in_flight: 0,
            finished: u64::from(second >= 20),
            ..GatewayReading::default()
        };
        observe(
            1,
            1,
            &ServiceReadings {
                gateways: vec![Some(gateway)],
                pods: vec![Some(PodReading::default())],
            },
        )
    });
    assert_eq!(run(&settings(0, 3, 1000), looks).replicas, 1);
}

#[test]
fn a_pod_that_still_loads_is_not_ended_for_idleness() {
    let loading = Observation {
        ready: 0,
        ..seen(1, 0, 0)
    };
    assert_eq!(steady(&settings(0, 3, 1000), &loading, 1000).replicas, 1);
}

#[test]
fn wakes_for_held_requests_with_as_many_pods_as_they_need() {
    let wake = run(&settings(0, 5, 8000), [seen(0, 50, 0)]);
    assert_eq!((wake.replicas, wake.reason), (5, Reason::Wake));
    assert_eq!(run(&settings(0, 5, 8000), [seen(0, 1, 0)]).replicas, 1);
    assert_eq!(
        run(&settings(0, 5, 8000), [seen(0, 0, 0)]).reason,
        Reason::AtZero
    );
    assert_eq!(run(&settings(0, 5, 8000), [blind(0)]).replicas, 0);
}

#[test]
fn without_targets_held_requests_still_wake_one_pod() {
    let none = ScalingSettings {
        targets: vec![],
        ..settings(0, 5, 1)
    };
    assert_eq!(run(&none, [seen(0, 7, 0)]).replicas, 1);
}

#[test]
fn requests_per_second_come_from_the_growth_of_arrivals() {
    let settings = ScalingSettings {
        targets: vec![TargetSetting {
            metric: Metric::RequestsPerSecond,
            value: TargetValue::Each { milli: 5000 },
        }],
        ..settings(1, 10, 1)
    };
    let looks = |per_second: u64| {
        (0..12).map(move |second| {
            let gateway = GatewayReading {
                held: 0,
                in_flight: 0,
                finished: second * per_second,
                ..GatewayReading::default()
            };
            observe(
                2,
                2,
                &ServiceReadings {
                    gateways: vec![Some(gateway)],
                    pods: vec![Some(PodReading::default()); 2],
                },
            )
        })
    };
    assert_eq!(run(&settings, looks(22)).replicas, 5);
    assert_eq!(run(&settings, looks(10)).reason, Reason::OnTarget);
}

#[test]
fn a_counter_that_restarts_makes_the_rate_unknown_and_nothing_shrinks() {
    let settings = ScalingSettings {
        targets: vec![TargetSetting {
            metric: Metric::RequestsPerSecond,
            value: TargetValue::Each { milli: 1000 },
        }],
        behavior: behavior(10, 0),
        ..settings(1, 10, 1)
    };
    let looks = [100, 110, 120, 130, 0, 1].map(|finished| {
        let gateway = GatewayReading {
            held: 0,
            in_flight: 0,
            finished,
            ..GatewayReading::default()
        };
        observe(
            8,
            8,
            &ServiceReadings {
                gateways: vec![Some(gateway)],
                pods: vec![Some(PodReading::default()); 8],
            },
        )
    });
    assert_eq!(run(&settings, looks).replicas, 8);
}

#[test]
fn the_largest_of_several_targets_wins() {
    let mut settings = settings(1, 10, 8000);
    settings.targets.push(TargetSetting {
        metric: Metric::RequestsPerSecond,
        value: TargetValue::Each { milli: 1000 },
    });
    let looks = (0..5).map(|second| {
        let gateway = GatewayReading {
            held: 0,
            in_flight: 1,
            finished: second * 7,
            ..GatewayReading::default()
        };
        observe(
            1,
            1,
            &ServiceReadings {
                gateways: vec![Some(gateway)],
                pods: vec![Some(PodReading::default())],
            },
        )
    });
    let decision = run(&settings, looks);
    assert_eq!(
        (decision.replicas, decision.reason),
        (7, Reason::Above(Metric::RequestsPerSecond))
    );
}

#[test]
fn reads_what_gateways_and_pods_write() {
    let text = "# TYPE pagoda_gateway_in_flight_requests gauge\n\
        pagoda_gateway_in_flight_requests{namespace=\"a\",service=\"x\"} 3\n\
        pagoda_gateway_held_requests{namespace=\"a\",service=\"y\"} 2\n\
        pagoda_gateway_requests_total{namespace=\"a\",service=\"x\",code=\"200\"} 7\n\
        pagoda_gateway_requests_total{namespace=\"a\",service=\"x\",code=\"503\"} 1\n";
    let readings = GatewayReading::parse_all(text).expect("a gateway's");
    assert_eq!(
        readings[&("a".into(), "x".into())],
        GatewayReading {
            held: 0,
            in_flight: 3,
            finished: 8,
            ..GatewayReading::default()
        }
    );
    assert_eq!(readings[&("a".into(), "y".into())].held, 2);
    assert!(
        GatewayReading::parse_all("# EOF\n").is_err(),
        "not a gateway's"
    );
    let pod = "vllm:num_requests_running{model_name=\"m\"} 2\nvllm:num_requests_waiting{model_name=\"m\"} 1\n\
        vllm:request_success_total{model_name=\"m\"} 5\n";
    assert_eq!(
        PodReading::parse(pod),
        Ok(PodReading {
            running: 2,
            waiting: 1,
            finished: Some(5),
            ..PodReading::default()
        })
    );
    assert!(PodReading::parse("vllm:num_requests_running NaN\n").is_err());
}

#[test]
fn a_gateway_that_knows_a_service_without_a_ready_pod_says_zero_and_one_that_does_not_says_nothing()
{
    let text = "# TYPE pagoda_gateway_in_flight_requests gauge\n\
        pagoda_gateway_route_pods{namespace=\"a\",service=\"x\"} 0\n\
        pagoda_gateway_held_requests{namespace=\"a\",service=\"y\"} 2\n";
    let readings = GatewayReading::parse_all(text).expect("a gateway's");
    assert_eq!(readings[&("a".into(), "x".into())].route_pods, Some(0));
    assert_eq!(readings[&("a".into(), "y".into())].route_pods, None);
}

#[test]
fn load_is_read_in_the_words_of_every_server() {
    let vllm = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\"} 2.0\nvllm:num_requests_running{engine=\"1\"} 1.0\n\
        vllm:num_requests_waiting{engine=\"0\"} 4.0\nvllm:request_success_total{finished_reason=\"stop\"} 9.0\n\
        vllm:generation_tokens_total{engine=\"0\"} 100.0\nvllm:prefix_cache_queries_total 50.0\nvllm:prefix_cache_hits_total 20.0\n";
    let expected = PodReading {
        running: 3,
        waiting: 4,
        finished: Some(9),
        generated_tokens: 100,
        cache_queries: 50,
        cache_hits: 20,
    };
    assert_eq!(PodReading::parse(vllm), Ok(expected));
    let bare = vllm.replace("_total", "");
    assert_eq!(PodReading::parse(&bare), Ok(expected), "without _total");
    let sglang = "sglang:num_running_reqs{model_name=\"m\"} 3.0\nsglang:num_queue_reqs{model_name=\"m\"} 4.0\n\
        sglang:num_requests_total{model_name=\"m\"} 9.0\nsglang:generation_tokens_total{model_name=\"m\"} 100.0\n\
        sglang:prompt_tokens_total{model_name=\"m\"} 50.0\nsglang:cached_tokens_total{model_name=\"m\"} 20.0\n";
    assert_eq!(PodReading::parse(sglang), Ok(expected));
    let llama = "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 3\nllamacpp:requests_deferred 4\n\
        llamacpp:tokens_predicted_total 100\n";
    let expected = PodReading {
        finished: None,
        cache_queries: 0,
        cache_hits: 0,
        ..expected
    };
    assert_eq!(PodReading::parse(llama), Ok(expected));
    assert!(PodReading::parse("other_server_running 3\n").is_err());
}

#[test]
fn a_server_that_counts_nothing_finished_tells_no_arrivals() {
    let pods = |finished| ServiceReadings {
        gateways: vec![],
        pods: vec![Some(PodReading {
            running: 2,
            finished,
            ..PodReading::default()
        })],
    };
    assert_eq!(observe(1, 1, &pods(None)).demand.pod_arrivals, None);
    assert_eq!(observe(1, 1, &pods(Some(3))).demand.pod_arrivals, Some(5));
}

prop_compose! {
    fn any_settings()(min in 0_u32..6, extra in 0_u32..8, target in 1_u64..20_000, tolerance in 0_u32..60, window in 0_u32..40,
        idle in 1_u32..40, rate in proptest::option::of(1_u64..20_000)) -> ScalingSettings {
        let mut targets = vec![TargetSetting { metric: Metric::InFlightRequests, value: TargetValue::Each { milli: target } }];
        targets.extend(rate.map(|milli| TargetSetting { metric: Metric::RequestsPerSecond, value: TargetValue::Each { milli } }));
        ScalingSettings {
            min_replicas: min, max_replicas: (min + extra).max(1), idle_seconds: idle, behavior: behavior(tolerance, window),
            targets, ..settings(1, 1, 1000)
        }
    }
}

prop_compose! {
    fn any_readings()(gateways in proptest::collection::vec(proptest::option::weighted(0.8, (0_u64..40, 0_u64..40, 0_u64..1000)), 0..3),
        pods in proptest::collection::vec(proptest::option::weighted(0.8, (0_u64..20, 0_u64..20, 0_u64..1000)), 0..4)) -> ServiceReadings {
        ServiceReadings {
            gateways: gateways.into_iter().map(|g| g.map(|(held, in_flight, finished)| GatewayReading { held, in_flight, finished, ..GatewayReading::default() })).collect(),
            pods: pods.into_iter().map(|p| p.map(|(running, waiting, finished)| PodReading { running, waiting, finished: Some(finished), ..PodReading::default() })).collect(),
        }
    }
}

proptest! {
    #[test]
    fn bounds_and_knowledge_hold_at_every_step(settings in any_settings(), looks in proptest::collection::vec((any_readings(), 500_u64..30_000), 1..60), start in 0_u32..14) {
        let (mut history, mut now, mut current) = (History::default(), 0, start);
        for (readings, pause) in looks {
            let look = observe(current, current.min(readings.pods.len() as u32), &readings);
            let (decision, next) = decide(&settings, &look, history, now);
            prop_assert!(decision.replicas <= settings.max_replicas);
            prop_assert!(decision.replicas >= settings.min_replicas);
            if !look.demand.complete && current <= settings.max_replicas {
                prop_assert!(decision.replicas >= current, "shrunk blindly: {decision:?}");
            }
            if decision.replicas == 0 && current > 0 {
                prop_assert!(look.demand.is_quiet() && settings.min_replicas == 0);
            }
            if current == 0 && look.demand.held > 0 {
                prop_assert!(decision.replicas > 0, "held requests woke nobody");
            }
            history = next;
            now += pause;
            current = decision.replicas;
        }
    }

    #[test]
    fn steady_demand_settles_and_stays(settings in any_settings(), in_flight in 0_u64..60) {
        let settings = ScalingSettings { targets: settings.targets[..1].to_vec(), ..settings };
        let (mut history, mut current, mut changes) = (History::default(), settings.min_replicas.max(1), Vec::new());
        for second in 0..200_u64 {
            let (decision, next) = decide(&settings, &seen(current, 0, in_flight), history, second * 1000);
            history = next;
            if decision.replicas != current {
                changes.push(decision.replicas);
            }
            current = decision.replicas;
        }
        prop_assert!(changes.len() <= 2, "{changes:?}");
    }
}
