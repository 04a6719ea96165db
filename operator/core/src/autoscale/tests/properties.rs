use super::*;
use crate::validate::PanicSettings;
use proptest::prelude::*;

prop_compose! {
    fn any_settings()(min in 0_u32..6, extra in 0_u32..8, target in 1_u64..20_000, tolerance in 0_u32..60, down in 0_u32..40,
        idle in 1_u32..40, rate in proptest::option::of(1_u64..20_000), window in 1_u32..20, panic in proptest::option::of(110_u32..400),
        trend in any::<bool>(), recurring in any::<bool>()) -> ScalingSettings {
        let mut targets = vec![each(Metric::InFlightRequests, target)];
        targets.extend(rate.map(|milli| each(Metric::RequestsPerSecond, milli)));
        ScalingSettings {
            min_replicas: min, max_replicas: (min + extra).max(1), idle_seconds: idle, behavior: behavior(tolerance, down), targets,
            window_seconds: window, follows_trend: trend, expects_recurrence: recurring,
            panic: panic.map(|threshold_percent| PanicSettings { window_seconds: (window / 3).max(1), threshold_percent }),
            ..settings(1, 1, 1000)
        }
    }
}

prop_compose! {
    fn any_readings()(gateways in proptest::collection::vec(proptest::option::weighted(0.8, (0_u64..40, 0_u64..40, 0_u64..1000)), 0..3),
        pods in proptest::collection::vec((any::<bool>(), proptest::option::weighted(0.8, (0_u64..20, 0_u64..20, 0_u64..1000)), 0_u64..900_000), 0..4)) -> ServiceReadings {
        let reading = |(running, waiting, finished)| PodReading { running, waiting, finished: Some(finished), ..PodReading::default() };
        let seen = |(i, (ready, told, age)): (usize, (bool, Option<_>, Millis))| PodSeen {
            age_millis: age, ..pod(i, ready, told.filter(|_| ready).map(reading))
        };
        ServiceReadings {
            gateways: gateways.into_iter().map(|g| g.and_then(|(held, in_flight, finished)| gateway(held, in_flight, finished))).collect(),
            pods: pods.into_iter().enumerate().map(seen).collect(),
            queries: Vec::new(),
        }
    }
}

proptest! {
    #[test]
    fn bounds_and_knowledge_hold_at_every_step(settings in any_settings(), looks in proptest::collection::vec((any_readings(), 500_u64..30_000, any::<i64>()), 1..60), start in 0_u32..14) {
        let (mut history, mut now, mut current) = (History::default(), 0, start);
        for (readings, pause, unix_seconds) in looks {
            let look = observe(current, readings);
            let (decision, next) = decide(&settings, &look, history, Moment { now, unix_seconds });
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
            if decision.inputs.panic.is_some() && decision.reason != Reason::Idle && decision.reason != Reason::OutOfBounds {
                prop_assert!(decision.replicas >= current, "a burst lost pods: {decision:?}");
            }
            if decision.replicas != current {
                prop_assert!(![Reason::OnTarget, Reason::NoMetrics, Reason::Stabilizing].contains(&decision.reason), "{decision:?}");
            }
            prop_assert!(decision.next_look > now && decision.next_look <= now + 5000);
            history = next;
            now += pause;
            current = decision.replicas;
        }
    }

    #[test]
    fn steady_demand_settles_and_stays(settings in any_settings(), in_flight in 0_u64..60) {
        let settings = ScalingSettings { targets: settings.targets[..1].to_vec(), ..settings };
        let mut play = Play::new(settings.clone(), settings.min_replicas.max(1));
        play.seconds(200, |current| seen(current, 0, in_flight));
        let ups = play.changes.windows(2).filter(|pair| pair[1].1 < pair[0].1).count();
        prop_assert!(play.changes.iter().all(|(when, _, _)| *when <= 80_000), "{:?}", play.changes);
        prop_assert!(ups <= 1, "{:?}", play.changes);
    }

    #[test]
    fn noise_about_the_target_moves_nothing(noise in proptest::collection::vec(90_u64..=110, 100..200), pods in 1_u32..20) {
        let settings = ScalingSettings { window_seconds: 10, panic: Some(PanicSettings { window_seconds: 2, threshold_percent: 200 }),
            follows_trend: true, ..settings(1, 40, 100_000) };
        let mut play = Play::new(settings, pods);
        for each in noise {
            play.seconds(1, |current| seen(current, 0, each * u64::from(current)));
        }
        prop_assert_eq!(play.changes, vec![]);
    }

    #[test]
    fn what_starts_anew_shrinks_nothing_for_a_whole_window(settings in any_settings(), start in 1_u32..14, in_flight in 0_u64..5) {
        let settings = ScalingSettings { idle_seconds: 3600, min_replicas: 1, ..settings };
        let start = start.min(settings.max_replicas);
        let window = settings.window_seconds.max(settings.behavior.down.window_seconds);
        let mut play = Play::new(settings, start);
        play.seconds(u64::from(window), |current| seen(current, 0, in_flight));
        prop_assert!(play.current >= start, "{:?}", play.changes);
    }

    #[test]
    fn more_demand_never_asks_for_fewer(settings in any_settings(), current in 1_u32..10, demand in 0_u64..100, more in 0_u64..100) {
        let wanted = |in_flight| run(&settings, [seen(current, 0, in_flight)]).inputs.recommendations[0].replicas;
        let (less, more) = (wanted(demand), wanted(demand + more));
        // Within tolerance the present number stands, which may be above what a little more would take.
        prop_assert!(more >= less || less == current);
    }
}
