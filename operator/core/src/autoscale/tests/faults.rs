use super::*;
use crate::validate::{PrometheusSettings, QuerySetting, QueryValue};

/// A service of `count` pods of which those in `silent` do not answer, and the rest runs one request each.
fn some_silent(count: u32, silent: &[usize]) -> Observation {
    let busy = PodReading {
        running: 1,
        ..PodReading::default()
    };
    let of = |i| pod(i, true, (!silent.contains(&i)).then(|| busy.clone()));
    look(
        count,
        vec![gateway(0, 0, 0)],
        (0..count as usize).map(of).collect(),
    )
}

fn asks_prometheus(value: QueryValue) -> ScalingSettings {
    ScalingSettings {
        targets: vec![],
        prometheus: Some(PrometheusSettings {
            server: "default".into(),
            interval_seconds: 15,
            max_age_seconds: 60,
            queries: vec![QuerySetting {
                name: "backlog".into(),
                query: "backlog".into(),
                value,
            }],
        }),
        behavior: behavior(10, 0),
        ..settings(1, 20, 1)
    }
}

fn told(current: u32, value_milli: u64, age_millis: u64) -> Observation {
    Observation {
        queries: vec![Some(QueryReading {
            value_milli,
            age_millis,
        })],
        ..seen(current, 0, 0)
    }
}

#[test]
fn one_silent_pod_of_ten_keeps_all_of_them() {
    let settings = ScalingSettings {
        behavior: behavior(10, 0),
        ..settings(1, 20, 5000)
    };
    assert_eq!(steady(&settings, &some_silent(10, &[3]), 500).replicas, 10);
    assert_eq!(
        steady(&settings, &some_silent(10, &[3]), 500).reason,
        Reason::PartialMetrics
    );
    assert_eq!(steady(&settings, &some_silent(10, &[]), 500).replicas, 2);
}

#[test]
fn a_silence_counts_until_it_has_left_the_window() {
    let settings = ScalingSettings {
        behavior: behavior(10, 0),
        window_seconds: 20,
        ..settings(1, 20, 5000)
    };
    let mut play = Play::new(settings, 10);
    play.seconds(15, |current| some_silent(current, &[]));
    play.seconds(1, |current| some_silent(current, &[3]));
    play.seconds(19, |current| some_silent(current, &[]));
    assert_eq!(play.current, 10);
    play.seconds(2, |current| some_silent(current, &[]));
    assert_eq!(play.current, 2);
}

#[test]
fn when_all_are_silent_nothing_changes_and_it_is_said() {
    let decision = steady(&settings(1, 20, 1000), &blind(7), 500);
    assert_eq!((decision.replicas, decision.reason), (7, Reason::NoMetrics));
}

#[test]
fn a_figure_of_prometheus_that_is_stale_or_absent_holds_the_number() {
    let settings = asks_prometheus(QueryValue::Each(1000));
    let mut play = Play::new(settings, 5);
    play.seconds(3, |current| told(current, 5000, 1000));
    let stale = play.seconds(100, |current| told(current, 0, 60_001));
    assert_eq!((stale.replicas, stale.reason), (5, Reason::NoMetrics));
    assert!(stale.inputs.recommendations[0].demand_milli.is_none());
    let absent = play.seconds(100, |current| seen(current, 0, 0));
    assert_eq!((absent.replicas, absent.reason), (5, Reason::NoMetrics));
    assert_eq!(
        play.seconds(1, |current| told(current, 9000, 60_000))
            .replicas,
        9
    );
}

#[test]
fn a_figure_in_all_is_followed_by_ratio_of_the_pods_that_are_ready() {
    let settings = asks_prometheus(QueryValue::Whole(1000));
    let decision = run(&settings, [told(4, 2000, 0)]);
    assert_eq!(decision.replicas, 8);
    assert_eq!(decision.to_string(), "AboveTarget: backlog 2, target 1");
    // Four more that load are supply on their way.
    let loading = |_| {
        let pods = (0..8).map(|i| pod(i, i < 4, (i < 4).then(PodReading::default)));
        Observation {
            queries: told(8, 2000, 0).queries,
            ..look(8, vec![gateway(0, 0, 0)], pods.collect())
        }
    };
    let mut play = Play::new(asks_prometheus(QueryValue::Whole(1000)), 8);
    play.seconds(60, loading);
    assert_eq!(play.current, 8);
}

#[test]
fn one_metric_that_is_unknown_lets_others_grow_and_none_shrink() {
    let mut settings = asks_prometheus(QueryValue::Each(1000));
    settings.targets = vec![each(Metric::InFlightRequests, 1000)];
    let both = |current, in_flight| seen(current, 0, in_flight);
    assert_eq!(steady(&settings, &both(5, 1), 100).replicas, 5);
    assert_eq!(
        steady(&settings, &both(5, 1), 100).reason,
        Reason::PartialMetrics
    );
    assert_eq!(run(&settings, [both(5, 9)]).replicas, 9);
}

#[test]
fn a_gateway_that_starts_anew_shrinks_nothing() {
    let settings = ScalingSettings {
        targets: vec![each(Metric::RequestsPerSecond, 1000)],
        behavior: behavior(10, 0),
        ..settings(1, 20, 1)
    };
    let mut play = Play::new(settings, 10);
    for second in 0..60_u64 {
        let finished = if second < 30 {
            5_000 + second * 10
        } else {
            (second - 30) * 10
        };
        play.seconds(1, |current| {
            look(current, vec![gateway(0, 0, finished)], pods(current))
        });
        assert_eq!(play.current, 10, "after {second} s");
    }
}

