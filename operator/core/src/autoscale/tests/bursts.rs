use super::*;
use crate::validate::PanicSettings;

/// Growth of at most one pod each minute, which only a burst may pass by.
fn slow() -> ScalingSettings {
    let mut settings = settings(1, 50, 1000);
    settings.window_seconds = 30;
    settings.behavior.up.policies = vec![ScalingPolicy {
        kind: PolicyKind::Pods,
        value: 1,
        period_seconds: 60,
    }];
    settings.panic = Some(PanicSettings {
        window_seconds: 6,
        threshold_percent: 200,
    });
    settings
}

#[test]
fn a_burst_gets_its_pods_beyond_what_behavior_allows() {
    let mut play = Play::new(slow(), 2);
    play.seconds(60, |current| seen(current, 0, 2));
    assert_eq!(play.changes, []);
    let decision = play.seconds(7, |current| seen(current, 0, 20));
    assert_eq!((play.current, decision.inputs.panic), (20, Some(20)));
    assert!(
        play.changes
            .iter()
            .all(|(_, _, reason)| *reason == Reason::Panic),
        "{:?}",
        play.changes
    );
    // Some three of the short window's six seconds are of the burst when it first asks for twice the pods.
    assert!(play.changes[0].0 <= 63_000, "{:?}", play.changes);
}

#[test]
fn what_one_look_sees_of_a_burst_brings_another_look_at_once_and_no_pod_before_that_has_seen_it_too()
 {
    for again in [9, 1] {
        let mut play = Play::new(slow(), 2);
        play.seconds(60, |current| seen(current, 0, 1));
        let first = play.seconds(1, |current| seen(current, 0, 9));
        assert_eq!((first.replicas, first.inputs.panic), (2, None));
        assert_eq!(first.next_look, 60_000 + CONFIRM_MILLIS);
        play.now = first.next_look;
        let second = play.seconds(1, |current| seen(current, 0, again));
        let burst = (again == 9).then_some(9);
        assert_eq!(second.inputs.panic, burst);
        assert_eq!(second.replicas, burst.unwrap_or(2));
        // It is answered or over: either way the pace is the usual one.
        assert_eq!(second.next_look, play.now - 1000 + LOOK_MILLIS);
    }
}

#[test]
fn what_is_no_burst_or_may_be_chance_brings_no_other_look() {
    for (before, then) in [(1, 5), (3, 8)] {
        let mut play = Play::new(slow(), 2);
        play.seconds(60, |_| seen(2, 0, before));
        let decision = play.seconds(1, |_| seen(2, 0, then));
        assert!(decision.next_look >= 60_000 + LOOK_MILLIS, "{then}");
    }
}

#[test]
fn a_burst_lowers_nothing_until_it_is_over_for_a_window() {
    let mut settings = slow();
    settings.behavior.down.window_seconds = 0;
    let mut play = Play::new(settings, 2);
    play.seconds(60, |current| seen(current, 0, 2));
    play.seconds(10, |current| seen(current, 0, 20));
    assert_eq!(play.current, 20);
    let decision = play.seconds(20, |current| seen(current, 0, 1));
    assert_eq!((decision.replicas, decision.reason), (20, Reason::Panic));
    assert!(
        decision.to_string().ends_with("a burst asks for 20"),
        "{decision}"
    );
    let after = play.seconds(45, |current| seen(current, 0, 1));
    assert_eq!((after.replicas, after.inputs.panic), (1, None));
}

#[test]
fn a_burst_stays_within_the_bounds() {
    let mut settings = slow();
    settings.max_replicas = 7;
    let mut play = Play::new(settings, 2);
    play.seconds(60, |current| seen(current, 0, 2));
    play.seconds(20, |current| seen(current, 0, 500));
    assert_eq!(play.current, 7);
}

#[test]
fn a_slow_rise_is_no_burst() {
    let mut play = Play::new(slow(), 10);
    for more in 0..40 {
        play.seconds(5, |current| seen(current, 0, 10 + more / 4));
    }
    assert!(
        play.changes
            .iter()
            .all(|(_, _, reason)| *reason != Reason::Panic),
        "{:?}",
        play.changes
    );
}

#[test]
fn an_operator_that_starts_anew_in_a_burst_goes_on_with_it_and_takes_nothing_back() {
    for window_seconds in [0, 60] {
        let mut settings = slow();
        settings.behavior.down.window_seconds = window_seconds;
        let mut play = Play::new(settings, 2);
        play.seconds(60, |current| seen(current, 0, 2));
        play.seconds(4, |current| seen(current, 0, 40));
        let before = play.current;
        assert!(before > 4, "{before}");
        play.history = History::default();
        play.seconds(1, |current| seen(current, 0, 3));
        assert_eq!(play.current, before);
        play.seconds(10, |current| seen(current, 0, 40));
        assert!(play.current >= before, "{:?}", play.changes);
        assert!(play.current == 40 || before > 20, "{:?}", play.changes);
    }
}

#[test]
fn knatives_slow_scale_down_is_a_policy_of_half() {
    let mut settings = settings(1, 50, 1000);
    settings.behavior.down = RulesSettings {
        window_seconds: 0,
        policies: vec![ScalingPolicy {
            kind: PolicyKind::Percent,
            value: 50,
            period_seconds: 2,
        }],
        ..settings.behavior.down
    };
    let mut play = Play::new(settings, 8);
    play.seconds(2, |current| seen(current, 0, 0));
    assert_eq!(play.current, 4);
}
