use super::*;
use pagoda_crds::api::CapacityStatus;

/// It is known that a pod takes a minute to load.
fn loads_a_minute() -> History {
    History::restore(&[CapacityStatus {
        revision: "r1".into(),
        hardware: "cpu".into(),
        start_milliseconds: Some(60_000),
        ..CapacityStatus::default()
    }])
}

fn rising(follows_trend: bool) -> Play {
    let settings = ScalingSettings {
        window_seconds: 20,
        follows_trend,
        ..settings(1, 100, 1000)
    };
    let mut play = Play::new(settings, 20);
    play.history = loads_a_minute();
    for second in 0..180_u64 {
        play.seconds(1, |current| seen(current, 0, 20 + second / 6));
    }
    play
}

#[test]
fn a_trend_is_followed_by_the_time_that_a_pod_loads() {
    let (ahead, behind) = (rising(true), rising(false));
    // Ten more a minute: a minute ahead that is some ten more, less what a trend is damped by.
    assert!(
        ahead.current >= behind.current + 4,
        "{} and {}",
        ahead.current,
        behind.current
    );
    assert!(
        ahead.current <= behind.current + 15,
        "{} and {}",
        ahead.current,
        behind.current
    );
    assert!(
        ahead
            .changes
            .iter()
            .any(|(_, _, reason)| *reason == Reason::Forecast)
    );
}

#[test]
fn a_look_ahead_never_lowers_what_is_asked_for() {
    let (ahead, behind) = (rising(true), rising(false));
    let at = |play: &Play, when: u64| {
        play.changes
            .iter()
            .take_while(|change| change.0 <= when)
            .last()
            .map_or(20, |change| change.1)
    };
    for second in 0..180 {
        assert!(
            at(&ahead, second * 1000) >= at(&behind, second * 1000),
            "after {second} s"
        );
    }
}

#[test]
fn without_a_known_time_to_load_nothing_is_foreseen() {
    let settings = ScalingSettings {
        follows_trend: true,
        ..settings(1, 100, 1000)
    };
    let mut play = Play::new(settings, 20);
    for second in 0..180_u64 {
        let decision = play.seconds(1, |current| seen(current, 0, 20 + second / 6));
        assert_eq!(decision.inputs.foreseen, None);
    }
}

#[test]
fn the_same_hour_of_the_last_week_brings_pods_before_the_load() {
    let settings = ScalingSettings {
        expects_recurrence: true,
        behavior: behavior(10, 0),
        ..settings(1, 100, 1000)
    };
    let mut history = loads_a_minute();
    let (mut current, week) = (1, 7 * 86_400_u64);
    let mut wanted = Vec::new();
    // Two Mondays from 8:00 to 10:00, ten seconds a look; at 9:00 twelve requests come to be in flight.
    for second in (0..7200).chain(week..week + 7200).step_by(10) {
        let busy = second % week >= 3600;
        let look = seen(current, 0, if busy { 12 } else { 1 });
        let at = Moment {
            now: second * 1000,
            unix_seconds: 4 * 86_400 + 8 * 3600 + second as i64,
        };
        let (decision, next) = decide(&settings, &look, history, at);
        (history, current) = (next, decision.replicas);
        if (3530..3600).contains(&(second % week)) {
            wanted.push((second / week, decision.replicas, decision.reason));
        }
    }
    assert_eq!(wanted.first(), Some(&(0, 1, Reason::OnTarget)));
    assert!(wanted.contains(&(1, 12, Reason::Forecast)), "{wanted:?}");
}

#[test]
fn what_was_learned_before_is_told_again() {
    let told = loads_a_minute().capacity();
    assert_eq!(told[0].start_milliseconds, Some(60_000));
}