#[test]
fn a_wall_clock_that_is_set_changes_nothing() {
    let settings = settings(1, 20, 1000);
    let decide_all = |unix: fn(u64) -> i64| {
        let (mut history, mut current, mut all) = (History::default(), 3, Vec::new());
        for second in 0..200_u64 {
            let look = seen(current, 0, 3 + second % 90 / 10);
            let at = Moment {
                now: second * 1000,
                unix_seconds: unix(second),
            };
            let (decision, next) = decide(&settings, &look, history, at);
            (history, current) = (next, decision.replicas);
            all.push(decision);
        }
        all
    };
    let honest = decide_all(|second| 1_795_000_000 + second as i64);
    let jumping = decide_all(|second| 1_795_000_000 + (second as i64 % 7) * 600 - 86_400);
    assert_eq!(honest, jumping);
}

#[test]
fn an_operator_that_starts_anew_at_zero_wakes_for_held_requests_at_once() {
    let decision = run(&settings(0, 5, 8000), [seen(0, 20, 0)]);
    assert_eq!((decision.replicas, decision.reason), (3, Reason::Wake));
}

/// `ready` pods that answer and others that do not, for `age_millis` already.
fn stuck(current: u32, ready: u32, exist: u32, age_millis: Millis, held: u64) -> Observation {
    let pods = (0..exist as usize).map(|i| PodSeen {
        age_millis,
        ..pod(
            i,
            i < ready as usize,
            (i < ready as usize).then(PodReading::default),
        )
    });
    look(current, vec![gateway(held, 0, 0)], pods.collect())
}

#[test]
fn pods_that_never_get_ready_draw_no_others() {
    let mut play = Play::new(settings(0, 100, 8000), 0);
    for second in 0..1500 {
        // Clients give up and others come, so the gateway holds as many as it may.
        play.seconds(1, |current| stuck(current, 0, current, second * 1000, 30));
        assert!(play.current <= 4, "after {second} s: {}", play.current);
    }
    let last = play.seconds(1, |current| stuck(current, 0, current, 1_500_000, 30));
    assert_eq!(
        (last.reason, last.inputs.overdue),
        (Reason::PodsNotReady, 4)
    );
    assert!(
        last.to_string().ends_with("; 4 of 4 pods do not get ready"),
        "{last}"
    );
    // However many more are held.
    let more = play.seconds(60, |current| stuck(current, 0, current, 1_500_000, 3000));
    assert_eq!(more.replicas, 4);
}

#[test]
fn a_quota_that_stops_pods_is_said_after_the_deadline_and_stops_growth_beyond_what_is_ready() {
    let mut play = Play::new(settings(1, 100, 1000), 10);
    play.seconds(599, |current| stuck(current, 6, 6, 3_600_000, 10));
    assert_eq!(play.current, 10);
    let late = play.seconds(5, |current| stuck(current, 6, 6, 3_600_000, 10));
    assert_eq!(
        (late.reason, late.inputs.overdue),
        (Reason::PodsNotReady, 4)
    );
    let more = play.seconds(60, |current| stuck(current, 6, 6, 3_600_000, 90));
    assert_eq!(more.replicas, 13);
}

#[test]
fn a_pod_that_answered_and_starts_again_is_not_overdue() {
    let mut play = Play::new(settings(1, 10, 1000), 2);
    play.seconds(10, |current| stuck(current, 2, 2, 9_000_000, 2));
    let again = play.seconds(10, |current| stuck(current, 1, 2, 9_000_000, 2));
    assert_eq!(again.inputs.overdue, 0);
    let never = run(&settings(1, 10, 1000), [stuck(2, 1, 2, 9_000_000, 2)]);
    assert_eq!(never.inputs.overdue, 1);
}

#[test]
fn counts_as_large_as_they_can_be_are_survived() {
    let largest = PodReading {
        running: u64::MAX,
        waiting: u64::MAX,
        finished: Some(u64::MAX),
        generated_tokens: u64::MAX,
        ..PodReading::default()
    };
    let pods = || {
        (0..3)
            .map(|i| pod(i, true, Some(largest.clone())))
            .collect()
    };
    let worst = || look(3, vec![gateway(u64::MAX, u64::MAX, u64::MAX); 2], pods());
    assert_eq!(
        run(&settings(1, 20, 1), (0..5).map(|_| worst())).replicas,
        20
    );
}

#[test]
fn two_scalers_are_seen_as_changes_that_the_pace_counts() {
    let mut settings = settings(1, 100, 1000);
    settings.behavior.up.policies = vec![ScalingPolicy {
        kind: PolicyKind::Pods,
        value: 4,
        period_seconds: 60,
    }];
    let mut play = Play::new(settings, 2);
    play.seconds(3, |current| seen(current, 0, 2));
    // Somebody else adds three, and then the load asks for more: one is left of this minute's four.
    play.current = 5;
    play.seconds(1, |current| seen(current, 0, 5));
    assert_eq!(play.seconds(5, |current| seen(current, 0, 90)).replicas, 6);
}
