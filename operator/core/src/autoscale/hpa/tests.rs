use super::*;
use crate::validate::{BehaviorSettings, RulesSettings};
use pagoda_crds::api::{PolicyKind, ScalingPolicy, SelectPolicy};

fn rules(window_seconds: u32, policies: &[(PolicyKind, u32, u32)]) -> RulesSettings {
    let policy = |(kind, value, period_seconds): &(PolicyKind, u32, u32)| ScalingPolicy {
        kind: *kind,
        value: *value,
        period_seconds: *period_seconds,
    };
    RulesSettings {
        tolerance_milli: 100,
        window_seconds,
        select: SelectPolicy::Max,
        policies: policies.iter().map(policy).collect(),
    }
}

/// The defaults of an HPA.
fn defaults() -> BehaviorSettings {
    BehaviorSettings {
        up: rules(
            0,
            &[(PolicyKind::Pods, 4, 15), (PolicyKind::Percent, 100, 15)],
        ),
        down: rules(300, &[(PolicyKind::Percent, 100, 15)]),
    }
}

fn of_pods(told: &[u64], missing: u32, unready: u32, target: u64, current: u32) -> Option<u32> {
    let samples = PodSamples {
        sum_milli: told.iter().sum(),
        told: told.len() as u32,
        missing,
        unready,
    };
    pods(samples, target, current, Tolerances::of(&defaults()))
}

#[test]
fn follows_the_vectors_for_pods() {
    // What pods told, missing, unready, target, current, replicas; in thousandths.
    for (told, missing, unready, target, current, expected) in [
        (&[900, 900, 900][..], 0, 0, 500, 3, 6),
        (&[1100], 0, 0, 1000, 1, 1),
        (&[1101], 0, 0, 1000, 1, 2),
        (&[899; 10], 0, 0, 1000, 10, 9),
        (&[1500, 1500], 0, 2, 1000, 4, 4),
        (&[3000, 3000], 0, 2, 1000, 4, 6),
        (&[300, 300, 300], 1, 0, 1000, 4, 2),
        (&[2000, 2000, 2000], 1, 0, 1000, 4, 6),
    ] {
        let found = of_pods(told, missing, unready, target, current);
        assert_eq!(
            found,
            Some(expected),
            "{told:?} + {missing} missing + {unready} unready of {target}"
        );
    }
}

#[test]
fn only_unready_pods_are_no_measurement() {
    assert_eq!(of_pods(&[], 0, 3, 1000, 3), None);
    assert_eq!(of_pods(&[], 3, 0, 1000, 3), None);
}

#[test]
fn follows_the_vectors_for_averages_of_a_total() {
    let tolerances = Tolerances::of(&defaults());
    for (current, total, target, expected) in [
        (3, 3 * 900, 500, 6),
        (1, 1100, 1000, 1),
        (1, 1101, 1000, 2),
        (10, 10 * 899, 1000, 9),
        (10, 10 * 900, 1000, 10),
        (4, 2 * 3000, 1000, 6),
        (1, 0, 1000, 0),
        (0, 2500, 1000, 3),
    ] {
        let found = average_value(total, target, current, tolerances);
        assert_eq!(found, expected, "{current} pods, {total} of {target}");
    }
}

#[test]
fn a_figure_in_all_counts_ready_pods_and_from_zero_as_one() {
    let tolerances = Tolerances::of(&defaults());
    for (usage, current, ready, expected) in [
        (2000, 4, 3, 6),
        (2000, 4, 4, 8),
        (1050, 4, 1, 4),
        (2100, 0, 0, 3),
        (500, 4, 4, 2),
    ] {
        assert_eq!(
            value(usage, 1000, current, ready, tolerances),
            expected,
            "{usage}, {ready} of {current}"
        );
    }
}

#[test]
fn tolerance_is_by_direction() {
    let mut behavior = defaults();
    (behavior.up.tolerance_milli, behavior.down.tolerance_milli) = (0, 500);
    let tolerances = Tolerances::of(&behavior);
    assert_eq!(average_value(10_001, 1000, 10, tolerances), 11);
    assert_eq!(average_value(5_000, 1000, 10, tolerances), 10);
    assert_eq!(average_value(4_999, 1000, 10, tolerances), 5);
}

#[test]
fn follows_the_vectors_for_the_pace() {
    let behavior = defaults();
    let pace = Pace::default();
    for (current, limit) in [(1, 5), (3, 7), (4, 8), (10, 20)] {
        assert_eq!(pace.limit(&behavior, current, 1000, 0), limit);
    }
    let mut added = Pace::default();
    added.note_change(&behavior, 1, 5, 0);
    assert_eq!(added.limit(&behavior, 5, 1000, 10_000), 5);
    assert_eq!(added.limit(&behavior, 5, 1000, 15_000), 10);
    let slow = BehaviorSettings {
        down: rules(0, &[(PolicyKind::Percent, 10, 60)]),
        ..defaults()
    };
    assert_eq!(pace.limit(&slow, 5, 0, 0), 4);
}

#[test]
fn selects_the_largest_the_smallest_or_no_change() {
    let policies = [(PolicyKind::Pods, 2, 60), (PolicyKind::Percent, 50, 60)];
    let both = |select| {
        let rules = RulesSettings {
            select,
            ..rules(0, &policies)
        };
        let behavior = BehaviorSettings {
            up: rules.clone(),
            down: rules,
        };
        let pace = Pace::default();
        (
            pace.limit(&behavior, 10, 100, 0),
            pace.limit(&behavior, 10, 0, 0),
        )
    };
    assert_eq!(both(SelectPolicy::Max), (15, 5));
    assert_eq!(both(SelectPolicy::Min), (12, 8));
    assert_eq!(both(SelectPolicy::Disabled), (10, 10));
}

#[test]
fn stabilises_by_the_smallest_upwards_and_the_largest_downwards() {
    let mut behavior = defaults();
    (behavior.up.window_seconds, behavior.down.window_seconds) = (30, 60);
    let mut pace = Pace::default();
    let mut all = Vec::new();
    for (second, recommended) in [
        (0, 5),
        (10, 9),
        (20, 9),
        (30, 9),
        (40, 9),
        (50, 2),
        (89, 2),
        (100, 2),
        (110, 2),
    ] {
        all.push(pace.stabilize(&behavior, 5, recommended, second * 1000));
    }
    assert_eq!(all, [5, 5, 5, 9, 9, 5, 5, 2, 2]);
}

#[test]
fn a_falling_recommendation_that_never_repeats_keeps_memory_bounded_and_pods_up() {
    let behavior = BehaviorSettings {
        down: rules(3600, &[(PolicyKind::Percent, 100, 1)]),
        ..defaults()
    };
    let mut pace = Pace::default();
    for second in 0..3000_u32 {
        let stable = pace.stabilize(&behavior, 10_000, 10_000 - second, u64::from(second) * 1000);
        assert_eq!(stable, 10_000, "after {second} s");
    }
}
