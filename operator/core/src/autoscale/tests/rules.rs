use super::*;

#[test]
fn grows_at_once_to_what_the_demand_needs() {
    let decision = run(&settings(1, 10, 8000), [seen(1, 0, 30)]);
    assert_eq!((decision.replicas, decision.reason), (4, Reason::Above));
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
    assert_eq!((at_max.replicas, at_max.reason), (3, Reason::AtMaximum));
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
    let silent = || (0..4).map(|i| pod(i, true, None)).collect();
    let partial = |in_flight: u64| look(4, vec![gateway(0, in_flight, 0)], silent());
    assert_eq!(
        steady(&settings, &partial(1), 500).reason,
        Reason::PartialMetrics
    );
    assert_eq!(steady(&settings, &partial(1), 500).replicas, 4);
    assert_eq!(run(&settings, [partial(9)]).replicas, 9);
}

#[test]
fn no_gateway_means_that_nothing_is_known_to_be_idle() {
    let lone = look(1, vec![], pods(1));
    assert_eq!(steady(&settings(0, 3, 1000), &lone, 1000).replicas, 1);
}

#[test]
fn goes_to_zero_after_idle_time_and_not_before() {
    let settings = settings(0, 3, 1000);
    assert_eq!(steady(&settings, &seen(1, 0, 0), 29).replicas, 1);
    let after = steady(&settings, &seen(1, 0, 0), 30);
    assert_eq!((after.replicas, after.reason), (0, Reason::Idle));
    assert_eq!(
        steady(&super::settings(1, 3, 1000), &seen(1, 0, 0), 1000).replicas,
        1
    );
}

#[test]
fn a_request_between_two_looks_is_seen_in_the_arrivals() {
    let looks =
        (0..45).map(|second| look(1, vec![gateway(0, 0, u64::from(second >= 20))], pods(1)));
    assert_eq!(run(&settings(0, 3, 1000), looks).replicas, 1);
}

#[test]
fn a_pod_that_still_loads_is_not_ended_for_idleness() {
    let loading = look(1, vec![gateway(0, 0, 0)], vec![pod(0, false, None)]);
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
        targets: vec![each(Metric::RequestsPerSecond, 5000)],
        ..settings(1, 10, 1)
    };
    let looks = |per_second: u64| {
        (0..12).map(move |second| look(2, vec![gateway(0, 0, second * per_second)], pods(2)))
    };
    assert_eq!(run(&settings, looks(22)).replicas, 5);
    assert_eq!(run(&settings, looks(10)).reason, Reason::OnTarget);
}

#[test]
fn a_counter_that_restarts_makes_the_rate_unknown_and_nothing_shrinks() {
    let settings = ScalingSettings {
        targets: vec![each(Metric::RequestsPerSecond, 1000)],
        behavior: behavior(10, 0),
        ..settings(1, 10, 1)
    };
    let looks =
        [100, 110, 120, 130, 0, 1].map(|finished| look(8, vec![gateway(0, 0, finished)], pods(8)));
    assert_eq!(run(&settings, looks).replicas, 8);
}

#[test]
fn the_largest_of_several_targets_wins() {
    let mut settings = settings(1, 10, 8000);
    settings.targets.push(each(Metric::RequestsPerSecond, 1000));
    let looks = (0..5).map(|second| look(1, vec![gateway(0, 1, second * 7)], pods(1)));
    let decision = run(&settings, looks);
    assert_eq!(decision.inputs.winner, Some(1));
    assert_eq!((decision.replicas, decision.reason), (7, Reason::Above));
}

#[test]
fn a_gauge_is_averaged_over_the_window() {
    let settings = ScalingSettings {
        window_seconds: 10,
        behavior: behavior(0, 60),
        ..settings(1, 20, 1000)
    };
    let mut play = Play::new(settings, 2);
    play.seconds(20, |current| seen(current, 0, 2));
    assert_eq!(play.seconds(1, |current| seen(current, 0, 12)).replicas, 3);
    assert_eq!(
        play.seconds(10, |current| seen(current, 0, 12)).replicas,
        12
    );
}

#[test]
fn queued_requests_are_those_held_and_those_that_wait_in_pods() {
    let settings = ScalingSettings {
        targets: vec![each(Metric::QueuedRequests, 1000)],
        ..settings(1, 20, 1)
    };
    let waiting = PodReading {
        running: 9,
        waiting: 2,
        ..PodReading::default()
    };
    let pods = (0..2)
        .map(|i| pod(i, true, Some(waiting.clone())))
        .collect();
    let decision = run(&settings, [look(2, vec![gateway(1, 22, 0)], pods)]);
    assert_eq!(decision.replicas, 5);
}

