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