#[test]
fn tokens_per_second_are_those_of_all_pods_and_outlive_a_restart_of_one() {
    let settings = ScalingSettings {
        targets: vec![each(Metric::TokensPerSecond, 50_000)],
        ..settings(1, 20, 1)
    };
    let generated = |i: usize, second: u64| {
        let since = if i == 1 {
            second.saturating_sub(6)
        } else {
            second
        };
        let count = if i == 1 && second < 6 {
            500 + second * 100
        } else {
            since * 100
        };
        PodReading {
            generated_tokens: count,
            ..PodReading::default()
        }
    };
    let looks = (0..10).map(|second| {
        let pods = (0..2).map(|i| pod(i, true, Some(generated(i, second))));
        look(2, vec![gateway(0, 0, 0)], pods.collect())
    });
    let decision = run(&settings, looks);
    // The second in which a pod began anew is lost, for it counts from zero.
    let tokens = decision.inputs.measured.get(Metric::TokensPerSecond);
    assert!(
        tokens.is_some_and(|milli| (160_000..=200_000).contains(&milli)),
        "{tokens:?}"
    );
    assert_eq!(decision.replicas, 4);
}

#[test]
fn kv_use_is_averaged_over_pods_and_loading_ones_damp_growth() {
    let settings = ScalingSettings {
        targets: vec![TargetSetting {
            metric: Metric::KvCacheUtilization,
            value: TargetValue::Utilization { percent: 50 },
        }],
        ..settings(1, 20, 1)
    };
    let full = |milli: u32| PodReading {
        kv_usage_milli: Some(milli),
        ..PodReading::default()
    };
    let of = |ready: usize, loading: usize, milli: u32| {
        let ready = (0..ready).map(|i| pod(i, true, Some(full(milli))));
        let loading = (10..10 + loading).map(|i| pod(i, false, None));
        let pods: Vec<_> = ready.chain(loading).collect();
        look(pods.len() as u32, vec![gateway(0, 0, 0)], pods)
    };
    // What a scaler that takes the mean for a total gets wrong: 2 instead of 8.
    assert_eq!(run(&settings, [of(4, 0, 900)]).replicas, 8);
    assert_eq!(run(&settings, [of(2, 2, 900)]).replicas, 4);
    assert_eq!(
        run(&settings, [of(4, 0, 900)]).to_string(),
        "AboveTarget: KvCacheUtilization 90 %, target 50 %"
    );
}

#[test]
fn growth_is_as_fast_as_behavior_allows() {
    let spec = serde_json::json!({"engine": {"executor": "simulated"}, "scaling": {"maxReplicas": 100, "windowSeconds": 1,
        "panic": {"enabled": false, "windowSeconds": 1}, "lookAhead": {"trend": false},
        "targets": [{"metric": "InFlightRequests", "averageValue": "1"}]}});
    let mut play = Play::new(crate::testing::checked(spec).scaling, 1);
    let decision = play.seconds(1, |current| seen(current, 0, 100));
    assert_eq!(
        (decision.replicas, decision.reason),
        (5, Reason::RateLimited)
    );
    assert_eq!(
        decision.to_string(),
        "RateLimited: InFlightRequests 100, target 1 a pod; behavior allows 5 by now"
    );
    play.seconds(60, |current| seen(current, 0, 100));
    let steps: Vec<_> = play
        .changes
        .iter()
        .map(|(when, replicas, _)| (when / 1000, *replicas))
        .collect();
    assert_eq!(steps, [(0, 5), (15, 10), (30, 20), (45, 40), (60, 80)]);
}

#[test]
fn a_figure_that_takes_a_moment_is_no_failure() {
    let settings = ScalingSettings {
        targets: vec![each(Metric::RequestsPerSecond, 5000)],
        window_seconds: 10,
        ..settings(1, 10, 1)
    };
    for second in 0..3 {
        assert_eq!(
            steady(&settings, &seen(2, 0, 0), second).reason,
            Reason::Stabilizing
        );
    }
    assert_eq!(steady(&settings, &blind(2), 2).reason, Reason::NoMetrics);
}

#[test]
fn a_target_that_no_pod_tells_of_is_said() {
    let settings = ScalingSettings {
        targets: vec![TargetSetting {
            metric: Metric::KvCacheUtilization,
            value: TargetValue::Utilization { percent: 50 },
        }],
        ..settings(1, 10, 1)
    };
    let decision = steady(&settings, &seen(3, 0, 0), 60);
    assert_eq!((decision.replicas, decision.reason), (3, Reason::NoMetrics));
}

#[test]
fn a_latency_target_is_followed_once_it_is_known_what_pods_carry() {
    let settings = ScalingSettings {
        window_seconds: 30,
        behavior: behavior(0, 0),
        targets: vec![TargetSetting {
            metric: Metric::TimeToFirstToken,
            value: TargetValue::Latency {
                percentile: 95,
                milliseconds: 800,
            },
        }],
        ..settings(1, 50, 1)
    };
    // Nothing is known of these pods: held, whoever asks for what.
    let mut play = Play::new(settings, 3);
    for second in 0..60 {
        play.seconds(1, |current| {
            look(current, vec![gateway(0, 4, second * 5)], pods(current))
        });
    }
    assert_eq!(play.current, 3);
    // Nobody asks for anything: one pod keeps any target.
    let idle = play.seconds(60, |current| {
        look(current, vec![gateway(0, 0, 299)], pods(current))
    });
    assert_eq!(
        (idle.replicas, play.changes.last().map(|change| change.2)),
        (1, Some(Reason::Below))
    );
}
